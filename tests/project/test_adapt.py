"""Pre-training on plain text: masks and pairs as in BERT's paper, exact losses, and a recipe that survives a kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertfeat
from bertfeat.errors import InputError
from bertfeat.pipelines import _pretraining
from bertfeat.pipelines._maskedexamples import Examples
from bertfeat.pipelines._masking import Vocabulary, mask
from bertfeat.pipelines._models import NO_LABEL, TaskModel, open_task_model
from bertfeat.pipelines._pretraining import HeldOut, is_tied, open_masked_model
from bertfeat.pipelines._scratch import train_tokenizer
from bertfeat.pipelines._windows import hold_out, read_texts, tokens_of
from bertfeat.progress import Progress
from tests.support.families import build_model, build_tokenizer
from tests.support.pipeline_runs import refusal, result_of, run
from tests.support.places import ROOT

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread", "no_fsync")]

PEPS = ROOT / "examples" / "data" / "peps.txt"
CONFIG = {
    "model_type": "bert",
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
# Documents of two paragraphs.
DOCUMENTS = [PEPS.read_text("utf-8").splitlines()[n : n + 2] for n in range(0, 40, 2)]
TINY = ("--corpus", PEPS, "--limit", 20, "--max-length", 32, "--device", "cpu")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="module")
def masked(tiny_folder: Path) -> TaskModel:
    return open_masked_model(str(tiny_folder), nsp=False, seed=0)


@pytest.fixture(scope="module")
def paired(tiny_folder: Path) -> TaskModel:
    return open_masked_model(str(tiny_folder), nsp=True, seed=0)


def is_near(share: float, expected: float, n: int) -> bool:
    """Return whether a share of n draws is within five standard deviations."""
    return abs(share - expected) < 5 * (expected * (1 - expected) / n) ** 0.5


def original(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the token ids of a batch before they were masked."""
    return torch.where(batch["labels"] == NO_LABEL, batch["input_ids"], batch["labels"])


@pytest.mark.parametrize("whole_words", [False, True])
def test_masks_are_those_of_the_paper(masked: TaskModel, whole_words: bool) -> None:
    vocabulary = Vocabulary.of(masked, np.array([2, 3]))
    random = np.random.default_rng(1)
    assert masked.tokenizer.all_special_ids
    n_tokens = n_chosen = n_masked = n_changed = 0
    for _ in range(600):
        ids = np.concatenate([[2], random.choice(vocabulary.ordinary, 120), [1, 3, 0, 0]])
        words = np.concatenate([[-1], np.cumsum(random.random(120) < 0.7), [-1, -1, -1, -1]])
        seen, labels = mask(ids, words, vocabulary, random, whole_words=whole_words)
        chosen = labels != NO_LABEL
        assert (seen[~chosen] == ids[~chosen]).all()
        assert (labels[chosen] == ids[chosen]).all()
        assert not vocabulary.is_special[ids[chosen]].any(), "special tokens are never masked"
        replaced = seen[chosen][seen[chosen] != vocabulary.mask_id]
        assert not vocabulary.is_special[replaced].any(), "a random token is never a special one"
        if whole_words:
            assert not set(words[chosen]) & set(words[~chosen]), "a word is masked whole"
        n_tokens, n_chosen = n_tokens + 120, n_chosen + chosen.sum()
        n_masked += (seen[chosen] == vocabulary.mask_id).sum()
        n_changed += (replaced != ids[chosen][seen[chosen] != vocabulary.mask_id]).sum()
    assert is_near(n_chosen / n_tokens, 0.15, n_tokens)
    assert is_near(n_masked / n_chosen, 0.8, n_chosen)
    # A random token is the old one once in a while.
    assert is_near(n_changed / n_chosen, 0.1 * (1 - 1 / len(vocabulary.ordinary)), n_chosen)


def test_windows_lose_no_text_and_are_full(masked: TaskModel) -> None:
    examples = Examples(DOCUMENTS, masked, 32)
    batch = examples.make_batch(range(len(examples.lengths)), np.random.default_rng(0))
    lengths = batch["attention_mask"].sum(1).tolist()
    assert lengths == examples.lengths
    assert set(lengths) <= {31, 32}
    rows = [row[:length].tolist() for row, length in zip(original(batch), lengths, strict=True)]
    first, last = masked.tokenizer.cls_token_id, masked.tokenizer.sep_token_id
    assert {(row[0], row[-1]) for row in rows} == {(first, last)}
    tokens = tokens_of(DOCUMENTS, masked.tokenizer)
    expected = [ids.tolist() for ids in np.split(tokens.ids, tokens.ends[:-1])]
    joined = [token for document in expected for token in [*document, last]][:-1]
    assert [token for row in rows for token in row[1:-1]] == joined, "documents follow each other after a [SEP]"
    assert (examples.n_tokens, examples.n_left_out) == (len(tokens.ids), 0)
    again = examples.make_batch(range(len(rows)), np.random.default_rng(1))
    assert not torch.equal(again["input_ids"], batch["input_ids"]), "each step masks other words"
    assert torch.equal(original(again), original(batch))


