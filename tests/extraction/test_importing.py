"""Import of vectors that other programs made: every format gives the rows and vectors of its file."""

from __future__ import annotations

import contextlib
import gzip
import json
import signal
from unittest import mock

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertfeat
from bertfeat.durable import steps
from bertfeat.extraction.importing import import_vectors
from bertfeat.store.verification import verify
from tests.support.command_line import bertfeat as run
from tests.support.command_line import good
from tests.support.drill import orphans, result_files
from tests.support.kills import die_at
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


def test_rows_without_ids_are_numbered(tmp_path):
    vectors = numbers(5, 3)
    store = import_vectors(write_npy(tmp_path / "v.npy", vectors), tmp_path / "s", level="sentence")
    assert store.polars("sentence").columns == ["doc_id", "text", "embedding"]
    assert store.polars("sentence", ["doc_id", "text"]).rows() == [(n, None) for n in range(5)]
    assert np.array_equal(store.numpy("sentence", "embedding"), half(vectors))
    assert len(store) == 5
    assert verify(store.path).is_good
    assert np.array_equal(store.torch("sentence", "embedding").numpy(), half(vectors))
    assert store.scan("sentence").select(pl.len()).collect().item() == 5


@pytest.mark.parametrize("encoding", ["array", "binary"])
def test_a_third_axis_of_npy_is_that_of_layers(tmp_path, encoding):
    vectors = numbers(N_WORDS, 4, 3)
    path = write_npy(tmp_path / "v.npy", np.asfortranarray(vectors.astype(">f8")))
    ids = write_conll(tmp_path / "w.conll")
    settings = {"level": "word", "ids": ids, "store_dtype": "float32", "vector_encoding": encoding}
    store = import_vectors(path, tmp_path / "s", **settings)
    assert [feature.name for feature in store.features("word")] == ["layer_00", "layer_01", "layer_02", "layer_03"]
    assert np.array_equal(store.numpy("word", 1), vectors[:, 1])
    assert np.array_equal(store.numpy("word", -1), vectors[:, 3])
    # Made from layers when it is read, as in any store.
    assert np.array_equal(store.numpy("word", "concat_last4"), vectors.reshape(N_WORDS, 12))


def test_a_corpus_gives_words_tags_and_places(tmp_path):
    vectors = write_npy(tmp_path / "v.npy", numbers(N_WORDS, 3))
    found = import_vectors(vectors, tmp_path / "s", level="word", ids=write_conll(tmp_path / "w.conll"))
    frame = found.polars("word").drop("embedding")
    assert frame.columns == ["doc_id", "word_index", "word", "char_start", "char_end", "column_2", "column_3", "label"]
    assert frame["word"].to_list() == WORDS
    assert frame["doc_id"].to_list() == [n for n, words in enumerate(SENTENCES) for _ in words]
    assert frame["word_index"].to_list() == [n for words in SENTENCES for n in range(len(words))]
    assert frame["char_start"].to_list() == STARTS
    assert frame["label"].to_list() == [f"L{len(word)}" for word in WORDS]
    assert len(found) == len(SENTENCES)


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl", "rows.json", "rows.parquet"])
def test_the_columns_of_a_table_come_along(tmp_path, name):
    vectors = write_npy(tmp_path / "v.npy", numbers(N_WORDS, 3))
    rows = pl.read_ndjson(write_table(tmp_path / "t.jsonl")).with_columns(
        score=pl.int_range(pl.len()) * 1.5, word_index=pl.col("word_index") + 1
    )
    path = tmp_path / name
    {
        ".csv": rows.write_csv,
        ".tsv": lambda p: rows.write_csv(p, separator="\t"),
        ".jsonl": rows.write_ndjson,
        ".json": rows.write_json,
        ".parquet": rows.write_parquet,
    }[path.suffix](path)
    frame = import_vectors(vectors, tmp_path / "s", level="word", ids=path).polars("word").drop("embedding")
    score = rows["score"].cast(pl.String) if path.suffix in (".csv", ".tsv") else rows["score"]
    assert frame.columns == ["doc_id", "word_index", "word", "char_start", "char_end", "label", "score"]
    assert frame.select(rows.columns).equals(rows.with_columns(score, pl.col("word_index").cast(pl.Int32)))
    assert frame["char_start"].to_list() == STARTS


