"""Readers of txt, jsonl, csv, tsv, JSON arrays and Parquet: rows, bad rows and their reasons, and the first rows."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from bertfeat.config import ExtractConfig
from bertfeat.corpus.data_frames import write_frame
from bertfeat.errors import InputError
from bertfeat.records import Document
from tests.support.corpus_files import WRITERS, bad_rows, documents, open_corpus, plan, read_all, texts, write


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


ROWS = ["1", "22", "333", "4444", "55555"]


@pytest.mark.parametrize(("text_column", "keep"), [("1", "2,3"), ("column_1", "column_2,column_3")])
@pytest.mark.parametrize(("delimiter", "mark"), [(None, ","), (";", ";"), ("tab", "\t"), ("\\t", "\t")])
def test_columns_of_a_file_without_a_header_go_by_number(
    tmp_path: Path, text_column: str, keep: str, delimiter: str | None, mark: str
) -> None:
    rows = ["\ufeffa", "x", "1"], ['"b"', "y", "2"]
    path = write(tmp_path, "a.csv", "".join(mark.join(row) + "\n" for row in rows))
    settings = {"no_header": True, "delimiter": delimiter, "levels": "sentence"}
    found = documents(path, text_column=text_column, keep_columns=keep, **settings)
    assert [(row.text, row.row) for row in found] == [("a", 1), ("b", 2)]
    assert [row.kept for row in found] == [{"column_2": "x", "column_3": "1"}, {"column_2": "y", "column_3": "2"}]
    (bad,) = bad_rows(write(tmp_path, "b.csv", f"a{mark}b\nc\n"), no_header=True, text_column="1", delimiter=delimiter)
    assert (bad.row, bad.reason) == (2, "has 1 fields where the first row has 2; quote fields that hold delimiters")


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("limit", [1, 5, 6, 99])
def test_a_limit_counts_the_rows_of_all_files(tmp_path: Path, kind: str, limit: int) -> None:
    paths = [write(tmp_path, f"{name}.{kind}", WRITERS[kind](ROWS)) for name in "ab"]
    assert texts(*paths, limit=limit) == (ROWS + ROWS)[:limit]
    corpus = open_corpus(*paths, limit=limit)
    assert [row.text for shard in plan(corpus, 4) for row in corpus.read(shard)] == (ROWS + ROWS)[:limit]  # type: ignore[union-attr]


def test_bad_rows_count_in_the_limit_and_nothing_after_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": "a"}\n{"text": 3}\nnot JSON\n')
    rows = read_all(path, write(tmp_path, "b.txt", b"\xff\n"), bad_rows="quarantine", limit=2)
    assert [type(row).__name__ for row in rows] == ["Document", "BadRow"]
    assert texts(path, limit=1) == ["a"]


# Characters that a scanner of brackets and quotes may stumble over.
TEXT = st.text(st.sampled_from('a"\\[]{},: \n\té𝒳\u2028/'), max_size=12)
VALUES = st.recursive(
    TEXT | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=6
)
ELEMENTS = st.lists(st.fixed_dictionaries({"text": TEXT, "other": VALUES}), max_size=6)


@limits(suppress_health_check=list(HealthCheck), max_examples=60, deadline=None)
@given(rows=ELEMENTS, indent=st.none() | st.just(2), escaped=st.booleans(), cut=st.integers(1, 30))
def test_any_array_is_read_as_json_loads_reads_it(
    tmp_path: Path, rows: list[dict[str, Any]], indent: int | None, escaped: bool, cut: int
) -> None:
    path = write(tmp_path, "a.json", "\ufeff \n" + json.dumps(rows, indent=indent, ensure_ascii=escaped) + "\n")
    corpus = open_corpus(path)
    shards = plan(corpus, cut)
    found = [row for shard in reversed(shards) for row in reversed(list(corpus.read(shard)))][::-1]
    assert [row.text for row in found if isinstance(row, Document)] == [row["text"] for row in rows]
    assert [row.row for row in found] == list(range(1, len(rows) + 1))


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ("3", 'the row holds a int, not an object; write {"text": ...}'),
        ('{"txt": "a"}', "no column 'text'; columns are txt; pass `text_column`"),
        (b'{"text": "\xff"}', "byte 0xff at position 10 is not UTF-8"),
    ],
)
def test_a_bad_element_is_one_bad_row(tmp_path: Path, element: str | bytes, reason: str) -> None:
    raw = element.encode() if isinstance(element, str) else element
    path = write(tmp_path, "a.json", b'[{"text": "a"},\n' + raw + b' ,{"text": "c"}]')
    with pytest.raises(InputError, match=r"a\.json:2: " + reason):
        read_all(path)
    (bad,) = bad_rows(path)
    assert (bad.index, bad.row, bad.raw) == (1, 2, raw)
    assert [row.text for row in read_all(path, bad_rows="quarantine") if isinstance(row, Document)] == ["a", "c"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('[{"text": "a"}, {"text": "b"', "is not a JSON array .*; write one array"),
        ('[{"text": "a"}]]', r"is not a JSON array .*column 16"),
        ("[" * 100_000, "is not a JSON array .*recursion"),
        ('{"data": [{"text": "a"}]}', r"is not a JSON array \(it holds a dict\); "),
        ('{"text": "a"}\n{"text": "b"}\n', r"is not a JSON array \(Extra data: .* `format='jsonl'`"),
        ("text\na\n", r"is not a JSON array \(Expecting value"),
    ],
)
def test_files_that_are_no_array_of_rows_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = write(tmp_path, "a.json", content)
    for settings in ({}, {"bad_rows": "quarantine"}):
        with pytest.raises(InputError, match=rf"a\.json: {reason}"):
            read_all(path, **settings)