def test_next_sentences_are_half_true_and_false_ones_come_from_other_documents(paired: TaskModel) -> None:
    examples = Examples([*DOCUMENTS, ["x"]], paired, 32, nsp=True)
    assert examples.n_left_out == 1, "a single token has no next sentence"
    texts = [f" {' '.join(map(str, tokens_of([texts], paired.tokenizer).ids))} " for texts in DOCUMENTS]
    sep, n_true, n_pairs = paired.tokenizer.sep_token_id, 0, 0
    for step in range(12):
        batch = examples.make_batch(range(len(examples.lengths)), np.random.default_rng(step))
        padding = batch["attention_mask"] == 0
        assert padding.any()
        assert (batch["labels"][padding] == NO_LABEL).all()
        columns = (batch["attention_mask"], batch["token_type_ids"], batch["next_sentence_label"])
        for ids, seen, types, label in zip(original(batch), *columns, strict=True):
            ids, types = ids[seen.bool()].tolist(), types[seen.bool()].tolist()
            middle = types.index(1)
            assert types == [0] * middle + [1] * (len(ids) - middle)
            assert [n for n, token in enumerate(ids) if token == sep] == [middle - 1, len(ids) - 1]
            first, second = (f" {' '.join(map(str, part))} " for part in (ids[1 : middle - 1], ids[middle:-1]))
            if label == 0:
                assert any(first.rstrip() + second in text for text in texts)
            elif len(first) > 40 and len(second) > 40:
                assert not any(first in text and second in text for text in texts)
            n_true, n_pairs = n_true + int(label == 0), n_pairs + 1
    assert n_pairs > 1000
    assert is_near(n_true / n_pairs, 0.5, n_pairs)


def test_the_digest_tells_other_documents_apart(paired: TaskModel) -> None:
    texts = ["she sells sea shells", "the quick brown fox jumps", "he buys them", "by the sea shore"]
    split = [Examples(parts, paired, 32, nsp=True) for parts in ([[text] for text in texts], [texts[:2], texts[2:]])]
    assert split[0].digest() != split[1].digest(), "other borders"
    changed = Examples([[text] for text in [*texts[:3], "by the sea side"]], paired, 32, nsp=True)
    assert changed.digest() != split[0].digest()


@pytest.mark.parametrize("nsp", [False, True])
def test_the_held_out_loss_is_that_of_the_heads(nsp: bool, masked: TaskModel, paired: TaskModel) -> None:
    opened = paired if nsp else masked
    examples = Examples(DOCUMENTS[:4], opened, 48, nsp=nsp)
    held_out = HeldOut(examples, len(examples.lengths))
    scores = held_out.scores(opened.model)
    order = np.argsort(examples.lengths, kind="stable").tolist()
    batch = examples.make_batch(order, np.random.default_rng([0, 0]))
    with torch.no_grad():
        out = opened.model(**batch)
    assert scores.loss == pytest.approx(float(out.loss), rel=1e-5)
    logits = out.prediction_logits if nsp else out.logits
    chosen = batch["labels"] != NO_LABEL
    right = (logits.argmax(-1) == batch["labels"])[chosen]
    assert scores.masked_accuracy == pytest.approx(float(right.float().mean()))
    if nsp:
        judged = out.seq_relationship_logits.argmax(-1) == batch["next_sentence_label"]
        assert scores.next_accuracy == pytest.approx(float(judged.float().mean()))
    # The same in other batches.
    assert HeldOut(examples, 1).guessed(examples.most_frequent()) > 0.01


@pytest.mark.parametrize("family", ["roberta", "albert", "modernbert", "distilbert"])
def test_other_families_have_masked_words(family: str, tmp_path: Path) -> None:
    opened = open_masked_model(str(build_model(family, tmp_path)), nsp=False, seed=0)
    assert is_tied(opened.model)
    examples = Examples(DOCUMENTS[:3], opened, 24)
    batch = examples.make_batch(range(4), np.random.default_rng(0))
    assert torch.isfinite(opened.model(**batch).loss)
    assert "token_type_ids" not in batch


