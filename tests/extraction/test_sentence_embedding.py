"""The model's own sentence embedding: equal to sentence-transformers, recorded in the store, and used by an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer

from bertfeat import build_index, extract, fit_probe, load_probe, open_index
from bertfeat.config import ExtractConfig
from bertfeat.encoder.packaged import minilm
from bertfeat.errors import CheckpointError, ConfigError, PlanMismatch, RunError, UserError
from bertfeat.extraction.deep_check import recheck
from bertfeat.extraction.job import Job, open_inputs, open_job
from bertfeat.extraction.run import ShardTask
from bertfeat.progress import Progress
from bertfeat.search import evaluate_retrieval
from tests.support.command_line import good
from tests.support.families import build_model
from tests.support.sentence_models import save_sentence_model

pytestmark = pytest.mark.numeric

# Of different lengths; the last is longer than the tiny models take.
TEXTS = ["The fox", "She sells sea shells by the sea shore.", "", "42", "naïve café owners", "the sea " * 30]
FAMILIES = ("bert", "roberta", "xlm-roberta")
PROMPTS = {"query": "search: ", "document": "text: ", "none": ""}
CASES: dict[str, dict[str, Any]] = {
    "cls": {"modes": ["cls"]},
    "max": {"modes": ["max"], "normalize": True},
    "mean": {"modes": ["mean"]},
    "mean_sqrt_len_tokens": {"modes": ["mean_sqrt_len_tokens"]},
    "weightedmean": {"modes": ["weightedmean"]},
    "lasttoken": {"modes": ["lasttoken"], "normalize": True},
    "joined": {"modes": ["lasttoken", "mean"]},
    "all": {"modes": ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]},
    "dense": {"dense": [{"out_features": 12}], "normalize": True},
    "two dense": {"modes": ["cls", "max"], "dense": [{"out_features": 40, "bias": False}, {"out_features": 8}]},
}


def own(texts: list[str], folder: Path, model: Path, **settings: Any) -> np.ndarray:
    """Extract the model's own sentence embeddings of texts that are cut as sentence-transformers cuts them."""
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    chosen = {"levels": "sentence", "pooling": "model", "store_dtype": "float32", "on_overlong": "truncate"}
    store = extract(corpus, folder / "store", model=str(model), overwrite=True, **{**chosen, **settings})
    return store.numpy("sentence", "embedding")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random models of three tokenizers; which no test may change."""
    folder = tmp_path_factory.mktemp("models")
    return {name: build_model(name, folder / name, num_hidden_layers=2) for name in FAMILIES}


@pytest.mark.parametrize(
    ("case", "family"),
    [*((case, "bert") for case in CASES), *((case, name) for case in ("all", "dense") for name in FAMILIES[1:])],
)
def test_every_pooling_equals_sentence_transformers(case: str, family: str, tiny, tmp_path) -> None:
    model = save_sentence_model(tiny[family], tmp_path / "model", **CASES[case], prompts=PROMPTS, max_length=24)
    oracle = SentenceTransformer(str(model), device="cpu")
    for name in (None, "query"):
        expected = oracle.encode(TEXTS, prompt_name=name)
        found = own(TEXTS, tmp_path, model, prompt_name=name)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() < 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("mode", ["cls", "mean", "weightedmean", "lasttoken", "max"])
def test_a_prompt_counts_as_the_model_says(mode: str, include_prompt: bool, tiny, tmp_path) -> None:
    settings: dict[str, Any] = {"prompts": PROMPTS, "default_prompt_name": "document"}
    model = save_sentence_model(
        tiny["bert"], tmp_path / "model", modes=[mode], include_prompt=include_prompt, **settings
    )
    oracle = SentenceTransformer(str(model), device="cpu")
    for asked in ({}, {"prompt": "Find the sea: "}, {"prompt_name": "query"}, {"prompt": ""}):
        # The default prompt is used unless another one, or none, is asked for.
        expected = oracle.encode(TEXTS, **(asked if asked != {"prompt": ""} else {"prompt_name": "none"}))
        assert np.abs(own(TEXTS, tmp_path, model, **asked) - expected).max() < 1e-5


def test_minilm_equals_sentence_transformers_on_real_text(tmp_path) -> None:
    paragraphs = Path("examples/data/peps.txt").read_text("utf-8").splitlines()
    oracle = SentenceTransformer(str(minilm().folder), device="cpu")
    for prompt, lines in ((None, paragraphs[::3]), ("query: ", paragraphs[1::12])):
        expected = oracle.encode(lines, prompt=prompt)
        assert np.abs(own(lines, tmp_path, Path("minilm"), prompt=prompt) - expected).max() < 1e-5


def test_long_texts_are_read_whole_unless_they_are_cut(tiny, tmp_path) -> None:
    model = save_sentence_model(tiny["bert"], tmp_path / "model", max_length=12)
    settings = {"model": str(model), "levels": "word,sentence", "pooling": "model", "layers": "-1"}
    store = extract(write(tmp_path / "c.txt", ["the sea " * 20]), tmp_path / "s", store_dtype="float32", **settings)
    assert store.metadata["max_length"] == 12
    assert store.arrow("sentence", ["n_windows", "truncated"]).to_pylist() == [{"n_windows": 6, "truncated": False}]
    # Forty words, and the special tokens of the first and of the last window.
    words = store.numpy("word", "layer_02").sum(axis=0)
    rest = store.numpy("sentence", "embedding")[0] * 42 - words
    own = {"model": str(model), "levels": "token", "layers": "-1", "max_length": 12}
    token = extract(tmp_path / "c.txt", tmp_path / "t", **own)
    special = token.arrow("token", ["is_special"]).column(0).to_numpy()
    np.testing.assert_allclose(rest, token.numpy("token", "layer_02")[special].sum(axis=0), atol=0.1)


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_the_result_says_what_was_done_and_a_tip_once_what_the_model_asks_for(tiny, tmp_path) -> None:
    model = save_sentence_model(tiny["bert"], tmp_path / "own", modes=["cls"], normalize=True, prompts=PROMPTS)
    corpus = write(tmp_path / "c.txt", ["the sea"])
    own = "first token, then normalises"
    for number, (name, flags, done, tips) in enumerate((
        (tiny["bert"], "", ("mean",), ()),
        (model, "--include-special-tokens", ("mean", own), ("--pooling model", "document, query")),
        (model, "--pooling model", ("model", own), ("--prompt-name", "query)")),
        (model, "--pooling model --prompt-name query", ("model", own, "search:"), ()),
    )):  # fmt: skip
        store = tmp_path / str(number)
        command = (
            "extract",
            corpus,
            "-o",
            store,
            "--level",
            "sentence",
            "--layers",
            "-1",
            "--model",
            name,
            *flags.split(),
        )
        made, again = good(*command), good(*command)
        before, tip, after = made.out.partition("\ntip ")
        assert all(one in before for one in done)
        assert bool(tip) == (len(tips) > 0)
        assert all(one in after for one in tips)
        assert "\ntip " not in again.out
    (model / "modules.json").write_text("[]")
    made = good("extract", corpus, "-o", tmp_path / "x", "--level", "sentence", "--layers", "-1", "--model", model)
    assert "--pooling" not in made.out


def test_what_a_model_does_not_have_is_named(tiny, tmp_path) -> None:
    corpus = write(tmp_path / "c.txt", ["the sea"])
    settings: dict[str, Any] = {"levels": "sentence", "pooling": "model"}
    with pytest.raises(CheckpointError, match=r"`pooling='model'`: .*bert has no modules.json.*; pass `pooling='mean'"):
        extract(corpus, tmp_path / "s", model=str(tiny["bert"]), **settings)
    model = save_sentence_model(tiny["bert"], tmp_path / "own", prompts=PROMPTS)
    with pytest.raises(ConfigError, match=r"`prompt_name` 'qeury'.*choose one of document, none, query"):
        extract(corpus, tmp_path / "s", model=str(model), prompt_name="qeury", **settings)
    with pytest.raises(ConfigError, match=r"`max_length=5` leaves .* tokens .* of the prompt; at least 1"):
        extract(corpus, tmp_path / "s", model=str(model), prompt="the sea shore of the sea ", max_length=5, **settings)
    assert not (tmp_path / "s").exists()


def test_prompt_and_embedding_are_part_of_the_plan(tiny, tmp_path) -> None:
    model = save_sentence_model(tiny["bert"], tmp_path / "own", prompts=PROMPTS)
    settings: dict[str, Any] = {"model": str(model), "levels": "word,sentence", "layers": "-1", "pooling": "model"}
    corpus = write(tmp_path / "c.txt", TEXTS[:2])
    store = extract(corpus, tmp_path / "s", prompt_name="query", **settings)
    assert store.plan.fields["prompt"] == store.metadata["prompt"] == "search: "
    assert not recheck(store.path).problems
    # The text of the prompt counts, not the way in which it was given.
    assert extract(corpus, tmp_path / "s", prompt="search: ", **settings).plan == store.plan
    with pytest.raises(PlanMismatch, match="`prompt` was 'search: ', now 'find: '"):
        extract(corpus, tmp_path / "s", prompt="find: ", **settings)
    save_sentence_model(tiny["bert"], tmp_path / "own", modes=["max"], prompts=PROMPTS)
    with pytest.raises(PlanMismatch, match=r"digest of the model's sentence embedding was "):
        extract(corpus, tmp_path / "s", prompt_name="query", **settings)
    plain = extract(corpus, tmp_path / "p", **{**settings, "pooling": "mean"})
    assert not {"prompt", "prompt_name", "model.sentence_sha256"} & plain.plan.fields.keys()


@pytest.mark.parametrize("pooling", ["model", "mean"])
def test_queries_do_not_have_the_prompt_for_documents(tiny, tmp_path, pooling) -> None:
    model = save_sentence_model(tiny["bert"], tmp_path / "own", prompts={"document": "text: "}, normalize=True)
    file = model / "config_sentence_transformers.json"
    # sentence-transformers 5 adds an empty prompt for queries; older ones do not.
    file.write_text(json.dumps({**json.loads(file.read_text()), "prompts": {"document": "text: "}}))
    settings: dict[str, Any] = {"model": str(model), "store_dtype": "float32", "layers": "-1", "pooling": pooling}
    corpus = write(tmp_path / "c.txt", TEXTS[:2])
    store = extract(corpus, tmp_path / "s", levels="sentence", prompt_name="document", **settings)
    found = build_index(store, tmp_path / "i").encode(["sea shells"]).vectors
    plain = extract(write(tmp_path / "q.txt", ["sea shells"]), tmp_path / "p", levels="sentence", **settings)
    np.testing.assert_allclose(found, plain.numpy("sentence", plain.features("sentence")[0].name), atol=1e-5)
    if pooling == "model":
        expected = SentenceTransformer(str(model), device="cpu").encode_query(["sea shells"])
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_prompt_that_the_model_does_not_name_is_written_in_the_query(tiny, tmp_path) -> None:
    settings: dict[str, Any] = {"model": str(tiny["bert"]), "levels": "sentence", "layers": "-1", "pooling": "mean"}
    store = extract(write(tmp_path / "c.txt", TEXTS[:2]), tmp_path / "s", prompt="text: ", **settings)
    index = build_index(store, tmp_path / "i", query_prompt_name="")
    written = extract(write(tmp_path / "q.txt", ["search: sea shells"]), tmp_path / "q", **settings)
    found = index.encode(["search: sea shells"]).vectors
    np.testing.assert_allclose(found, written.numpy("sentence", -1), atol=1e-3)


def test_queries_have_the_prompt_of_the_model_for_queries(tiny, tmp_path) -> None:
    model = save_sentence_model(tiny["bert"], tmp_path / "own", prompts=PROMPTS, normalize=True)
    oracle = SentenceTransformer(str(model), device="cpu")
    settings: dict[str, Any] = {"model": str(model), "levels": "sentence", "store_dtype": "float32", "layers": "-1"}
    corpus = write(tmp_path / "c.txt", [text for text in TEXTS[:5] if text])
    store = extract(corpus, tmp_path / "s", pooling="model", prompt_name="document", **settings)
    index = build_index(store, tmp_path / "i")
    assert index.origin.query_prompt == "search: "
    found = open_index(tmp_path / "i").encode(["sea shells"]).vectors
    np.testing.assert_allclose(found, oracle.encode_query(["sea shells"]), atol=1e-5)
    np.testing.assert_allclose(
        store.numpy("sentence", "embedding"), oracle.encode_document(TEXTS[:2] + TEXTS[3:5]), atol=1e-5
    )
    # Queries are those of `evaluate_retrieval` and of later searches too.
    (tmp_path / "q.jsonl").write_text('{"query_id": "q", "text": "sea shells"}\n')
    (tmp_path / "r.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n")
    assert evaluate_retrieval(index, tmp_path / "r.tsv", tmp_path / "q.jsonl")["n_queries"] == 1
    write(corpus, [text for text in TEXTS[:5] if text] + ["another line"])
    grown = extract(corpus, tmp_path / "grown", pooling="model", prompt_name="document", **settings)
    assert open_index(tmp_path / "i").update(grown).origin.query_prompt == "search: "
    for name, prompt in (("document", "text: "), ("", "")):
        other = build_index(store, tmp_path / f"i-{name}", query_prompt_name=name)
        expected = oracle.encode(["sea shells"], prompt=prompt)
        np.testing.assert_allclose(other.encode(["sea shells"]).vectors, expected, atol=1e-5)
    with pytest.raises(UserError, match="query_prompt was 'text: ', now 'search: '"):
        build_index(store, tmp_path / "i-document")
    with pytest.raises(UserError, match=r"`query_prompt_name` 'qeury'.*choose one of document, none, query"):
        build_index(store, tmp_path / "other", query_prompt_name="qeury")
    # Rows without a prompt are searched without one.
    plain = extract(corpus, tmp_path / "p", pooling="mean", **settings)
    assert build_index(plain, tmp_path / "ip").origin.query_prompt is None
    with pytest.raises(UserError, match=r"has pooling 'model', .*; store p has pooling 'mean'"):
        open_index(tmp_path / "i", store=plain).search("sea")


def test_a_changed_dense_layer_is_another_model_for_indexes_and_probes(tiny, tmp_path) -> None:
    dense: dict[str, Any] = {"dense": [{"out_features": 8}]}
    model = save_sentence_model(tiny["bert"], tmp_path / "own", **dense)
    (tmp_path / "c.jsonl").write_text("".join(f'{{"text": "the sea {n}", "label": "{n % 2}"}}\n' for n in range(6)))
    settings: dict[str, Any] = {"model": str(model), "levels": "sentence", "pooling": "model"}
    store = extract(tmp_path / "c.jsonl", tmp_path / "s", keep_columns="label", **settings)
    build_index(store, tmp_path / "i").encode(["the sea"])
    fit_probe(store, "label", head="centroid").save(tmp_path / "p")
    assert load_probe(tmp_path / "p").predict(["the sea 1"]).height == 1
    path = model / "2_Dense" / "model.safetensors"
    save_file({name: values + 1 for name, values in load_file(path).items()}, path)
    for use in (
        lambda: open_index(tmp_path / "i").encode(["the sea"]),
        lambda: load_probe(tmp_path / "p").predict(["the sea"]),
    ):
        with pytest.raises(
            UserError, match=r"has sentence embedding of the model .*; model .* has sentence embedding of the model "
        ):
            use()


def test_a_worker_uses_the_prompt_and_the_embedding_of_the_plan(tiny, tmp_path, monkeypatch) -> None:
    model = save_sentence_model(tiny["bert"], tmp_path / "own", prompts=PROMPTS, dense=[{"out_features": 8}])
    config = ExtractConfig(model=str(model), levels="sentence", pooling="model", prompt_name="query")
    corpus = write(tmp_path / "c.txt", ["the sea"])
    with open_inputs(corpus, tmp_path / "s", config) as files:
        job = open_job(config, files, tmp_path / "s", Progress(), overwrite=False)
        save_sentence_model(tiny["bert"], model, prompts={"query": "other: "}, dense=[{"out_features": 8}])
        assert ShardTask(job).flow.tokenizer.prompt == "search: "
        save_sentence_model(tiny["bert"], model, dense=[{"out_features": 8}], normalize=True)
        monkeypatch.setattr(Job, "on_cluster", True)
        with pytest.raises(RunError, match=r"sentence embedding was .*, now .*; install the same on every machine"):
            ShardTask(job)


def test_prompts_count_though_the_modules_are_not_supported(tiny, tmp_path) -> None:
    model = save_sentence_model(tiny["bert"], tmp_path / "own", prompts=PROMPTS)
    (model / "modules.json").write_text("[]")
    settings: dict[str, Any] = {"model": str(model), "levels": "sentence", "layers": "-1"}
    corpus = write(tmp_path / "c.txt", ["the sea", "the shore"])
    store = extract(corpus, tmp_path / "s", prompt_name="document", **settings)
    assert build_index(store, tmp_path / "i").origin.query_prompt == "search: "
    # An empty prompt of the model does not replace the one that was asked for.
    model = save_sentence_model(tiny["bert"], tmp_path / "empty", prompts={"query": "", "document": ""})
    store = extract(corpus, tmp_path / "e", prompt="find: ", **{**settings, "model": str(model)})
    index = build_index(store, tmp_path / "ie")
    expected = store.numpy("sentence", -1, dtype="float32")[:1]
    np.testing.assert_allclose(index.encode(["the sea"]).vectors.astype(np.float32), expected, rtol=1e-3, atol=1e-3)


def test_a_longer_prompt_of_queries_leaves_room_for_them(tiny, tmp_path) -> None:
    model = save_sentence_model(tiny["bert"], tmp_path / "own", prompts={"query": "she sells the sea shells: "})
    corpus = write(tmp_path / "c.txt", ["the sea"])
    settings: dict[str, Any] = {"levels": "sentence", "pooling": "model", "max_length": 24, "stride": 21}
    store = extract(corpus, tmp_path / "s", model=str(model), **settings)
    assert build_index(store, tmp_path / "i").encode(["the sea"]).vectors.shape == (1, 32)
