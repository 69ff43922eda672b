"""A shipped probe gives the labels and probabilities of `probe predict`, in libraries that know nothing of bertfeat."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, pipeline
from transformers.utils import logging

import bertfeat
from bertfeat.errors import UserError
from bertfeat.probes.fitted import FittedProbe
from bertfeat.shipping.ship import TARGETS
from bertfeat.store.reader import Store
from tests.support.command_line import bertfeat as command
from tests.support.command_line import good
from tests.support.families import build_model

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")

WORDS = "rain falls on old roofs while seven quiet boats drift home past the wall".split()  # noqa: SIM905
RNG = np.random.default_rng(3)
TEXTS = [" ".join(RNG.choice(WORDS, RNG.integers(1, 5))) for _ in range(60)]
NEW = ["boats fall", "quiet rain on the wall", "roofs", "seven old boats drift"]
CORPUS = pl.DataFrame(
    {
        "text": TEXTS,
        "kind": [["a", "b", "c"][len(text) % 3] for text in TEXTS],
        "is_long": [len(text) > 15 for text in TEXTS],
        "n": [len(text) / 7 for text in TEXTS],
        "letters": [sorted(set(text) & set("qdv")) for text in TEXTS],
    }
)
TAGS = pl.DataFrame(
    [
        {"doc_id": number, "word_index": place, "tag": ["X", "Y", "Z"][len(word) % 3]}
        for number, text in enumerate(TEXTS)
        for place, word in enumerate(text.split())
    ]
)
# Heads and the labels that they learn.
OF_TEXTS = [("logreg", "kind"), ("svm", "is_long"), ("centroid", "kind"), ("logreg", "letters"), ("ridge", "n")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The names of models, by family."""
    logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("models")
    families = ["bert", "roberta", "distilbert", "modernbert", "gpt2", "llama"]
    return {"minilm": "minilm", **{family: str(build_model(family, folder / family)) for family in families}}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shipped")


def extracted(places: Path, model: str, level: str, **settings: Any) -> Store:
    where = places / f"store-{len(list(places.iterdir()))}"
    kept = {"keep_columns": "kind,is_long,n,letters"} if level == "sentence" else {}
    settings = {"store_dtype": "float32", "progress": False, **kept, **settings}
    return bertfeat.extract(CORPUS, where, model=model, levels=level, **settings)


def fitted(store: Store, head: str, label: str, **settings: Any) -> FittedProbe:
    task = {"n": "regress", "letters": "multilabel"}.get(label, "classify")
    more = {"labels": TAGS} if label == "tag" else {}
    return bertfeat.fit_probe(store, label, head=head, task=task, **more, **settings)


def check_texts(folder: Path, probe: FittedProbe) -> None:
    """Compare a classifier of texts with `predict`."""
    classify = pipeline("text-classification", str(folder), top_k=None)
    for mine, theirs in zip(probe.predict(NEW).iter_rows(named=True), classify(NEW), strict=True):
        of = {one["label"]: one["score"] for one in theirs}
        if probe.label == "n":
            assert of["n"] == pytest.approx(mine["prediction"], abs=1e-5)
        elif probe.label == "letters":
            assert sorted(name for name, score in of.items() if score > 0.5) == mine["prediction"]
            assert [of[name] for name in mine["prediction"]] == pytest.approx(mine["probability"], abs=1e-5)
        else:
            best = max(of, key=lambda name: of[name])
            assert best == str(mine["prediction"])
            assert mine["probability"] is None or of[best] == pytest.approx(mine["probability"], abs=1e-5)


