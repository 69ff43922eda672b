"""Mean vectors of word types: those that polars computes, as a file that is a model again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.exports import word_types
from bertfeat.exports.word_types import write_word_types
from bertfeat.store.reader import Store
from tests.support.command_line import good, refused
from tests.support.places import ROOT

pytestmark = pytest.mark.numeric

CONLL = ROOT / "examples" / "data" / "wnut17_dev.conll"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("types") / "store"
    return bertfeat.extract(CONLL, path, levels="token,word,sentence", layers="2,3", limit=60, shard_bytes=300_000)


def read(path: Path) -> tuple[list[str], np.ndarray]:
    header, *lines = path.read_text("utf-8").splitlines()
    rows = [line.split(" ") for line in lines]
    assert header.split() == [str(len(rows)), str(len(rows[0]) - 1)]
    return [word for word, *_ in rows], np.array([values for _, *values in rows], np.float32)


def test_each_type_has_the_mean_of_its_rows(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert written.n_rare == name.n_unique() - len(ranked)
        assert written.n_bytes == (tmp_path / f"{lower}.txt").stat().st_size
        # The same bytes again, however the rows are read.
        monkeypatch.setattr(word_types, "_LINES_AT_ONCE", 7)
        write_word_types(store, tmp_path / "again.txt", overwrite=True, **settings)
        assert (tmp_path / "again.txt").read_bytes() == (tmp_path / f"{lower}.txt").read_bytes()


def test_the_file_is_a_model(store: Store, tmp_path: Path) -> None:
    flags = ("--level", "word", "--feature", "layer_02", "--json")
    made = good("static", store.path, "-o", tmp_path / "mean.txt", *flags).json
    assert made["n_types"] == store.polars("word", ["word"])["word"].n_unique()
    assert (made["n_rows"], made["feature"], made["dim"]) == (store.n_rows("word"), "layer_02", 384)
    model = {"model": str(tmp_path / "mean.txt"), "levels": "word", "limit": 60}
    static = bertfeat.extract(CONLL, tmp_path / "static", store_dtype="float32", **model)
    assert static.valid("word", "layer_00").all()
    words, means = read(tmp_path / "mean.txt")
    rows = dict(zip(words, means, strict=True))
    expected = np.stack([rows[word] for word in static.polars("word", ["word"])["word"]])
    assert np.array_equal(static.numpy("word", "layer_00"), expected)
    probe = bertfeat.fit_probe(static, "label", level="word", head="logreg", max_iter=20)
    assert 0.5 < probe.score(static, bootstrap=False).scores.accuracy <= 1
    # Rows without a vector do not count.
    (tmp_path / "one.txt").write_text("1 2\nthe 1 2\n")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the bank\nthe\n")
    few = bertfeat.extract(corpus, tmp_path / "few", model=str(tmp_path / "one.txt"), levels="word")
    found = good("static", few.path, "-o", tmp_path / "few.txt", "--json").json
    assert (found["n_types"], found["n_rows"], found["n_without_vector"]) == (1, 2, 1)
    assert (tmp_path / "few.txt").read_text() == "1 2\nthe 1 2\n"


def test_mistakes_are_refused(store: Store, tmp_path: Path) -> None:
    out, words = tmp_path / "v.txt", ("--level", "word", "--feature", "layer_03")
    (tmp_path / "ids.jsonl").write_text('{"doc_id": "a", "word": "the"}\n{"doc_id": "a"}\n{"doc_id": "b"}\n')
    np.save(tmp_path / "v.npy", np.eye(3, dtype=np.float32))
    nameless = bertfeat.import_vectors(tmp_path / "v.npy", tmp_path / "s", level="word", ids=tmp_path / "ids.jsonl")
    for made, output, flags, said in (
        (store, out, ("--level", "word"), "layer_02, layer_03; name one: --feature"),
        (store, out, ("--level", "sentence", "--feature", "layer_03"), "--level sentence: a row is a whole text"),
        (store, out, (*words, "--min-count", "999999"), "no type at level word has a vector and 999999 rows"),
        (store, tmp_path / "v.txt.gz", words, "name a file that ends in .txt or .vec"),
        (nameless, out, (), "s: row 1 of level word has no word; import the vectors with words"),
    ):
        assert said in refused("static", made.path, "-o", output, *flags)
        assert not output.exists()
    out.write_text("mine")
    assert "there is a file already" in refused("static", store.path, "-o", out, *words)
    assert out.read_text() == "mine"
    tokens = ("--overwrite", "--level", "token", "--feature", "layer_03")
    assert "types" in good("static", store.path, "-o", out, *tokens).out
