"""JSON arrays: any array is read as json.loads reads it, from any element on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from bertfeat.errors import InputError
from bertfeat.records import Document
from tests.support.corpus_files import bad_rows, open_corpus, plan, read_all, write

# Characters that a scanner of brackets and quotes may stumble over.
TEXT = st.text(st.sampled_from('a"\\[]{},: \n\té𝒳\u2028/'), max_size=12)
VALUES = st.recursive(
    TEXT | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=6
)
ROWS = st.lists(st.fixed_dictionaries({"text": TEXT, "other": VALUES}), max_size=6)


@limits(suppress_health_check=list(HealthCheck), max_examples=60, deadline=None)
@given(rows=ROWS, indent=st.none() | st.just(2), escaped=st.booleans(), cut=st.integers(1, 30))
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