def check_words(folder: Path, probe: FittedProbe) -> None:
    """Compare the labels of the first tokens of words with `predict`."""
    tag, tokenizer = (
        pipeline("token-classification", str(folder), ignore_labels=[]),
        AutoTokenizer.from_pretrained(folder),
    )
    found = []
    for number, text in enumerate(NEW):
        of_words = tokenizer(text).word_ids()
        found += [(number, of_words[one["index"]], one["entity"], one["score"]) for one in tag(text)]
    firsts = {(number, place): (label, score) for number, place, label, score in found[::-1]}
    mine = {(row["doc_id"], row["word_index"]): row for row in probe.predict(NEW).iter_rows(named=True)}
    assert firsts.keys() == mine.keys()
    for key, row in mine.items():
        assert firsts[key][0] == row["prediction"]
        assert row["probability"] is None or firsts[key][1] == pytest.approx(row["probability"], abs=1e-5)


@pytest.mark.numeric
@pytest.mark.parametrize(("family", "layer"), [("bert", "2"), ("roberta", "2"), ("distilbert", "2")])
def test_texts_in_transformers(family: str, layer: str, models: dict[str, str], places: Path) -> None:
    store = extracted(places, models[family], "sentence", pooling="cls", layers=layer)
    for head, label in OF_TEXTS if family == "bert" else OF_TEXTS[:1]:
        probe = fitted(store, head, label)
        check_texts(probe.ship(places / "texts", overwrite=True).path, probe)


