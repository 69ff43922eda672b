"""Pre-training on plain text: masks as in BERT's paper, exact losses, and a recipe that survives a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertfeat
from bertfeat.pipelines._pretraining import Masking, cut_windows, judge, open_masked_model, read_texts, scores_of
from bertfeat.pipelines._training import NO_LABEL, TaskModel, open_task_model
from tests.support.pipeline_runs import kill_at, refusal, result_of, run
from tests.support.places import ROOT

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread", "no_fsync")]

PEPS = ROOT / "examples" / "data" / "peps.txt"
# Documents of two paragraphs.
DOCUMENTS = [PEPS.read_text("utf-8").splitlines()[n : n + 2] for n in range(0, 40, 2)]
TINY = ("--corpus", PEPS, "--limit", 20, "--max-length", 32, "--device", "cpu")


@pytest.fixture(scope="module")
def masked(tiny_folder: Path) -> TaskModel:
    return open_masked_model(str(tiny_folder), 0)


def is_near(share: float, expected: float, n: int) -> bool:
    """Return whether a share of n draws is within five standard deviations."""
    return abs(share - expected) < 5 * (expected * (1 - expected) / n) ** 0.5


def original(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the token ids of a batch before they were masked."""
    return torch.where(batch["labels"] == NO_LABEL, batch["input_ids"], batch["labels"])


@pytest.mark.parametrize("whole_words", [False, True])
def test_masks_are_those_of_the_paper(masked: TaskModel, whole_words: bool) -> None:
    masking, tokenizer = Masking(masked.tokenizer, whole_words=whole_words), masked.tokenizer
    random = np.random.default_rng(1)
    ordinary = [n for n in range(len(tokenizer)) if n not in tokenizer.all_special_ids]
    words = np.cumsum(random.random((200, 120)) < 0.7, axis=1)
    ids = random.choice(ordinary, (200, 120))
    ends = np.full((200, 1), tokenizer.sep_token_id)
    windows = [
        {"input_ids": np.concatenate(row), "words": np.concatenate([*number, [number[0][-1]]])}
        for row, number in zip(zip(ids, ends, strict=True), words[:, None], strict=True)
    ]
    torch.manual_seed(0)
    batch = masking(windows)
    chosen = (batch["labels"] != NO_LABEL).numpy()
    seen = batch["input_ids"].numpy()
    assert not chosen[:, -1].any(), "special tokens are never masked"
    assert (seen[~chosen] == np.hstack([ids, ends])[~chosen]).all()
    assert (original(batch).numpy() == np.hstack([ids, ends])).all()
    is_masked = seen[chosen] == tokenizer.mask_token_id
    assert is_near(chosen[:, :-1].mean(), 0.15, ids.size // 2)
    if whole_words:
        assert is_masked.all()
        for row in range(200):
            inside = chosen[row, :-1]
            assert not set(words[row][inside]) & set(words[row][~inside]), "a word is masked whole"
    else:
        assert is_near(is_masked.mean(), 0.8, len(is_masked))
        assert is_near((seen[chosen] == ids[chosen[:, :-1]]).mean(), 0.1, len(is_masked))


def test_windows_lose_no_text_and_are_full(masked: TaskModel) -> None:
    windows = cut_windows(DOCUMENTS, masked.tokenizer, 32)
    rows = [window["input_ids"].tolist() for window in windows]
    assert {len(row) for row in rows} <= {31, 32}
    first, last = masked.tokenizer.cls_token_id, masked.tokenizer.sep_token_id
    assert {(row[0], row[-1]) for row in rows} == {(first, last)}
    whole = [masked.tokenizer(" ".join(texts), add_special_tokens=False)["input_ids"] for texts in DOCUMENTS]
    joined = [token for document in whole for token in [*document, last]][:-1]
    assert [token for row in rows for token in row[1:-1]] == joined, "documents follow each other after a [SEP]"
    masking = Masking(masked.tokenizer, whole_words=False)
    one, two = masking(windows), masking(windows)
    assert not torch.equal(one["input_ids"], two["input_ids"]), "each step masks other words"
    assert masking.once(windows) == masking.once(windows), "held-out windows are masked always alike"


def test_the_held_out_loss_is_that_of_the_head(masked: TaskModel) -> None:
    masking = Masking(masked.tokenizer, whole_words=False)
    batch = masking(masking.once(cut_windows(DOCUMENTS[:4], masked.tokenizer, 24)))
    with torch.no_grad():
        out = masked.model(**batch)

    class Predicted:
        predictions = judge(out.logits, batch["labels"]).numpy()
        label_ids = batch["labels"].numpy()

    scores = scores_of(Predicted)
    assert scores["loss"] == pytest.approx(float(out.loss), rel=1e-5)
    right = (out.logits.argmax(-1) == batch["labels"])[batch["labels"] != NO_LABEL]
    assert scores["masked_accuracy"] == pytest.approx(float(right.float().mean()))


def test_documents_of_each_format(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one\n\ntwo\n")
    assert read_texts(str(lines)) == [["one"], ["two"]]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"t{n}", "d": n // 2}) + "\n" for n in range(5)))
    assert read_texts(str(rows), document_column="d") == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    words = tmp_path / "words.conll"
    words.write_text("-DOCSTART- O\n\na O\nb O\n\nc O\n\n-DOCSTART- O\n\nd O\n")
    assert read_texts(str(words)) == [["a b", "c"], ["d"]]


def test_a_killed_run_ends_with_the_same_model(tiny_folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    asked = ("adapt", *TINY, "--model", tiny_folder, "--epochs", 2, "--batch-size", 8)
    whole = result_of(tmp_path / "whole", *asked)
    n_steps = whole["training"]["step"]
    assert n_steps > 8
    kill_at(monkeypatch, n_steps // 2 + 2)
    assert run(*asked, "--output", tmp_path / "killed").code == 3
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {".checkpoints"}
    monkeypatch.undo()
    again = result_of(tmp_path / "killed", *asked)
    weights = [tmp_path / name / "model" / "model.safetensors" for name in ("whole", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    for found in (whole, again):
        del found["training"]["seconds"], found["seconds"]
    assert again == whole
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {"curve.png", "curve.svg", "model", "result.json"}
    # The folder is a model: for features, and for its heads.
    assert bertfeat.embed(["a text"], model=str(tmp_path / "whole" / "model")).shape == (1, 32)
    assert open_task_model(str(tmp_path / "whole" / "model"), "masked", trained=True).new_weights == ()
    assert [point["step"] for point in whole["curve"]] == [0, n_steps // 2, n_steps]
    assert whole["after"]["loss"] < whole["before"]["loss"]
    asked = ("adapt", *TINY, "--model", weights[0].parent, "--output", tmp_path / "whole")
    assert "is the model to start from" in refusal(*asked)
    assert whole["after"]["loss"] == pytest.approx(min(point["held_out_loss"] for point in whole["curve"][1:]))


def test_a_model_from_nothing_learns_a_small_corpus_by_heart(tmp_path: Path) -> None:
    sizes = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 32, "hidden_dropout_prob": 0.0}
    corpus, config = tmp_path / "corpus.txt", tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "bert", **sizes}))
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