def test_lines_of_ids_are_rows_or_documents(tmp_path):
    vectors = write_npy(tmp_path / "v.npy", numbers(4, 3))
    (tmp_path / "ids.txt").write_text("a\na\nb\nc\n")
    words = import_vectors(vectors, tmp_path / "w", level="word", ids=tmp_path / "ids.txt").polars("word")
    assert words.select("doc_id", "word_index", "word").rows() == [
        ("a", 0, None),
        ("a", 1, None),
        ("b", 0, None),
        ("c", 0, None),
    ]
    with gzip.open(tmp_path / "four.txt.gz", "wt") as file:
        file.write("a\nb\nc\nd\n")
    named = import_vectors(vectors, tmp_path / "s", level="sentence", ids=tmp_path / "four.txt.gz")
    assert named.polars("sentence")["doc_id"].to_list() == list("abcd")


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float16(), 2), pa.large_list(pa.float32())])
def test_a_table_has_vectors_and_all_other_columns(tmp_path, kind):
    vectors = [None, [1.0, 2.0], [3.0, 4.0]]
    days = pa.array([1, 2, 3], pa.timestamp("us", tz="UTC"))
    columns = {"doc_id": list("abc"), "label": ["x", "y", "x"], "tokens": [[1], [2, 3], []], "day": days}
    table = pa.table({**columns, "layer_02": pa.array(vectors, kind), "other": pa.array(vectors, kind)})
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, row_group_size=2)
    store = import_vectors(path, tmp_path / "s", level="sentence")
    assert [feature.name for feature in store.features("sentence")] == ["layer_02", "other"]
    frame = store.polars("sentence")
    assert frame["label"].to_list() == ["x", "y", "x"]
    assert frame["tokens"].to_list() == [[1], [2, 3], []]
    assert frame["day"].dtype == pl.Datetime("us", "UTC")
    assert store.valid("sentence", "other").tolist() == [False, True, True]
    assert store.numpy("sentence", 2)[1:].tolist() == [[1, 2], [3, 4]]
    one = import_vectors(path, tmp_path / "one", level="sentence", vector_columns="other")
    assert [feature.name for feature in one.features("sentence")] == ["other"]
    assert "layer_02" in one.columns("sentence")


@pytest.mark.parametrize("known", [["doc_id", "word"], ["doc_id"]])
def test_a_table_of_vectors_has_the_words_of_several_texts(tmp_path, known):
    """Row groups, shards and texts end at different rows."""
    vectors = numbers(N_WORDS, 3)
    rows = pl.read_ndjson(write_table(tmp_path / "t.jsonl"))
    path = tmp_path / "t.parquet"
    rows.select(known).with_columns(v=pl.Series(vectors, dtype=pl.Array(pl.Float32, 3))).write_parquet(
        path, row_group_size=2
    )
    for size, n_shards in (("1MB", 1), (1, len(SENTENCES))):
        store = import_vectors(path, tmp_path / str(size), level="word", shard_bytes=size)
        assert len(store.plan.shards) == n_shards
        frame = store.polars("word")
        assert frame["doc_id"].to_list() == rows["doc_id"].to_list()
        assert frame["word_index"].to_list() == rows["word_index"].to_list()
        assert frame["word"].to_list() == (WORDS if "word" in known else [None] * N_WORDS)
        assert frame["char_start"].to_list() == (STARTS if "word" in known else [None] * N_WORDS)
        assert np.array_equal(store.numpy("word", "v"), half(vectors))


def test_a_row_of_nan_has_no_vector(tmp_path):
    vectors = numbers(4, 2, 3)
    vectors[2] = np.nan
    store = import_vectors(write_npy(tmp_path / "v.npy", vectors), tmp_path / "s", level="sentence")
    assert store.valid("sentence", 1).tolist() == [True, True, False, True]
    assert verify(store.path).is_good


