"""Mistakes in an import: one line that names the file, the place and the remedy, and nothing is written."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertfeat.errors import UserError
from bertfeat.extraction.importing import import_vectors
from bertfeat.progress import Progress
from tests.support.command_line import refused
from tests.support.vector_files import (
    numbers,
    write_conll,
    write_npy,
)

S, W = ("--level", "sentence"), ("--level", "word")


def refuse(folder, *arguments):
    line = refused("import", *arguments, "-o", folder / "out")
    assert not (folder / "out").exists()
    return line.removeprefix("bertfeat: ").replace(f"{folder}/", "")


def bad(value, row=3, n_rows=6):
    array = numbers(n_rows, 4).astype(np.float64)
    array[row, 2] = value
    return array


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (bad(np.nan), "v.npy:4: embedding holds nan; a row without a vector is NaN in all its"),
        (bad(-np.inf), "v.npy:4: embedding holds -inf"),
        (bad(70_000), "embedding holds 70000, which float16 does not hold; pass --store-dtype float32"),
        (np.arange(6).reshape(3, 2), "v.npy: its values are int64; write float16, float32 or float64"),
        (numbers(4), "v.npy: has shape (4,); it must be (rows, values) or (rows, layers, values)"),
        (numbers(0, 4), "v.npy: has shape (0, 4); it must be (rows, values) or (rows, layers, values), with at least"),
        (numbers(4, 0, 2), "v.npy: has shape (4, 0, 2); it must be"),
    ],
)
def test_values_that_are_no_vectors(tmp_path, array, said):
    assert said in refuse(tmp_path, write_npy(tmp_path / "v.npy", array), *S)


def test_files_that_are_not_what_their_name_says(tmp_path):
    write_npy(tmp_path / "object.npy", np.array([{}], dtype=object))
    (tmp_path / "cut.npy").write_bytes(write_npy(tmp_path / "v.npy", numbers(9, 9)).read_bytes()[:-100])
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "a.npz", a=numbers(2, 2))
    np.savez(tmp_path / "zip.npy", a=numbers(2, 2))
    (tmp_path / "zip.npy.npz").rename(tmp_path / "zip.npy")
    for name in ("x.parquet", "x.npy", "x.jsonl", "x.hdf5"):
        (tmp_path / name).write_text("not this\n")
    (tmp_path / "v.npy.gz").write_bytes(b"x")
    for name, said in {
        "object.npy": "cannot be read as .npy",
        "cut.npy": "cannot be read as .npy",
        "empty.npy": "has no bytes",
        "a.npz": "ending '.npz' must be one of .npy, .parquet; convert the file",
        "zip.npy": "cannot be read as .npy",
        "x.npy": "cannot be read as .npy",
        "x.parquet": "Parquet that cannot be read",
        "x.jsonl": "ending '.jsonl' must be one of .npy, .parquet",
        "x.hdf5": "recipes make a .parquet of ELMo's .hdf5",
        "v.npy.gz": "ending '.gz' must be one of .npy, .parquet",
        "none.npy": "no such file",
        ".": "is a folder",
    }.items():
        assert said in refuse(tmp_path, tmp_path / name, *S), name


def test_settings_that_do_not_go_together(tmp_path):
    npy = write_npy(tmp_path / "v.npy", numbers(4, 3, 2))
    ids = write_conll(tmp_path / "w.conll")
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table({"doc_id": ["a"], "v": [[1.0]]}), table)
    for arguments, said in {
        (npy, "--level", "token"): "--level 'token' must be one of word, sentence",
        (npy, *W): "does not say where texts end, as --level word must know; pass --ids",
        (npy, *S, "--ids", ids): "w.conll: conll has words, and the vectors are of sentences",
        (npy, *S, "--vector-column", "v"): "--vector-column does not go with v.npy (npy); it is for parquet",
        (npy, *S, "--model", " "): "--model ' ' must be a name",
        (table, *S, "--ids", ids): "--ids does not go with parquet, whose other columns come along",
        (
            table,
            *S,
            "--vector-column",
            "w",
        ): "t.parquet: no column 'w' with lists of float16, float32 or float64; columns are",
        (
            table,
            *S,
            "--vector-column",
            "doc_id",
        ): "no column 'doc_id' with lists of float16, float32 or float64; columns are doc_id (str",
        (npy, *S, "--ids", tmp_path / "rows.xlsx"): "rows.xlsx: no such file",
        ("s3://bucket/v.npy", *S): "s3://bucket/v.npy: is an object, which is not read here",
    }.items():
        assert said in refuse(tmp_path, *arguments), said


@pytest.mark.parametrize(
    ("name", "text", "level", "said"),
    [
        ("i.txt", "a\nb\na\n", S, "i.txt:3: id 'a' appears twice, first at row 1"),
        ("i.txt", "a\nb\na\n", W, "i.txt:3: id 'a' appears twice"),
        ("i.txt", "a\nb\n", S, "v.npy: has 3 vectors, and i.txt has 2 rows; one vector per row"),
        ("i.txt", "a\nb\nc\nd\n", S, "v.npy: has 3 vectors, and i.txt has 4 rows"),
        ("i.csv", "doc_id,x\na,1\nb\n", S, "i.csv:3: has 1 fields where the first row has 2"),
        ("i.csv", "doc_id,x\n1,1\n1,2\n3,3\n", S, "i.csv:3: id '1' appears twice, first at row 2"),
        ("i.csv", "doc_id,doc_id\n", S, "i.csv: two columns are named 'doc_id'"),
        ("i.csv", "id,word\na,x\n", W, "i.csv: no column 'doc_id', which tells the words of one text from the next"),
        ("i.csv", "doc_id,embedding\na,x\nb,y\nc,z\n", S, "column 'embedding' has the name of a column of vectors"),
        ("i.csv", "doc_id,word_index\na,0\na,0\na,1\n", W, "i.csv:3: word_index 0 of document 'a' must be above 0"),
        ("i.csv", "doc_id,word_index\na,-1\n", W, "i.csv:2: word_index -1 of document 'a' must be above -1"),
        (
            "i.csv",
            "doc_id,word_index\na,x\n",
            W,
            "i.csv: column 'word_index' is not int32 (Failed to parse string: 'x'",
        ),
        ("i.csv", "doc_id,word_index\na,0\nb,0\na,1\n", W, "i.csv:4: id 'a' appears twice, first at row 2; make ids"),
        ("i.jsonl", '{"doc_id": 1}\n{"doc_id": null}\n', S, "i.jsonl:2: doc_id is null; give each row one"),
        (
            "i.jsonl",
            '{"doc_id": 1}\n{"doc_id": "x"}\n',
            S,
            "i.jsonl: a column holds values of several types (doc_id: Could not convert 'x'",
        ),
        ("i.jsonl", '{"doc_id": 1.5}\n', S, "i.jsonl: column 'doc_id' is double; write whole numbers or texts"),
        (
            "i.jsonl",
            '{"doc_id": 1, "x": [1]}\n',
            S,
            "i.jsonl: column 'x' holds lists or objects; keep plain values only",
        ),
        (
            "i.jsonl",
            '{"doc_id": 36893488147419103232}\n',
            S,
            "i.jsonl: a column holds values of several types (doc_id: Python int too large",
        ),
        ("i.jsonl", '{"doc_id": 1}\n[]\n', S, "i.jsonl:2: the row holds a list, not an object"),
        ("i.xls", "x", S, "i.xls: ending '.xls' names no format; save it as one of .txt, "),
        ("i.conll", "a\tB\nb\n", W, "i.conll:1: line 2 has 1 columns where the file has 2"),
    ],
)
def test_ids_that_cannot_be_used(tmp_path, name, text, level, said):
    (tmp_path / name).write_text(text)
    npy = write_npy(tmp_path / "v.npy", numbers(3, 2))
    assert said in refuse(tmp_path, npy, *level, "--ids", tmp_path / name)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"v": [[1.0, 2.0], [3.0]]}, "t.parquet:2: v has 1 values, rows before have 2; write vectors of one width"),
        ({"v": [[1.0, 2.0], [None, 2.0]]}, "t.parquet:2: v holds nan; a row without a vector is NaN in all its values"),
        ({"v": [[1.0, 2.0], [1.0, float("nan")]]}, "t.parquet:2: v holds nan"),
        ({"v": [[1.0], None], "w": [[1.0], [float("inf")]]}, "t.parquet:2: v holds nan"),
        (
            {"v": [[1, 2], [3, 4]]},
            "t.parquet: no column with lists of float16, float32 or float64; columns are v (list",
        ),
        ({"v": [[], []]}, "no column with lists of float"),
        ({"doc_id": ["a", "a"], "v": [[1.0], [2.0]]}, "t.parquet:2: id 'a' appears twice"),
        (pa.table([[[1.0]], [[2.0]]], names=["v", "v"]), "t.parquet: two columns are named 'v'; rename one"),
        ({"text": [[1.0], [2.0]]}, "column 'text' has the name of a column of vectors; rename it"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, columns, said):
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), tmp_path / "t.parquet")
    assert said in refuse(tmp_path, tmp_path / "t.parquet", *S)


def error_of(path, output, **settings):
    """Return what an import refuses; an empty text if it refuses nothing."""
    try:
        import_vectors(path, output, overwrite=True, **settings)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["v.npy", "t.parquet"])
def test_a_damaged_file_is_one_line_or_is_read(tmp_path, name):
    """Bytes that are changed anywhere; a changed value of a vector is not found, nor can it be."""
    path = tmp_path / name
    if name == "v.npy":
        write_npy(path, numbers(4, 3))
    else:
        frame = {"doc_id": ["a", "b"], "v": [[1.0, 2.0], [3.0, 4.0]]}
        pl.DataFrame(frame, schema_overrides={"v": pl.Array(pl.Float32, 2)}).write_parquet(path)
    content, random = path.read_bytes(), np.random.default_rng(7)
    n_refused = 0
    for _ in range(40):
        changed = bytearray(content)
        for place in random.integers(len(content), size=random.integers(1, 4)):
            changed[place] = random.integers(256)
        path.write_bytes(changed)
        said = error_of(path, tmp_path / "s", level="sentence")
        n_refused += bool(said)
        assert "\n" not in said
    assert n_refused


def test_a_file_that_changes_after_its_check_is_not_written(tmp_path):
    path = write_npy(tmp_path / "v.npy", numbers(60, 8))
    settings = {"level": "sentence", "shard_bytes": 400}

    class Writing(Progress):
        def committed(self, receipt):
            if receipt.shard == 0:
                write_npy(path, numbers(61, 8, seed=1))

    with pytest.raises(UserError, match=r"v\.npy: has changed since it was checked; pass `overwrite`"):
        import_vectors(path, tmp_path / "s", progress=Writing(), **settings)
    with pytest.raises(UserError, match=r"v\.npy has changed since the store was made"):
        import_vectors(path, tmp_path / "s", **settings)
    # The bytes that were checked are there again: the import is resumed.
    vectors = numbers(60, 8)
    store = import_vectors(write_npy(path, vectors), tmp_path / "s", **settings)
    assert np.array_equal(store.numpy("sentence", "embedding"), vectors.astype(np.float16))