def test_heads_are_made_and_tied_where_the_checkpoint_has_none() -> None:
    opened = open_masked_model("minilm", nsp=True, seed=0)
    assert "cls.seq_relationship.weight" in opened.new_weights
    assert is_tied(opened.model)


def test_documents_of_each_format(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one\n\ntwo\nthree\n \nfour\n")
    assert read_texts(str(lines)) == ([["one"], ["two", "three"], ["four"]], "empty lines")
    lines.write_text("one\ntwo\n")
    assert read_texts(str(lines)) == ([["one"], ["two"]], "rows")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"text": f"t{n}", "d": n // 2}) + "\n" for n in range(5)) + '{"text": "", "d": 9}'
    )
    assert read_texts(str(rows), document_column="d") == ([["t0", "t1"], ["t2", "t3"], ["t4"]], "groups")
    assert len(read_texts(str(rows))[0]) == 5
    words = tmp_path / "words.conll"
    words.write_text("-DOCSTART- O\n\na O\nb O\n\nc O\n\n-DOCSTART- O\n\nd O\n")
    assert read_texts(str(words)) == ([["a b", "c"], ["d"]], "groups")


def test_held_out_documents_are_a_share_of_the_text() -> None:
    documents = [["a" * (1 + n % 7)] for n in range(500)]
    train, held = hold_out(documents, 0.1, least=1)
    assert len(train) + len(held) == 500
    share = sum(len(text) for texts in held for text in texts) / sum(len(texts[0]) for texts in documents)
    assert 0.09 < share <= 0.1
    assert hold_out(documents, 0.1, least=1) == (train, held)
    assert hold_out([["long text"], ["a"], ["bb"], ["longer text"]], 0.001, least=2)[1] == [["a"], ["bb"]]
    with pytest.raises(InputError, match="documents of the corpus: 3; at least 2 to train on and 2 to hold out"):
        hold_out(documents[:3], 0.5, least=2)


class Killed(Exception):
    """The process ends here."""


@contextmanager
def killed_at(step: int) -> Iterator[Progress]:
    class Killer(Progress):
        def stage(self, text: str, n_done: int = 0, n_total: int | None = None) -> None:
            if n_done == step:
                raise Killed

    yield Killer()


