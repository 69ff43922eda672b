"""The recipe for pairs of sentences: features of two vectors, of both texts at once, and the fine-tuned model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.pipelines._finetuning import fit_and_score
from bertfeat.pipelines.sentence_pairs import combine, cosine
from tests.support.families import build_model
from tests.support.pipeline_runs import result_of
from tests.support.places import TESTS

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread", "no_fsync")]

XQUAD = TESTS / "data" / "xquad_en" / "xquad.en.json"
SIZES = {"train": 300, "dev": 50, "test": 50}


def test_features_of_two_vectors() -> None:
    first = np.array([[1.0, -2.0], [0.0, 0.0]], np.float32)
    second = np.array([[3.0, 1.0], [1.0, 1.0]], np.float32)
    assert combine(first, second).tolist() == [[1, -2, 3, 1, 2, 3, 3, -2], [0, 0, 1, 1, 1, 1, 0, 0]]
    expected = [1 / (5**0.5 * 10**0.5), 0]
    assert cosine(first, second)[:, 0].tolist() == pytest.approx(expected)


def test_heads_learn_classes_and_quantities() -> None:
    random = np.random.default_rng(0)
    vectors = {split: random.standard_normal((n, 8)).astype(np.float32) for split, n in SIZES.items()}
    quantities = {split: X[:, 0].astype(np.float64) * 2 + 1 for split, X in vectors.items()}
    head, scores = fit_and_score(vectors, quantities)
    assert head["head"] == "ridge"
    assert scores["test"].value > 0.99
    classes = {split: np.where(X[:, 1] > 0, "b", "a") for split, X in vectors.items()}
    head, scores = fit_and_score(vectors, classes)
    assert head["head"] == "logreg"
    assert scores["test"].value > 0.9


def test_each_way_to_compare_pairs_is_a_row(tmp_path: Path) -> None:
    model = build_model("bert", tmp_path / "bert", max_position_embeddings=128)
    articles = json.loads(XQUAD.read_text("utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    rows = [
        (asked["question"], paragraphs[number - number % 2]["context"].split(". ")[0], "no" if number % 2 else "yes")
        for number, paragraph in enumerate(paragraphs)
        for asked in paragraph["qas"]
    ]
    frame = pl.DataFrame(rows, ["question", "paragraph", "label"], orient="row")
    frame.write_csv(tmp_path / "pairs.csv")
    asked = ("--text-column", "question", "--text-pair-column", "paragraph", "--model", model)
    asked += ("--train", tmp_path / "pairs.csv", "--with-finetuning", "--epochs", 1)
    found = result_of(tmp_path / "out", "sentence_pairs", *asked)
    assert found["n_pairs"] == {"train": 65, "dev": 7, "test": 18}
    by_name = {row["features"]: row for row in found["rows"]}
    assert list(by_name) == ["cosine", "u, v, |u-v|, u*v", "both texts as one input", "fine-tuned"]
    assert {row["score"]["n_rows"] for row in found["rows"]} == {18}
    texts = bertfeat.open_store(tmp_path / "out" / "features" / "texts")
    assert texts.n_rows("sentence") == len({*frame["question"], *frame["paragraph"]}), "each text is encoded once"
    assert by_name["cosine"]["n_bytes"] == texts.n_rows("sentence") * 32 * 2
    # Both texts as one input: the vectors are those of the pairs.
    store = bertfeat.open_store(tmp_path / "out" / "features" / "test")
    together = bertfeat.embed(store.polars("sentence", ["text", "text_pair"]).rows(), model=str(model))
    stored = store.numpy("sentence", store.features("sentence")[0].name)
    assert np.allclose(stored, together, rtol=2**-10, atol=1e-3), "stored as float16"
    assert bertfeat.embed(["a text"], model=str(tmp_path / "out" / "finetuned" / "model")).shape == (1, 32)
