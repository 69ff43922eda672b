"""CSV and TSV without a header or with another delimiter, and the first rows of a corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertfeat.config import ExtractConfig
from bertfeat.errors import ConfigError, InputError
from tests.support.corpus_files import WRITERS, bad_rows, documents, open_corpus, plan, read_all, texts, write

ROWS = ["1", "22", "333", "4444", "55555"]


@pytest.mark.parametrize(("text_column", "keep"), [("1", "2,3"), ("column_1", "column_2,column_3")])
@pytest.mark.parametrize(("delimiter", "mark"), [(None, ","), (";", ";"), ("tab", "\t"), ("\\t", "\t"), ("|", "|")])
def test_columns_of_a_file_without_a_header_go_by_number(
    tmp_path: Path, text_column: str, keep: str, delimiter: str | None, mark: str
) -> None:
    rows = ["\ufeffa", "x", "1"], ['"b"', "y", "2"]
    path = write(tmp_path, "a.csv", "".join(mark.join(row) + "\n" for row in rows))
    settings = {"no_header": True, "delimiter": delimiter, "levels": "sentence"}
    found = documents(path, text_column=text_column, keep_columns=keep, **settings)
    assert [row.text for row in found] == ["a", "b"]
    assert [row.kept for row in found] == [{"column_2": "x", "column_3": "1"}, {"column_2": "y", "column_3": "2"}]
    assert [row.row for row in found] == [1, 2]


def test_the_first_row_counts_the_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "a,b\nc\nd,e\n")
    settings = {"no_header": True, "text_column": "1", "text_pair_column": "2"}
    (bad,) = bad_rows(path, **settings)
    assert (bad.row, bad.reason) == (2, "has 1 fields where the first row has 2; quote fields that hold delimiters")
    with pytest.raises(InputError, match=r"no column 'column_3' for `id_column`; did you mean 'column_"):
        read_all(path, no_header=True, text_column="1", id_column="3")
    with pytest.raises(InputError, match=r"no column 'text'; columns are column_1, column_2; pass `text_column`$"):
        read_all(path, no_header=True)


def test_with_a_header_a_number_is_a_name(tmp_path: Path) -> None:
    assert texts(write(tmp_path, "a.csv", "2,1\nx,y\n"), text_column="1") == ["y"]
    with pytest.raises(
        InputError, match="no column '1' for `text_column`; columns are id, body; if that is not a header, "
    ):
        read_all(write(tmp_path, "b.csv", "id,body\nx,y\n"), text_column="1")


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        ("a.csv", "id;text\n1;a\n", "id;text"),
        ("a.csv", "id\ttext\n1\ta\n", "id text"),
        ("a.tsv", "Who discovered x-rays in 1885 ?\t1.0\nWhy ?\t0.2\n", "Who discovered x-rays in 1885 [?], 1.0"),
        ("a.tsv", "Aspirin\tB-Chemical\nhelps\tO\n\n", "Aspirin, B-Chemical"),
    ],
)
def test_a_missing_column_shows_the_first_row_and_the_settings_for_another_one(
    tmp_path: Path, name: str, content: str, shown: str
) -> None:
    todo = "pass `text_column`; if that is not a header, pass `delimiter`, `no_header` or `format`$"
    with pytest.raises(InputError, match=f"no column 'text'; columns are {shown}; {todo}"):
        read_all(write(tmp_path, name, content))


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n", "é", "comma"])
def test_a_delimiter_is_one_character(delimiter: str) -> None:
    with pytest.raises(ConfigError, match=r"`delimiter` .* must be one ASCII character"):
        ExtractConfig(delimiter=delimiter)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("limit", [1, 4, 5, 6, 10, 99])
def test_a_limit_counts_the_rows_of_all_files(tmp_path: Path, kind: str, limit: int) -> None:
    paths = [write(tmp_path, f"{name}.{kind}", WRITERS[kind](ROWS)) for name in "ab"]
    assert texts(*paths, limit=limit) == (ROWS + ROWS)[:limit]
    corpus = open_corpus(*paths, limit=limit)
    assert [row.text for shard in plan(corpus, 4) for row in corpus.read(shard)] == (ROWS + ROWS)[:limit]  # type: ignore[union-attr]