def test_a_killed_run_ends_with_the_same_model(tiny_folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    asked = ("adapt", *TINY, "--model", tiny_folder, "--nsp", "--epochs", 2, "--batch-size", 8, "--save-every", 2)
    whole = result_of(tmp_path / "whole", *asked)
    n_steps = whole["training"]["step"]
    assert n_steps > 8
    for step in (3, n_steps // 2 + 2):
        monkeypatch.setattr(_pretraining, "reporting", lambda _, step=step: killed_at(step))
        assert run(*asked, "--out", tmp_path / "killed").code == 3
        assert not (tmp_path / "killed" / "result.json").exists()
    monkeypatch.undo()
    again = result_of(tmp_path / "killed", *asked)
    weights = [tmp_path / name / "model" / "model.safetensors" for name in ("whole", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    for found in (whole, again):
        del found["training"]["seconds"], found["seconds"]
    assert again == whole
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {"curve.png", "curve.svg", "model", "result.json"}
    # The folder is a model: for features, and for its heads.
    store = bertfeat.extract(PEPS, tmp_path / "store", model=str(tmp_path / "whole" / "model"), layers="all", limit=2)
    assert store.n_rows("token") > 50
    for head in ("pretraining", "masked"):
        assert open_task_model(str(tmp_path / "whole" / "model"), head, trained=True).new_weights == ()
    assert [point["step"] for point in whole["curve"]] == [0, n_steps // 2, n_steps]
    assert whole["after"]["loss"] < whole["before"]["loss"]
    assert "is the model to start from" in refusal(
        "adapt", *TINY, "--model", weights[0].parent, "--out", tmp_path / "whole"
    )
    assert whole["after"]["loss"] == pytest.approx(min(point["held_out_loss"] for point in whole["curve"][1:]))


def test_a_model_from_nothing_learns_a_small_corpus_by_heart(config: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("The quick brown fox jumps over the lazy dog near the river bank.\n" * 80)
    # A window has one sentence.
    asked = ("adapt", "--corpus", corpus, "--from-scratch", config, "--max-length", 17, "--device", "cpu")
    asked += ("--learning-rate", "1e-2", "--batch-size", 8)
    found = result_of(tmp_path / "out", *asked, "--epochs", 12)
    assert found["before"]["masked_accuracy"] < 0.3
    assert found["after"]["masked_accuracy"] > 0.7
    assert found["training"]["losses"][-1] < found["training"]["losses"][0] / 4
    assert found["most_frequent_token"]["masked_accuracy"] < found["after"]["masked_accuracy"]
    assert found["model"] is None
    start = tmp_path / "out" / "start" / "model.safetensors"
    first = start.read_bytes()
    shutil.rmtree(start.parent)
    result_of(tmp_path / "out", *asked, "--epochs", 1)
    assert start.read_bytes() == first, "the same seed starts from the same weights"


def test_the_same_texts_give_the_same_tokenizer() -> None:
    texts = PEPS.read_text("utf-8").splitlines()
    one, two = (train_tokenizer(texts, 400) for _ in range(2))
    assert one.backend_tokenizer.to_str() == two.backend_tokenizer.to_str()
    assert len(one) == 400
    assert one.convert_ids_to_tokens([0, 1, 2, 3, 4]) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert one.convert_ids_to_tokens(one("The PEP")["input_ids"]) == ["[CLS]", "the", "pep", "[SEP]"]
    assert one.backend_tokenizer.encode("the", "pep").type_ids == [0, 0, 0, 1, 1]


def test_a_mistake_is_one_line(config: Path, tiny_folder: Path, tmp_path: Path) -> None:
    gpt2 = build_model("gpt2", tmp_path / "gpt2")
    roberta = build_model("roberta", tmp_path / "roberta")
    maskless = shutil.copytree(tiny_folder, tmp_path / "maskless")
    tokenizer = json.loads((build_tokenizer("wordpiece", maskless) / "tokenizer_config.json").read_text())
    del tokenizer["mask_token"]
    (maskless / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    one = tmp_path / "one.jsonl"
    one.write_text('{"text": "one document alone, of some words"}\n')
    short = tmp_path / "short.txt"
    short.write_text("a short text\nanother one\n")
    letters = tmp_path / "letters.txt"
    letters.write_text("a\n" * 40)
    bad = {name: tmp_path / f"{name}.json" for name in ("list", "untyped", "large", "unknown", "heads", "small")}
    texts = ("[]", "{}", '{"model_type": "bert", "vocab_size": "x"}', '{"model_type": "brt"}')
    changed = (json.dumps({**CONFIG, **values}) for values in ({"num_attention_heads": 5}, {"vocab_size": 40}))
    for path, text in zip(bad.values(), (*texts, *changed), strict=True):
        path.write_text(text)
    tiny = ("--model", tiny_folder)
    taken = tmp_path / "taken" / "model"
    taken.mkdir(parents=True)
    (taken / "config.json").write_text("{}")  # a model that another program made
    assert "is there and was not made by a recipe" in refusal(
        "adapt", "--corpus", PEPS, "--model", tiny_folder, "--out", taken.parent
    )
    for asked, message in [
        ((), "pass --model, or --from-scratch with a config.json, and not both"),
        ((*tiny, "--from-scratch", config), "and not both"),
        ((*tiny, "--corpus", short), "tokens to train on are fewer than a window of 64"),
        ((*tiny, "--max-length", 65), "--max-length 65 is more than the 64 tokens that the model takes"),
        ((*tiny, "--max-length", 5), "--max-length 5 leaves 3 tokens beside special ones"),
        ((*tiny, "--corpus", one), "documents of the corpus: 1; at least 1 to train on and 1 to hold out"),
        ((*tiny, "--corpus", letters, "--nsp"), "documents of two words or more: 0; next sentences need 2 to train on"),
        ((*tiny, "--corpus", one, "--nsp"), "documents of the corpus: 1; at least 2 to train on and 2 to hold out"),
        (("--model", gpt2), "transformers has no head for masked words for gpt2"),
        (("--model", maskless), "its tokenizer has no mask token"),
        (("--model", roberta, "--nsp"), "roberta has no head for next sentences; leave out --nsp"),
        (("--from-scratch", bad["list"]), "the JSON is not an object"),
        (("--from-scratch", bad["untyped"]), 'no "model_type"'),
        (("--from-scratch", bad["large"]), "vocab_size is 'x'"),
        (("--from-scratch", bad["unknown"]), "not a config of transformers"),
        (("--from-scratch", bad["heads"]), "not a config of transformers"),
        (("--from-scratch", bad["small"]), "vocab_size is 40, but the letters of the corpus alone make"),
    ]:
        corpus = () if "--corpus" in asked else ("--corpus", PEPS)
        line = refusal("adapt", *corpus, *asked, "--out", tmp_path / "out")
        assert message in line
    assert not list((tmp_path / "out").rglob("*.safetensors"))
