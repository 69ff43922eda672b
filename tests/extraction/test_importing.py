"""Import of vectors that other programs made: every format gives the rows and vectors of its file."""

from __future__ import annotations

import gzip
import signal
from unittest import mock

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertfeat.durable import steps
from bertfeat.extraction.importing import import_vectors
from bertfeat.store.verification import verify
from tests.support.command_line import good
from tests.support.drill import orphans, result_files
from tests.support.runner_fakes import die_at
from tests.support.vector_files import (
    N_WORDS,
    SENTENCES,
    numbers,
    write_conll,
    write_npy,
    write_table,
)

WORDS = [word for words in SENTENCES for word in words]
STARTS = [0, 4, 9, 0, 3, 0, 3, 11, 15, 20, 0]


def half(array):
    """Return values as a store of float16 holds them."""
    return np.asarray(array).astype(np.float16)


def test_rows_without_ids_are_numbered_and_a_row_of_nan_has_no_vector(tmp_path):
    vectors = numbers(5, 3)
    vectors[2] = np.nan
    store = import_vectors(write_npy(tmp_path / "v.npy", vectors), tmp_path / "s", level="sentence")
    assert store.polars("sentence", ["doc_id", "text"]).rows() == [(n, None) for n in range(5)]
    assert store.valid("sentence", "embedding").tolist() == [True, True, False, True, True]
    assert np.array_equal(store.numpy("sentence", "embedding"), half(vectors), equal_nan=True)
    assert verify(store.path).is_good


def test_a_third_axis_of_npy_is_that_of_layers_and_a_corpus_gives_words_and_tags(tmp_path):
    vectors = numbers(N_WORDS, 4, 3)
    path = write_npy(tmp_path / "v.npy", np.asfortranarray(vectors.astype(">f8")))
    settings = {"level": "word", "ids": write_conll(tmp_path / "w.conll"), "store_dtype": "float32"}
    store = import_vectors(path, tmp_path / "s", **settings)
    assert [feature.name for feature in store.features("word")] == ["layer_00", "layer_01", "layer_02", "layer_03"]
    assert np.array_equal(store.numpy("word", 1), vectors[:, 1])
    # Made from layers when it is read, as in any store.
    assert np.array_equal(store.numpy("word", "concat_last4"), vectors.reshape(N_WORDS, 12))
    columns = ["doc_id", "word_index", "word", "char_start", "label"]
    places = [(n, place, word) for n, words in enumerate(SENTENCES) for place, word in enumerate(words)]
    expected = [(*place, start, f"L{len(place[2])}") for place, start in zip(places, STARTS, strict=True)]
    assert store.polars("word", columns).rows() == expected


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.tsv", lambda frame, path: frame.write_csv(path, separator="\t")),
        ("rows.jsonl", pl.DataFrame.write_ndjson),
        ("rows.json", pl.DataFrame.write_json),
        ("rows.parquet", pl.DataFrame.write_parquet),
    ],
)
def test_the_columns_of_a_table_come_along(tmp_path, name, write):
    vectors = write_npy(tmp_path / "v.npy", numbers(N_WORDS, 3))
    rows = pl.read_ndjson(write_table(tmp_path / "t.jsonl")).with_columns(
        pl.col("word_index").cast(pl.Int32) + 1, score=pl.int_range(pl.len()) * 1.5
    )
    write(rows, tmp_path / name)
    frame = import_vectors(vectors, tmp_path / "s", level="word", ids=tmp_path / name).polars("word").drop("embedding")
    if name == "rows.tsv":
        rows = rows.with_columns(pl.col("score").cast(pl.String))
    assert frame.columns == ["doc_id", "word_index", "word", "char_start", "char_end", "label", "score"]
    assert frame.select(rows.columns).equals(rows)
    assert frame["char_start"].to_list() == STARTS


