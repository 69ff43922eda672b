"""Mistakes in an import: one line that names the file, the place and the remedy, and nothing is written."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertfeat.errors import UserError
from bertfeat.extraction.importing import import_vectors
from bertfeat.progress import Progress
from tests.support.command_line import refused
from tests.support.vector_files import numbers, write_conll, write_npy

pytestmark = pytest.mark.promise("kill-append")

ARRAYS = {
    "v.npy": numbers(3, 2),
    "layers.npy": numbers(4, 3, 2),
    "nan.npy": np.array([[1, 2], [np.nan, 2]]),
    "large.npy": np.array([[70_000.0]]),
    "int.npy": np.arange(6).reshape(3, 2),
    "flat.npy": numbers(4),
}
TEXTS = {
    "text.parquet": "not this\n",
    "empty.npy": "",
    "twice.txt": "a\nb\na\n",
    "index.csv": ",doc_id\n0,a\n",
    "no_id.csv": "id,word\na,x\n",
    "taken.csv": "doc_id,embedding\na,x\nb,y\nc,z\n",
    "order.csv": "doc_id,word_index\na,0\na,0\na,1\n",
    "apart.csv": "doc_id,word_index\na,0\nb,0\na,1\n",
    "types.jsonl": '{"doc_id": 1}\n{"doc_id": "x"}\n',
}
TABLES = {
    "t.parquet": {"v": [[1.0]]},
    "widths.parquet": {"v": [[1.0, 2.0], [3.0]]},
    "nan.parquet": {"v": [[1.0, 2.0], [None, 2.0]]},
    "text.column.parquet": {"text": [[1.0], [2.0]]},
}
SENTENCES = {
    "nan.npy": "nan.npy:2: embedding holds nan; a row without a vector is NaN in all its values",
    "large.npy": "embedding holds 70000, which float16 does not hold; pass --store-dtype float32",
    "int.npy": "int.npy: its values are int64; write float16, float32 or float64",
    "flat.npy": "flat.npy: has shape (4,); it must be (rows, values) or (rows, layers, values)",
    "cut.npy": "cut.npy: cannot be read as .npy",
    "text.parquet": "text.parquet: Parquet that cannot be read",
    "empty.npy": "empty.npy: has no bytes",
    "twice.txt": "ending '.txt' must be one of .npy, .parquet",
    "gone.npy": "gone.npy: no such file",
    "s3://bucket/v.npy": "s3://bucket/v.npy: is an object, which is not read here",
    "layers.npy --vector-column v": "--vector-column does not go with layers.npy (npy); it is for parquet",
    "t.parquet --ids words.conll": "--ids does not go with parquet, whose other columns come along",
    "t.parquet --vector-column w": "t.parquet: no column 'w' with lists of float16, float32 or float64; columns are",
    "widths.parquet": "widths.parquet:2: v has 1 values, rows before have 2; write vectors of one width",
    "nan.parquet": "nan.parquet:2: v holds nan; a row without a vector is NaN in all its values",
    "text.column.parquet": "column 'text' has the name of a column of vectors; rename it",
    "v.npy --ids words.conll": "words.conll: conll has words, and the vectors are of sentences",
    "v.npy --ids twice.txt": "twice.txt:3: id 'a' appears twice, first at row 1",
    "v.npy --ids index.csv": "index.csv: a column has no name; name it, or leave out the index",
    "v.npy --ids taken.csv": "column 'embedding' has the name of a column of vectors",
    "v.npy --ids types.jsonl": "types.jsonl: a column holds values of several types (doc_id: Could not convert 'x'",
}
WORDS = {
    "v.npy": "does not say where texts end, as --level word must know; pass --ids",
    "t.parquet": "t.parquet: no column 'doc_id'",
    "v.npy --ids no_id.csv": "no_id.csv: no column 'doc_id', which tells the words of one text from the next",
    "v.npy --ids order.csv": "order.csv:3: word_index 0 of document 'a' must be above 0",
    "v.npy --ids apart.csv": "apart.csv:4: id 'a' appears twice, first at row 2; make ids",
}


@pytest.mark.parametrize(("level", "mistakes"), [("sentence", SENTENCES), ("word", WORDS)])
def test_a_mistake_is_one_line_and_nothing_is_written(tmp_path, monkeypatch, level, mistakes):
    monkeypatch.chdir(tmp_path)
    for name, array in ARRAYS.items():
        write_npy(tmp_path / name, array)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "v.npy").read_bytes()[:-4])
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    for name, columns in TABLES.items():
        pq.write_table(pa.table(columns), name)
    write_conll(tmp_path / "words.conll")
    for arguments, said in mistakes.items():
        assert said in refused("import", *arguments.split(), "--level", level, "-o", "out"), arguments
        assert not (tmp_path / "out").exists()


def test_a_damaged_file_is_one_line_or_is_read(tmp_path):
    """Bytes that are changed anywhere; a changed value of a vector is not found, nor can it be."""
    path, random, said = write_npy(tmp_path / "v.npy", numbers(4, 3)), np.random.default_rng(7), []
    content = path.read_bytes()
    for _ in range(40):
        changed = bytearray(content)
        for place in random.integers(len(content), size=random.integers(1, 4)):
            changed[place] = random.integers(256)
        path.write_bytes(changed)
        try:
            import_vectors(path, tmp_path / "s", overwrite=True, level="sentence")
        except UserError as error:
            said.append(str(error))
    assert said
    assert not [line for line in said if "\n" in line]


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
