"""Mean vectors of word types: those that polars computes, as a file that is a model again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.exports.word_types import write_word_types
from bertfeat.store.reader import Store
from tests.support.command_line import good, refused
from tests.support.places import ROOT

pytestmark = pytest.mark.numeric

CONLL = ROOT / "examples" / "data" / "wnut17_dev.conll"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Store:
    how = {"model": str(tiny_folder), "levels": "word,sentence", "layers": "2,3", "limit": 60, "shard_bytes": 30_000}
    return bertfeat.extract(CONLL, tmp_path_factory.mktemp("types") / "store", **how)


def read(path: Path) -> tuple[list[str], np.ndarray]:
    header, *lines = path.read_text("utf-8").splitlines()
    rows = [line.split(" ") for line in lines]
    assert header.split() == [str(len(rows)), str(len(rows[0]) - 1)]
    return [word for word, *_ in rows], np.array([values for _, *values in rows], np.float32)


def test_each_type_has_the_mean_of_its_rows(store: Store, tmp_path: Path) -> None:
    assert len(store.manifest.shards) > 1
    words = store.polars("word", ["word"])["word"]
    vectors = store.numpy("word", "layer_03", np.float64)
    for lower, min_count in ((False, 1), (True, 2)):
        name = words.str.to_lowercase() if lower else words
        counted = name.value_counts(name="n").filter(pl.col("n") >= min_count)
        ranked = counted.sort(["n", "word"], descending=[True, False])["word"].to_list()
        settings = {"level": "word", "feature": "layer_03", "lower": lower, "min_count": min_count}
        written = write_word_types(store, tmp_path / f"{lower}.txt", **settings)
        found, means = read(tmp_path / f"{lower}.txt")
        assert found == ranked
        expected = [vectors[(name == word).to_numpy()].mean(axis=0) for word in ranked]
        np.testing.assert_allclose(means, expected, rtol=1e-5, atol=1e-7)
        assert (written.n_types, written.n_rows) == (len(ranked), counted["n"].sum())


def test_the_file_is_a_model(store: Store, tmp_path: Path) -> None:
    flags = ("--level", "word", "--feature", "layer_02", "--json")
    made = good("static", store.path, "-o", tmp_path / "mean.txt", *flags).json
    assert made["n_types"] == store.polars("word", ["word"])["word"].n_unique()
    assert (made["n_rows"], made["feature"], made["dim"]) == (store.n_rows("word"), "layer_02", 32)
    model = {"model": str(tmp_path / "mean.txt"), "levels": "word", "limit": 60}
    static = bertfeat.extract(CONLL, tmp_path / "static", store_dtype="float32", **model)
    assert static.valid("word", "layer_00").all()
    words, means = read(tmp_path / "mean.txt")
    rows = dict(zip(words, means, strict=True))
    expected = np.stack([rows[word] for word in static.polars("word", ["word"])["word"]])
    assert np.array_equal(static.numpy("word", "layer_00"), expected)


def test_mistakes_are_refused(store: Store, tmp_path: Path) -> None:
    out, words = tmp_path / "v.txt", ("--level", "word", "--feature", "layer_03")
    for output, flags, said in (
        (out, ("--level", "word"), "layer_02, layer_03; name one: --feature"),
        (out, ("--level", "sentence", "--feature", "layer_03"), "--level sentence: a row is a whole text"),
        (out, (*words, "--min-count", "999999"), "no type at level word has a vector and 999999 rows"),
        (tmp_path / "v.txt.gz", words, "name a file that ends in .txt or .vec"),
    ):
        assert said in refused("static", store.path, "-o", output, *flags)
        assert not output.exists()
    out.write_text("mine")
    assert "there is a file already" in refused("static", store.path, "-o", out, *words)
    assert out.read_text() == "mine"
