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
COLUMNS = ("--text-column", "question", "--text-pair-column", "paragraph")


def paragraphs_and_questions() -> list[tuple[str, str]]:
    data = json.loads(XQUAD.read_text("utf-8"))["data"]
    paragraphs = [paragraph for article in data for paragraph in article["paragraphs"]]
    return [(paragraph["context"], asked["question"]) for paragraph in paragraphs for asked in paragraph["qas"]]


@pytest.fixture(scope="module")
def belongs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions with the first sentence of their paragraph, or of one from elsewhere."""
    found = paragraphs_and_questions()
    rows = [
        (question, found[number if number % 2 else number - 40][0].split(". ")[0], "yes" if number % 2 else "no")
        for number, (_, question) in enumerate(found)
    ]
    path = tmp_path_factory.mktemp("belongs") / "pairs.csv"
    pl.DataFrame(rows, ["question", "paragraph", "label"], orient="row").write_csv(path)
    return path


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


def test_a_question_and_its_paragraph_are_near(belongs: Path, tmp_path: Path) -> None:
    found = result_of(tmp_path, "sentence_pairs", "--train", belongs, *COLUMNS)
    assert found["n_pairs"] == {"train": 65, "dev": 7, "test": 18}
    rows = {row["features"]: row for row in found["rows"]}
    assert list(rows) == ["cosine", "u, v, |u-v|, u*v", "both texts as one input"]
    assert rows["cosine"]["score"]["accuracy"] > 0.8
    texts = bertfeat.open_store(tmp_path / "features" / "texts")
    frame = pl.read_csv(belongs)
    assert texts.n_rows("sentence") == len({*frame["question"], *frame["paragraph"]}), "each text is encoded once"
    assert rows["cosine"]["n_bytes"] == texts.n_rows("sentence") * 384 * 2
    # Both texts as one input: the vectors are those of the pairs.
    store = bertfeat.open_store(tmp_path / "features" / "test")
    pairs = store.polars("sentence", ["text", "text_pair"]).rows()
    together = bertfeat.embed(pairs)
    assert np.allclose(store.numpy("sentence", "layer_06"), together, rtol=2**-10, atol=1e-3), "stored as float16"
    assert (tmp_path / "table.md").read_text("utf-8").splitlines()[2].startswith("| cosine |")


def test_the_fine_tuned_model_is_one_more_row(belongs: Path, tmp_path: Path) -> None:
    model = build_model("bert", tmp_path / "bert", max_position_embeddings=128)
    asked = ("--model", model, "--with-finetuning", "--epochs", 1, "--limit", 30)
    found = result_of(tmp_path / "out", "sentence_pairs", "--train", belongs, *COLUMNS, *asked)
    row = found["rows"][-1]
    assert row["features"] == "fine-tuned"
    assert row["score"]["n_rows"] == found["n_pairs"]["test"] == 6
    assert bertfeat.embed(["a text"], model=str(tmp_path / "out" / "finetuned" / "model")).shape == (1, 32)
    assert [path.name for path in (tmp_path / "out" / "finetuned").iterdir()] == ["model"]
