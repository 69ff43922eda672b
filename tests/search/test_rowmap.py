"""Row map: from positions in an index to rows of the store."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pytest

from bertfeat.choices import Level
from bertfeat.errors import RunError, StoreError
from bertfeat.records import Column
from bertfeat.search.rowmapwriter import row_map_batches, row_map_columns, write_row_map
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


def make_store(folder: Path, n_rows: tuple[int, ...] = N_ROWS) -> Store:
    write_store(folder, make_plan(n_rows, levels=tuple(PLACED), columns=PLACED))
    return open_store(folder)


def masked(store: Store, level: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(store.n_rows(level)) < 0.7


def write_all(path: Path, store: Store, level: str, mask: np.ndarray) -> pl.DataFrame:
    """Write the map, and return its expected content, made from the store's columns."""
    write_row_map(path, store, level, row_map_batches(store, level, np.flatnonzero(mask)))
    rows = np.flatnonzero(mask)
    parts = np.repeat([entry.shard for entry in store.manifest.shards], [p.n_rows for p in store.parts(level)])
    head = pl.DataFrame({"part": pl.Series(parts[mask], dtype=pl.Int32), "row": pl.Series(rows, dtype=pl.Int64)})
    return head.hstack(store.polars(level, list(row_map_columns(store, level)))[rows])


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr("bertfeat.search.rowmapwriter._ROW_GROUP_ROWS", 32)


@pytest.mark.parametrize("level", list(PLACED))
def test_positions_lead_back_to_rows(tmp_path, level, small_groups):
    store = make_store(tmp_path / "s")
    mask = masked(store, level)
    want = write_all(tmp_path / "rows.parquet", store, level, mask)
    assert pl.read_parquet(tmp_path / "rows.parquet").equals(want)


def test_each_level_has_its_own_places(tmp_path):
    store = make_store(tmp_path / "s")
    assert row_map_columns(store, "token") == ("doc_id", "token_index", "word_index", "char_start", "char_end")
    assert row_map_columns(store, "word") == ("doc_id", "word_index", "segment", "char_start", "char_end")
    assert row_map_columns(store, "sentence") == ("doc_id",)
    frame = write_all(tmp_path / "rows.parquet", store, "word", masked(store, "word"))
    assert frame["char_start"].dtype == pl.Int32
    sql = f"select count(*), min(part), max(part), sum(row) from '{tmp_path / 'rows.parquet'}'"
    assert duckdb.sql(sql).fetchall() == [(len(frame), 0, 3, frame["row"].sum())]


def test_the_same_rows_give_the_same_bytes_however_they_come(tmp_path, small_groups):
    store = make_store(tmp_path / "s")
    mask = masked(store, "token")
    whole = pl.concat(row_map_batches(store, "token", np.flatnonzero(mask)))
    cuts = sorted(random.Random(3).sample(range(len(whole)), 20))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    write_row_map(tmp_path / "a", store, "token", row_map_batches(store, "token", np.flatnonzero(mask)))
    write_row_map(tmp_path / "b", store, "token", [whole])
    write_row_map(tmp_path / "c", store, "token", pieces)
    assert len({(tmp_path / name).read_bytes() for name in "abc"}) == 1


def test_a_row_map_may_be_empty(tmp_path):
    for name, counts in (("none", ()), ("zero", (0,)), ("masked", (5,))):
        store = make_store(tmp_path / name, counts)
        path = tmp_path / f"{name}.parquet"
        write_all(path, store, "token", np.zeros(sum(counts), bool))
        assert pl.read_parquet(path).is_empty()


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    store = make_store(tmp_path / "s")

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bertfeat.durable.files.os.write", full)
    with pytest.raises(RunError, match="rows: no space left on device after 0 bytes; free space"):
        write_row_map(tmp_path / "rows", store, "token", row_map_batches(store, "token", np.arange(300)))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_damaged_part_of_the_store_is_named(tmp_path):
    store = make_store(tmp_path / "s")
    part = part_at(tmp_path / "s", "token", 3)
    part.write_bytes(part.read_bytes()[:-30])
    with pytest.raises(StoreError, match=r"part-00003-.*: cannot be read: .*; run bertfeat verify"):
        write_row_map(tmp_path / "rows", store, "token", row_map_batches(store, "token", np.arange(300)))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