def test_the_store_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_npy(tmp_path / "v.npy", numbers(N_WORDS, 3))
    write_table(tmp_path / "t.csv")
    said = good("import", "v.npy", "-o", "s", "--level", "word", "--ids", "t.csv", "--model", "glove").out
    assert "word 11" in said
    shown = good("inspect", "s").out
    metadata = json.loads((tmp_path / "s/manifests/00000.json").read_text())["metadata"]
    for words in ("v.npy", metadata["imported"][0]["sha256"], "glove", "t.csv"):
        assert words in shown
    again = good("import", "v.npy", "-o", "s", "--level", "word", "--ids", "t.csv", "--model", "glove", "--json").json
    assert again["was_complete"]
    assert again["metadata"]["imported"][1]["file"] == "t.csv"
    assert (
        "already complete"
        in good("import", "v.npy", "-o", "s", "--level", "word", "--ids", "t.csv", "--model=glove").out
    )


def many(folder, n_rows=60):
    """Return the arguments of an import of four shards."""
    vectors = write_npy(folder / "v.npy", numbers(n_rows, 2, 8))
    (folder / "t.csv").write_text("doc_id,label\n" + "".join(f"d{n},{n % 3}\n" for n in range(n_rows)))
    return {"path": str(vectors), "level": "sentence", "ids": str(folder / "t.csv"), "shard_bytes": 1100}


class Stopped(BaseException):
    """The end of a run at a step."""


def stopped_at(step, root, arguments):
    n_passed = 0

    def hook(name):
        nonlocal n_passed
        n_passed += 1
        if n_passed == step:
            raise Stopped

    with mock.patch.object(steps, "hook", hook), contextlib.suppress(Stopped):
        import_vectors(output=root, **arguments)


def killed_at(step, root, arguments):
    die_at(step)
    import_vectors(output=root, **arguments)


def check_resumed(folder, arguments, stop, every):
    """Stop an import at each of its steps, or some; each time, the same call finishes it with the same bytes."""
    passed: list[str] = []
    with mock.patch.object(steps, "hook", passed.append):
        store = import_vectors(output=folder / "whole", **arguments)
    whole = result_files(store.path)
    assert len(store.plan.shards) == 4
    points = range(1, len(passed) + 1, every)
    assert {passed[point - 1].split(".")[0] for point in points} >= {"plan", "part", "receipt", "manifest"}
    for point in points:
        root = folder / f"stopped-{point}"
        stop(point, str(root), arguments)
        assert result_files(root).items() <= whole.items()
        import_vectors(output=root, **arguments)
        assert result_files(root) == whole, passed[point - 1]
        assert orphans(root) == []


@pytest.mark.usefixtures("no_fsync")
def test_a_stop_at_a_step_and_then_a_run_gives_the_same_bytes(tmp_path):
    check_resumed(tmp_path, many(tmp_path), stopped_at, 3)


@pytest.mark.long
@pytest.mark.usefixtures("no_fsync")
def test_a_kill_at_any_step_and_then_a_run_gives_the_same_bytes(tmp_path, warm):
    def kill(point, root, arguments):
        assert warm.run(killed_at, point, root, arguments) == -signal.SIGKILL

    check_resumed(tmp_path, many(tmp_path), kill, 1)


def test_damage_is_found_and_repaired_and_parts_are_joined(tmp_path):
    arguments = many(tmp_path)
    store = import_vectors(output=tmp_path / "s", **arguments)
    whole = result_files(store.path)
    part = tmp_path / "s" / store.parts("sentence")[2].path
    part.write_bytes(part.read_bytes()[:-9])
    found = run("verify", tmp_path / "s")
    assert found.code == 1
    assert "again to redo 1 shard" in found.err
    import_vectors(output=tmp_path / "s", **arguments)
    assert result_files(tmp_path / "s") == whole
    rows = store.polars("sentence")
    small = bertfeat.compact(tmp_path / "s", shard_bytes="1MB")
    assert len(small.plan.shards) == 1
    assert small.polars("sentence").equals(rows)
    assert "v.npy" in good("inspect", tmp_path / "s").out
