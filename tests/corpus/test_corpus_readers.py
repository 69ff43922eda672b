"""Readers of txt, jsonl, csv, tsv and Parquet: rows, bad rows, and their reasons."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertfeat.config import ExtractConfig
from bertfeat.corpus.data_frames import write_frame
from bertfeat.errors import InputError
from tests.support.corpus_files import bad_rows, documents, open_corpus, plan, read_all, texts, write


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", []),
        (b" \n\n\t\n", [" ", "", "\t"]),
        ("a\u2028b\x85c\x0cd\re\x00f\n".encode(), ["a\u2028b\x85c\x0cd\re\x00f"]),
    ],
)
def test_lines_end_at_newlines_alone(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    assert texts(write(tmp_path, "a.txt", content)) == expected


def test_text_pairs_split_at_the_first_separator(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "a ||| b ||| c\nno pair\n ||| \n")
    pairs = [(document.text, document.text_pair) for document in documents(path, text_pairs=True)]
    assert pairs == [("a", "b ||| c"), ("no pair", None), ("", "")]
    assert documents(path)[0].text == "a ||| b ||| c"


@pytest.mark.promise("rows")
def test_bad_utf8_names_line_byte_and_position(tmp_path: Path) -> None:
    path = write(tmp_path, "corpus.txt", b"fine\ntwelve bytes\xff and on\nfine\n")
    with pytest.raises(InputError, match=r"corpus\.txt:2: byte 0xff at position 12 is not UTF-8; .*quarantine"):
        read_all(path)
    first, bad, last = read_all(path, bad_rows="quarantine")
    assert (bad.index, bad.row, bad.raw) == (1, 2, b"twelve bytes\xff and on\n")
    assert (first.text, last.text, last.index, last.doc_id, last.row) == ("fine", "fine", 2, 2, 3)


@pytest.mark.promise("odd-text")
def test_a_line_of_ten_megabytes_of_other_columns_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": "a", "other": "' + "x" * 10_000_000 + '"}\n{"text": "b"}\n')
    assert texts(path) == ["a", "b"]


@pytest.mark.promise("rows")
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "the line is empty"),
        ('{"text": "a"', "not JSON that can be read: Expecting ',' delimiter: line 1 column 13"),
        ('["a"]', "the row holds a list, not an object"),
        ('{"body": "a", "id": 1}', "no column 'text'; columns are body, id; pass `text_column`"),
        ('{"text": null}', "column 'text' holds null"),
        ('{"text": 5}', "column 'text' holds 5, which is not text; write it as a string, or pass another `text_col"),
        ('{"text": {"body": "a"}}', "which is not text; name a field of it: `text_column='text.body'`"),
        ('{"text": ["a"]}', "pass `is_split_into_words`"),
        ('{"text": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "not JSON that can be read: maximum recursion depth"),
        ('{"text": "a", "n": ' + "9" * 5000 + "}", "not JSON that can be read: Exceeds the limit"),
        ('{"text": "a", "text": "b"}', "key 'text' appears twice in one object; keep one of them"),
    ],
)
def test_bad_json_rows_say_why(tmp_path: Path, line: str, reason: str) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": "first"}\n' + line + '\n{"text": "last"}\n')
    (bad,) = bad_rows(path)
    assert (bad.row, bad.raw) == (2, line.encode() + b"\n")
    assert reason in bad.reason
    with pytest.raises(InputError, match=r"a\.jsonl:2: "):
        read_all(path)


def test_lone_surrogates_become_replacement_characters(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": "a\\ud800b\\udc00\\ud83d\\ude00", "k": "\\udfff", "i": "\\ud801"}\n')
    (document,) = documents(path, keep_columns="k", id_column="i", levels="sentence")
    assert (document.text, document.kept, document.doc_id) == ("a\ufffdb\ufffd😀", {"k": "\ufffd"}, "\ufffd")


def test_lists_of_words_and_their_labels(tmp_path: Path) -> None:
    rows = [
        {"text": ["a", "b"], "tags": ["X", 1]},
        {"text": [], "tags": []},
        {"text": ["a", None], "tags": ["X", "Y"]},
        {"text": ["a"], "tags": ["X", "Y"]},
        {"text": "a b", "tags": []},
        {"text": ["a"], "tags": "X"},
    ]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    first, second, *bad = read_all(
        path, is_split_into_words=True, label_column="tags", levels="word", bad_rows="quarantine"
    )
    assert (first.text, first.words, first.annotations) == ("a b", ("a", "b"), {"label": ["X", "1"]})
    assert (second.text, second.words) == ("", ())
    wanted = ["null at position 1, which is not a word", "not a list of 1 labels", "list of words", "not a list of 1"]
    assert all(reason in row.reason for row, reason in zip(bad, wanted, strict=True))


def test_ids_groups_and_pairs_come_from_their_columns(tmp_path: Path) -> None:
    content = '{"t": "a", "p": "b", "i": 7, "d": "x"}\n{"t": "a", "p": null, "i": 8, "d": null}\n'
    path = write(tmp_path, "a.jsonl", content)
    first, second = documents(path, text_column="t", text_pair_column="p")
    assert (first.text_pair, second.text_pair) == ("b", None)
    first, second = documents(path, path, text_column="t", document_column="d", document_context=True)[:2]
    assert (first.group, second.group) == ("0:x", None)
    assert [document.doc_id for document in documents(path, text_column="t", id_column="i")] == [7, 8]


def test_ids_are_strings_or_integers(tmp_path: Path) -> None:
    rows = [f'{{"text": "a", "id": {value}}}\n' for value in ("1.5", "true", "null", 2**63, "[1]")]
    found = bad_rows(write(tmp_path, "a.jsonl", "".join(rows)), id_column="id")
    assert ["an id is a string or a 64-bit integer" in bad.reason for bad in found] == [True] * len(rows)


def test_quoted_fields_keep_their_line_ends_and_delimiters(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf"id","te\nxt"\r\n1,"a\r\nb"\r\n2,"say ""hi"", you"\r\n3,\xe2\x80\xa8\r\n'
    path = write(tmp_path, "a.csv", content)
    rows = documents(path, text_column="te\nxt")
    assert [(row.text, row.row) for row in rows] == [("a\r\nb", 3), ('say "hi", you', 5), ("\u2028", 6)]
    path = write(tmp_path, "a.tsv", 'id\ttext\n1\ta,b "c"\n2\t"d\te"\n')
    assert texts(path) == ['a,b "c"', "d\te"]


@pytest.mark.promise("rows")
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"only one\n", "has 1 fields where the first row has 2"),
        (b"1,2,3\n", "has 3 fields where the first row has 2"),
        (b'1,"a"b\n', "',' expected after '\"'"),
        (b'1,"a\nb\xffc"\n', "byte 0xff at position 1 is not UTF-8"),
        (b"\n", "the line is empty"),
    ],
)
def test_bad_records_keep_their_bytes(tmp_path: Path, record: bytes, reason: str) -> None:
    path = write(tmp_path, "a.csv", b"id,text\n0,first\n" + record + b"2,last\n")
    (bad,) = bad_rows(path)
    assert (bad.row, bad.raw) == (3, record)
    assert reason in bad.reason
    assert len(read_all(path, bad_rows="quarantine")) == 3


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.string(), 2)])
def test_list_columns_are_words(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array([["a", "b"], ["c", "d"]], kind)}), path)
    assert [row.words for row in documents(path, is_split_into_words=True)] == [("a", "b"), ("c", "d")]
    with pytest.raises(InputError, match=r"parquet:1: column 'text' holds \['a', 'b'\], .* not text; pass `is_split"):
        read_all(path)


def test_kept_values_keep_their_arrow_types(tmp_path: Path) -> None:
    day = datetime.datetime(2026, 11, 21, 1, 2, 3, 4, datetime.UTC)
    columns = {
        "text": pa.array(["a", "b"], pa.large_string()),
        "day": pa.array([day, None], pa.timestamp("us", "UTC")),
        "ns": pa.array([1_000_000_001, None], pa.timestamp("ns")),
        "label": pa.array(["x", "y"]).dictionary_encode(),
        "n": pa.array([1, 2], pa.int16()),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    corpus = open_corpus(tmp_path / "a.parquet", keep_columns="day,ns,label,n", levels="sentence")
    (shard,) = plan(corpus)
    rows = list(corpus.read(shard))
    assert dict(rows[0].kept) == {"day": day, "ns": 1_000_000_001, "label": "x", "n": 1}
    types = [column.type for column in corpus.schema().kept]
    assert types == ["timestamp[us, tz=UTC]", "timestamp[ns]", "string", "int16"]


NESTED = [
    {"content": {"body": "one", "meta": {"n": 1}}, "ids": {"a": "x"}, "b.c": "flat", "b": {"c": "nested"}},
    {"content": {"body": "two", "meta": None}, "ids": {"a": "y"}, "b.c": "exact", "b": {"c": "inner"}},
]
FIELDS = {"text_column": "content.body", "id_column": "ids.a", "keep_columns": "content.meta.n,b.c"}


def nested_file(folder: Path, kind: str) -> Path:
    if kind == "jsonl":
        return write(folder, "a.jsonl", "".join(json.dumps(row) + "\n" for row in NESTED))
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(NESTED), folder / "a.parquet")
        return folder / "a.parquet"
    frame = pl.DataFrame(NESTED).lazy() if kind == "lazy" else duckdb.from_arrow(pa.Table.from_pylist(NESTED))
    return write_frame(frame, folder, ExtractConfig(**FIELDS, levels="sentence"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "lazy", "duckdb"])
def test_a_dot_names_a_field_inside_a_column_unless_a_column_has_that_name(tmp_path: Path, kind: str) -> None:
    found = documents(nested_file(tmp_path, kind), **FIELDS, levels="sentence")
    assert [(each.doc_id, each.text) for each in found] == [("x", "one"), ("y", "two")]
    kept = [{"content.meta.n": 1, "b.c": "flat"}, {"content.meta.n": None, "b.c": "exact"}]
    assert [dict(each.kept) for each in found] == kept
