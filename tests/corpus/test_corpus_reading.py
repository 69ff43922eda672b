"""The corpus as a whole: any cut reads back every row once, from plain and compressed files, in any order."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, CorpusSchema, Earlier, ScannedRow, cut_shards, resolve_inputs
from bertfeat.corpus.shards import MAX_GROUP_FACTOR
from bertfeat.errors import InputError
from bertfeat.records import BadRow, Document, ShardSpec
from tests.support.corpus_files import WRITERS, compress, open_corpus, plan, read_all, texts, write
from tests.support.places import TESTS

# In txt a carriage return before a line end is dropped, so no text ends with one.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=12).map(
    lambda text: text.rstrip("\r").removeprefix("\ufeff")
)
KINDS = [(name, ending) for name in WRITERS for ending in ("", "gz", "zst") if name != "parquet" or not ending]
FAST = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.promise("rows")
@pytest.mark.parametrize(("name", "ending"), KINDS)
@FAST
@given(rows=st.lists(st.lists(TEXT, max_size=8), min_size=1, max_size=3), max_cost=st.integers(1, 60), data=st.data())
def test_any_cut_reads_every_row_once(
    name: str, ending: str, rows: list[list[str]], max_cost: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, content in enumerate(rows):
            full_name = f"{number}.{name}" + (f".{ending}" if ending else "")
            paths.append(write(Path(folder), full_name, compress(WRITERS[name](content), ending)))
        corpus = open_corpus(*paths)
        shards = plan(corpus, max_cost)
        found = [row for shard in shards for row in corpus.read(shard)]
        assert [row.text for row in found if isinstance(row, Document)] == [text for part in rows for text in part]
        assert [row.index for row in found] == [row.doc_id for row in found] == list(range(len(found)))
        # In any order, from this object or a fresh one, a shard gives what it gave in order.
        other = open_corpus(*paths)
        for shard in data.draw(st.permutations(shards)):
            expected = found[shard.first_row : shard.first_row + shard.n_rows]
            assert list(corpus.read(shard)) == expected == list(other.read(shard))
        corpus.close()
        other.close()


CONLL_LINES = ("a\tX\n", "# text\n", "# newdoc\n", "-DOCSTART- X\n", "\n", "\t\n", "b\n", "\xff\tX\n")
LINES = st.lists(st.sampled_from([*CONLL_LINES, 'x,"y\n', '"\n', "{}\n", "  \n"]), max_size=14)


@pytest.mark.promise("rows")
@pytest.mark.parametrize("name", ["a.conll", "a.csv", "a.jsonl", "a.txt", "a.conllu", "a.conll.gz"])
@FAST
@given(lines=LINES, max_cost=st.integers(1, 4))
def test_bad_rows_do_not_shift_a_cut(name: str, lines: list[str], max_cost: int) -> None:
    head = "a\tX\n" if "conll" in name else "text,b\n"
    with tempfile.TemporaryDirectory() as folder:
        content = compress((head + "".join(lines)).encode("latin-1"), "gz" if name.endswith("gz") else "")
        path = write(Path(folder), name, content)
        # Named, for such lines may look like CoNLL.
        options: dict[str, Any] = {"bad_rows": "quarantine", "format": name.split(".")[1]}
        whole = read_all(path, **options)
        corpus = open_corpus(path, **options)
        scanned = list(corpus.scan())
        shards = cut_shards(corpus.scan(), lambda row: 1, max_cost, keep_groups=False)
        assert sum(shard.n_rows for shard in shards) == len(whole) == len(scanned)
        assert [row for shard in reversed(shards) for row in reversed(list(corpus.read(shard)))] == whole[::-1]
        assert [row.bad for row in scanned] == [row if isinstance(row, BadRow) else None for row in whole]
        corpus.close()


@pytest.mark.parametrize(("name", "ending"), KINDS)
def test_naughty_strings_come_back(tmp_path: Path, name: str, ending: str) -> None:
    strings = json.loads(TESTS.joinpath("data/corpus/blns/blns.json").read_text("utf-8"))
    strings = [text.replace("\n", " ").rstrip("\r") for text in strings]
    full_name = f"a.{name}.{ending}" if ending else f"a.{name}"
    assert texts(write(tmp_path, full_name, compress(WRITERS[name](strings), ending))) == strings


def test_concatenated_members_are_one_file(tmp_path: Path) -> None:
    for ending in ("gz", "zst"):
        path = write(tmp_path, f"a.txt.{ending}", compress(b"a\nb", ending) + compress(b"c\nd\n", ending))
        assert texts(path) == ["a", "bc", "d"]
        empty = write(tmp_path, f"empty.txt.{ending}", b"")
        assert texts(empty, path) == ["a", "bc", "d"]


def test_a_file_that_shrank_since_the_plan(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"a\nb\nc\n")
    corpus = open_corpus(path)
    (shard,) = plan(corpus)
    path.write_bytes(b"a\n")
    with pytest.raises(InputError, match=r"a\.txt: ends 2 rows before shard 00000 does; the file has changed"):
        list(corpus.read(shard))
    path.unlink()
    with pytest.raises(InputError, match=r"a\.txt: cannot be opened"):
        list(Corpus(corpus.files, corpus.config).read(shard))


def _jsonl(folder: Path, *rows: dict[str, Any], name: str = "a.jsonl") -> Path:
    return write(folder, name, "".join(json.dumps({"text": "x"} | row) + "\n" for row in rows))


def _kept(*paths: Path, keep: str = "k") -> dict[str, str]:
    corpus = open_corpus(*paths, keep_columns=keep, levels="sentence")
    plan(corpus)
    return {column.name: column.type for column in corpus.schema().kept}


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, None, 2], "int64"), ([1, 2.5], "double"), ([True, False], "bool"), (["a", None], "string")],
)
def test_kept_json_values_have_one_type(tmp_path: Path, values: list[Any], expected: str) -> None:
    assert _kept(_jsonl(tmp_path, {}, *({"k": value} for value in values))) == {"k": expected}


def test_kept_columns_agree_over_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,k\nx,1\n")
    assert _kept(tmp_path / "a.csv", _jsonl(tmp_path, {"k": "a"})) == {"k": "string"}
    with pytest.raises(InputError, match=r"kept column 'k' is int64, in .*a\.csv it is string"):
        _kept(tmp_path / "a.csv", _jsonl(tmp_path, {"k": 1}))
    with pytest.raises(InputError, match=r"a\.jsonl:2: kept column 'k' is .*, in .*a\.jsonl it is .*; give it one"):
        _kept(_jsonl(tmp_path, {"k": 1}, {"k": "a"}))
    with pytest.raises(InputError, match="no row has a column 'missing'; check the names"):
        _kept(_jsonl(tmp_path, {"k": 1}), keep="k,missing")


def test_ids_have_one_type(tmp_path: Path) -> None:
    path = _jsonl(tmp_path, {"id": 1}, {"id": "a"})
    with pytest.raises(InputError, match=r"a\.jsonl:2: id 'a' is string, ids before are int64; write all ids"):
        read_all(path, id_column="id", bad_rows="quarantine")
    config = ExtractConfig(id_column="id")
    corpus = Corpus(resolve_inputs([str(path)]), config, Earlier("store", 9, CorpusSchema(id_type="int64")))
    with pytest.raises(InputError, match=r"2: id 'a' is string, ids before are int64; write int64 ids, as in store"):
        list(corpus.scan())


@pytest.mark.promise("values")
def test_a_repeated_id_is_named_with_both_places(tmp_path: Path) -> None:
    first = _jsonl(tmp_path, *({"id": n} for n in range(20)))
    second = _jsonl(tmp_path, {"id": [1]}, {"id": 7}, {"id": 3}, name="b.jsonl")
    with pytest.raises(InputError, match=r"b\.jsonl:2: id 7 appears twice, first at .*a\.jsonl:8; make ids unique"):
        read_all(first, second, id_column="id", bad_rows="quarantine")
    assert len(read_all(first, id_column="id")) == 20


def _row(index: int, cost: int, *, file: int = 0, group: str | None = None, is_bad: bool = False) -> ScannedRow:
    bad = BadRow(index, "a", index + 1, "", None) if is_bad else None
    return ScannedRow(index, file, f"{file}.txt", index * 10, index + 1, None, cost, group, index, bad)


def _cut(rows: list[ScannedRow], max_cost: int, *, keep_groups: bool = False) -> tuple[ShardSpec, ...]:
    return cut_shards(iter(rows), lambda row: row.n_bytes, max_cost, keep_groups=keep_groups)


ROWS = st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.sampled_from([None, "a", "b"]), st.booleans())).map(
    lambda items: [
        _row(index, cost, file=sum(new for _, new, _, _ in items[: index + 1]), group=group, is_bad=bad)
        for index, (cost, _, group, bad) in enumerate(items)
    ]
)


@given(rows=ROWS, max_cost=st.integers(1, 60))
def test_every_row_once_in_order_and_under_the_limit(rows: list[ScannedRow], max_cost: int) -> None:
    shards = _cut(rows, max_cost)
    assert shards == _cut(rows, max_cost)
    assert [shard.index for shard in shards] == list(range(len(shards)))
    position = 0
    for shard in shards:
        assert shard.first_row == position
        for piece in shard.slices:
            assert (piece.file, piece.offset, piece.row) == (rows[position].file, position * 10, position + 1)
            assert {row.file for row in rows[position : position + piece.n_rows]} == {piece.file}
            position += piece.n_rows
        inside = rows[shard.first_row : position]
        assert shard.n_rows == len(inside) > 0
        assert len(inside) == 1 or sum(row.n_bytes for row in inside) <= max_cost
        # Filled as far as it goes: the row after it would be too much.
        if position < len(rows):
            assert sum(row.n_bytes for row in inside) + rows[position].n_bytes > max_cost
    assert position == len(rows)


@given(rows=ROWS)
def test_no_cut_inside_a_group(rows: list[ScannedRow]) -> None:
    assume(sum(row.n_bytes for row in rows) <= MAX_GROUP_FACTOR * 40)
    for shard in _cut(rows, 40, keep_groups=True)[1:]:
        before, after = rows[shard.first_row - 1], rows[shard.first_row]
        assert before.group is None or (before.file, before.group) != (after.file, after.group)


def test_a_group_too_large_is_named() -> None:
    rows = [_row(index, 5, group="0:chapter 1") for index in range(32)]
    assert [shard.n_rows for shard in _cut(rows, 10, keep_groups=True)] == [32]
    with pytest.raises(InputError, match=r"0\.txt:1: document 'chapter 1', which starts here, .* `shard_bytes`"):
        _cut([*rows, _row(32, 5, group="0:chapter 1")], 10, keep_groups=True)
    # A single row is never too large: it cannot be cut.
    assert len(_cut([_row(0, 1000, group="0:x"), _row(1, 1, group="0:y")], 10, keep_groups=True)) == 2
