"""Row map of an index: the rows of the store that its vectors come from."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pytest

from bertfeat.choices import Level
from bertfeat.errors import RunError, StoreError
from bertfeat.records import Column
from bertfeat.search.rowmapwriter import row_map_columns, write_row_map
from bertfeat.store.reader import Store, open_store
from tests.support.store_fakes import DOC_ID, make_plan, part_at, write_store

pytestmark = pytest.mark.usefixtures("no_fsync")

TOKEN = ("token_index", "word_index", "char_start", "char_end")
PLACED = {
    Level.TOKEN: (DOC_ID, *(Column(name, "int32") for name in TOKEN), Column("token", "string")),
    Level.WORD: (
        Column("doc_id", "string", nullable=False),
        Column("word_index", "int32"),
        Column("word", "string"),
        Column("char_start", "int32"),
        Column("char_end", "int32"),
        Column("segment", "int16"),
    ),
    # Kept columns may have the names of the places of words.
    Level.SENTENCE: (DOC_ID, Column("text", "string"), Column("char_start", "string"), Column("segment", "int64")),
}
N_ROWS = (40, 0, 1, 259)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("rows") / "s")


def make_store(folder: Path, n_rows: tuple[int, ...] = N_ROWS) -> Store:
    write_store(folder, make_plan(n_rows, levels=tuple(PLACED), columns=PLACED))
    return open_store(folder)


def write_all(path: Path, store: Store, level: str, rows: np.ndarray) -> pl.DataFrame:
    """Write the map, and return its expected content, made from the store's columns."""
    write_row_map(path, store, level, rows)
    shards, counts = [entry.shard for entry in store.manifest.shards], [p.n_rows for p in store.parts(level)]
    parts = np.repeat(np.array(shards, np.int32), counts)
    head = pl.DataFrame({"part": parts[rows], "row": pl.Series(rows, dtype=pl.Int64)})
    return head.hstack(store.polars(level, list(row_map_columns(store, level)))[rows])


@pytest.mark.parametrize(
    ("level", "columns"),
    [
        ("token", ["doc_id", "token_index", "word_index", "char_start", "char_end"]),
        ("word", ["doc_id", "word_index", "segment", "char_start", "char_end"]),
        ("sentence", ["doc_id"]),
    ],
)
def test_each_level_has_its_rows_and_places(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, columns: list[str]
) -> None:
    monkeypatch.setattr("bertfeat.search.rowmapwriter._ROW_GROUP_ROWS", 32)
    rows = np.flatnonzero(np.random.default_rng(0).random(store.n_rows(level)) < 0.7)
    want = write_all(tmp_path / "rows.parquet", store, level, rows)
    found = pl.read_parquet(tmp_path / "rows.parquet")
    assert found.columns == ["part", "row", *columns]
    assert found.equals(want)
    sql = f"select count(*), min(part), max(part), sum(row) from '{tmp_path / 'rows.parquet'}'"
    assert duckdb.sql(sql).fetchall() == [(len(rows), 0, 3, rows.sum())]


def test_a_row_map_may_be_empty(tmp_path: Path) -> None:
    for name, counts in (("none", ()), ("zero", (0,)), ("left out", (5,))):
        write_all(tmp_path / "rows", make_store(tmp_path / name, counts), "token", np.zeros(0, np.int64))
        assert pl.read_parquet(tmp_path / "rows").is_empty()


def test_a_failed_write_leaves_nothing(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bertfeat.durable.files.os.write", full)
    with pytest.raises(RunError, match="rows: no space left on device after 0 bytes; free space"):
        write_all(tmp_path / "rows", store, "token", np.arange(300))
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_part_of_the_store_is_named(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s")
    part = part_at(tmp_path / "s", "token", 3)
    part.write_bytes(part.read_bytes()[:-30])
    with pytest.raises(StoreError, match=r"part-00003-.*: cannot be read: .*; run bertfeat verify"):
        write_all(tmp_path / "rows", store, "token", np.arange(300))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
