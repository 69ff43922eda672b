"""CSV and TSV without a header or with another delimiter, and the first rows of a corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.corpus_files import WRITERS, bad_rows, documents, open_corpus, plan, read_all, texts, write

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