def test_lines_of_ids_are_rows_or_documents(tmp_path):
    vectors = write_npy(tmp_path / "v.npy", numbers(4, 3))
    with gzip.open(tmp_path / "ids.txt.gz", "wt") as file:
        file.write("a\na\nb\nc\n")
    words = import_vectors(vectors, tmp_path / "w", level="word", ids=tmp_path / "ids.txt.gz").polars("word")
    assert words.select("doc_id", "word_index").rows() == [("a", 0), ("a", 1), ("b", 0), ("c", 0)]
    (tmp_path / "ids.txt").write_text("a\nb\nc\nd\n")
    named = import_vectors(vectors, tmp_path / "s", level="sentence", ids=tmp_path / "ids.txt")
    assert named.polars("sentence")["doc_id"].to_list() == list("abcd")


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float16(), 2)])
def test_a_table_has_vectors_and_all_other_columns(tmp_path, kind):
    vectors = pa.array([None, [1.0, 2.0], [3.0, 4.0]], kind)
    columns = {"doc_id": list("abc"), "label": ["x", "y", "x"], "tokens": [[1], [2, 3], []]}
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({**columns, "layer_02": vectors, "other": vectors}), path, row_group_size=2)
    store = import_vectors(path, tmp_path / "s", level="sentence")
    assert [feature.name for feature in store.features("sentence")] == ["layer_02", "other"]
    assert store.polars("sentence", list(columns)).to_dict(as_series=False) == columns
    assert store.valid("sentence", "other").tolist() == [False, True, True]
    assert store.numpy("sentence", 2)[1:].tolist() == [[1, 2], [3, 4]]
    one = import_vectors(path, tmp_path / "one", level="sentence", vector_columns="other")
    assert [feature.name for feature in one.features("sentence")] == ["other"]
    assert "layer_02" in one.columns("sentence")


def test_a_table_of_vectors_has_the_words_of_several_texts(tmp_path):
    """Row groups, shards and texts end at different rows."""
    vectors = numbers(N_WORDS, 3)
    rows = pl.read_ndjson(write_table(tmp_path / "t.jsonl"))
    column = pl.Series("v", vectors, dtype=pl.Array(pl.Float32, 3))
    rows.select("doc_id", "word", column).write_parquet(tmp_path / "t.parquet", row_group_size=2)
    store = import_vectors(tmp_path / "t.parquet", tmp_path / "s", level="word", shard_bytes=1)
    assert len(store.plan.shards) == len(SENTENCES)
    frame = store.polars("word")
    for name in ("doc_id", "word_index", "word"):
        assert frame[name].to_list() == rows[name].to_list()
    assert frame["char_start"].to_list() == STARTS
    assert np.array_equal(store.numpy("word", "v"), half(vectors))


def test_the_store_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_npy(tmp_path / "v.npy", numbers(N_WORDS, 3))
    write_table(tmp_path / "t.csv")
    command = ("import", "v.npy", "-o", "s", "--level", "word", "--ids", "t.csv", "--model", "glove")
    assert "word 11" in good(*command).out
    shown = good("inspect", "s").out
    for words in ("v.npy", "glove", "t.csv"):
        assert words in shown


def import_killed_at(step, root, arguments):
    die_at(step)
    import_vectors(output=root, **arguments)


@pytest.mark.promise("kill-append")
@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_at_every_step_and_then_a_run_gives_the_same_bytes(tmp_path, warm, every):
    (tmp_path / "t.csv").write_text("doc_id,label\n" + "".join(f"d{n},{n % 3}\n" for n in range(60)))
    vectors = write_npy(tmp_path / "v.npy", numbers(60, 2, 8))
    arguments = {"path": str(vectors), "level": "sentence", "ids": str(tmp_path / "t.csv"), "shard_bytes": 1100}
    passed: list[str] = []
    with mock.patch.object(steps, "hook", passed.append):
        store = import_vectors(output=tmp_path / "whole", **arguments)
    whole = result_files(store.path)
    assert len(store.plan.shards) == 4
    points = range(1, len(passed) + 1, every)
    assert {passed[point - 1].split(".")[0] for point in points} >= {"plan", "part", "receipt", "manifest"}
    for point in points:
        root = tmp_path / f"killed-{point}"
        assert warm.run(import_killed_at, point, str(root), arguments) == -signal.SIGKILL
        assert result_files(root).items() <= whole.items()
        import_vectors(output=root, **arguments)
        assert result_files(root) == whole, passed[point - 1]
        assert orphans(root) == []
