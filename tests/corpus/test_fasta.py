"""FASTA: ids, descriptions and sequences, records that cannot be read, and slices of a file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from bertfeat.errors import InputError
from bertfeat.search.query_files import QueryFile
from tests.support.corpus_files import bad_rows, compress, documents, open_corpus, plan, write

RECORDS = """; a comment of old files

>sp|P1|ONE First  protein, of two lines
MKT AYI
; another comment
akqr*\r
>two\tSecond
U-.O\tBZX

> three
\tacgtn
"""


@pytest.mark.parametrize("name", ["a.fasta", "a.fa.gz", "a.faa.zst", "a.FNA"])
def test_a_record_is_a_document(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, compress(RECORDS.encode(), name.rpartition(".")[2]))
    found = documents(path, id_column="id", keep_columns="description", levels="sentence")
    assert [(document.doc_id, document.kept["description"], document.text, document.row) for document in found] == [
        ("sp|P1|ONE", "First  protein, of two lines", "MKTAYIakqr*", 3),
        ("two", "Second", "U-.OBZX", 7),
        ("three", "", "acgtn", 10),
    ]


@pytest.mark.promise("rows")
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"MKV\nAYI\n", "the sequence has no header; write a line '>ID' before it"),
        (b">\nMKV\n", "the header has no id; write '>ID'"),
        (b">b only a header\n \n", "'b' has no sequence; write it in the lines after the header"),
        (b">b\nMK\xffV\n", "byte 0xff at position 2 is not UTF-8"),
    ],
)
def test_bad_records_say_why(tmp_path: Path, record: bytes, reason: str) -> None:
    before = b"" if record.startswith(b"M") else b">a\nM\n"
    path = write(tmp_path, "a.fasta", before + record + b">z\nM\n")
    (bad,) = bad_rows(path)
    assert (bad.row, bad.raw) == (3 if before else 1, record)
    assert reason in bad.reason
    with pytest.raises(InputError, match=rf"a\.fasta:{bad.row}: .*bad_rows='quarantine'"):
        documents(path)


def test_ids_must_differ_and_columns_be_there(tmp_path: Path) -> None:
    path = write(tmp_path, "a.fasta", ">a\nM\n>b\nM\n>a again\nM\n")
    with pytest.raises(InputError, match=r"a\.fasta:5: id 'a' appears twice, first at .*a\.fasta:1; make ids unique"):
        documents(path, id_column="id")
    with pytest.raises(InputError, match="no column 'name' for `id_column`; columns are id, description, text"):
        documents(path, id_column="name")


def test_any_cut_gives_the_same_records(tmp_path: Path) -> None:
    path = write(tmp_path, "a.fasta.gz", compress(RECORDS.encode(), "gz"))
    with closing(open_corpus(path)) as corpus:
        shards = plan(corpus, 1)
        assert len(shards) == 3
        read = [document for shard in reversed(shards) for document in corpus.read(shard)]
    assert read[::-1] == documents(path)


def test_sequences_are_queries_too(tmp_path: Path) -> None:
    queries = QueryFile(write(tmp_path, "q.fasta", RECORDS))
    assert [query.query_id for batch in queries.batches() for query in batch] == ["sp|P1|ONE", "two", "three"]