@pytest.mark.parametrize(
    ("family", "layer"), [("bert", "2"), ("roberta", "2"), ("distilbert", "0"), ("minilm", "3"), ("gpt2", "-1")]
)
def test_words_in_transformers(family: str, layer: str, models: dict[str, str], places: Path) -> None:
    store = extracted(places, models[family], "word", word_pooling="first", layers=layer)
    for head in ("logreg", "svm", "linear") if family == "bert" else ("logreg",):
        probe = fitted(store, head, "tag", **({"n_components": 8} if head == "svm" else {}))
        shipped = probe.ship(places / "words", overwrite=True)
        assert (shipped.n_blocks, shipped.n_blocks_of_model) == (probe.spec.layers[0], probe.spec.n_layers)
        check_words(shipped.path, probe)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bert", {"pooling": "mean", "layers": "2"}),
        ("bert", {"pooling": "max", "layers": "2", "include_special_tokens": True}),
        ("roberta", {"pooling": "mean", "layers": "2", "include_special_tokens": True, "prompt": "on boats: "}),
        ("minilm", {"pooling": "mean", "layers": "3"}),
        ("minilm", {"pooling": "model"}),
        ("modernbert", {"pooling": "cls", "layers": "-1"}),
        ("llama", {"pooling": "mean", "layers": "-1"}),
    ],
)
def test_texts_in_sentence_transformers(
    family: str, settings: dict[str, Any], models: dict[str, str], places: Path
) -> None:
    store = extracted(places, models[family], "sentence", **settings)
    probe = fitted(store, "logreg", "kind")
    shipped = probe.ship(places / "scores", to="sentence-transformers", overwrite=True)
    model = SentenceTransformer(str(shipped.path), device="cpu")
    found = torch.softmax(torch.from_numpy(model.encode(NEW)), dim=1)
    mine, names = probe.predict(NEW), model[0].auto_model.config.id2label
    assert [names[best] for best in found.argmax(dim=1).tolist()] == mine["prediction"].to_list()
    np.testing.assert_allclose(found.max(dim=1).values, mine["probability"], rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def of_bert(models: dict[str, str], places: Path) -> FittedProbe:
    """A probe of words on two of four blocks of a small BERT."""
    store = extracted(places, models["bert"], "word", word_pooling="first", layers="2")
    return fitted(store, "logreg", "tag", dev=store, dev_labels=TAGS)


@pytest.mark.parametrize(
    ("target", "family", "settings", "head", "named"),
    [
        ("transformers", "bert", {"layers": "2", "pooling": "mean"}, "logreg", ["mean", "--to sentence-transformers"]),
        ("transformers", "bert", {"layers": "2", "pooling": "cls"}, "mlp", ["mlp", "logreg"]),
        ("transformers", "bert", {"layers": "1,2", "combine": "concat", "pooling": "cls"}, "logreg", ["2 layers"]),
        ("transformers", "bert", {"layers": "2", "level": "word", "word_pooling": "mean"}, "logreg", ["mean"]),
        ("transformers", "gpt2", {"layers": "2", "level": "word", "word_pooling": "first"}, "logreg", ["differ"]),
        ("transformers", "modernbert", {"layers": "-1", "pooling": "cls"}, "logreg", ["bias"]),
        ("sentence-transformers", "bert", {"layers": "2", "pooling": "max"}, "logreg", ["include-special-tokens"]),
        ("sentence-transformers", "modernbert", {"layers": "2", "pooling": "cls"}, "logreg", ["differ"]),
        ("sentence-transformers", "bert", {"layers": "2", "level": "word", "word_pooling": "first"}, "svm", ["word"]),
        ("transformer", "bert", {"layers": "2", "pooling": "cls"}, "logreg", ["mean 'transformers'"]),
    ],
)
def test_refusals(
    target: str,
    family: str,
    settings: dict[str, Any],
    head: str,
    named: list[str],
    models: dict[str, str],
    places: Path,
    tmp_path: Path,
) -> None:
    settings = dict(settings)
    level = settings.pop("level", "sentence")
    probe = fitted(extracted(places, models[family], level, **settings), head, "tag" if level == "word" else "kind")
    probe.save(tmp_path / "probe")
    done = command("probe", "ship", tmp_path / "probe", "-o", tmp_path / "out", "--to", target)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert all(name in done.err for name in named), done.err
    if "onnx" in TARGETS and target in TARGETS and "--to" not in "".join(named):
        assert "--to " in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["probe"]


def test_a_folder_appears_whole_and_is_replaced_only_if_asked(of_bert: FittedProbe, tmp_path: Path) -> None:
    of_bert.save(tmp_path / "probe")
    shipped = good("probe", "ship", tmp_path / "probe", "-o", tmp_path / "out", "--json").json
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert shipped["labels"] == ["X", "Y", "Z"]
    assert (shipped["n_blocks"], shipped["n_blocks_of_model"]) == (2, 4)
    assert shipped["n_bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert shipped["n_bytes"] < shipped["n_bytes_of_model"]
    with pytest.raises(UserError, match="`overwrite`"):
        of_bert.ship(tmp_path / "out")
    with pytest.raises(UserError, match=r"probe\.json"):
        of_bert.ship(tmp_path / "probe", overwrite=True)
    shown = good("probe", "ship", tmp_path / "probe", "-o", tmp_path / "out", "--overwrite").out
    assert "2 of 4" in shown


def test_the_card_has_what_hubs_read(of_bert: FittedProbe, tmp_path: Path) -> None:
    of_bert.ship(tmp_path / "tags")
    card = ModelCard.load(tmp_path / "tags/README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "token-classification")
    scores = {one.metric_type: one.metric_value for one in card.data.eval_results}
    assert of_bert.training.scores is not None
    assert scores["accuracy"] == of_bert.training.scores["accuracy"].mean
    assert "2 of 4 blocks" in card.text
    assert str(tmp_path.parent) not in str(card)


def test_another_model_under_the_name_is_refused(models: dict[str, str], places: Path, tmp_path: Path) -> None:
    folder = str(build_model("bert", tmp_path / "model"))
    probe = fitted(extracted(places, folder, "sentence", pooling="cls", layers="2"), "logreg", "kind")
    build_model("bert", tmp_path / "model", seed=1)
    with pytest.raises(UserError, match="model weights"):
        probe.ship(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bertfeat_is_not_needed(of_bert: FittedProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = of_bert.ship(tmp_path / "tags")
    for name in [name for name in sys.modules if name.partition(".")[0] == "bertfeat"]:
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]  # an import of it fails
    assert pipeline("token-classification", str(shipped.path), ignore_labels=[])("quiet boats")
