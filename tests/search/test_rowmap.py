"""Row map of an index: the rows of the store that its vectors come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bertfeat.choices import Level
from bertfeat.errors import StoreError
from bertfeat.records import Column
from bertfeat.search.build import write_row_map
from bertfeat.store.reader import Store, open_store
from tests.support.store_fakes import DOC_ID, make_plan, part_at, write_store

pytestmark = pytest.mark.usefixtures("no_fsync")

TOKEN = ("token_index", "word_index", "char_start", "char_end")
PLACED = {
    Level.TOKEN: (DOC_ID, *(Column(name, "int32") for name in TOKEN), Column("token", "string")),
    Level.WORD: (
        Column("doc_id", "string", nullable=False),
        *(Column(name, "int32") for name in ("word_index", "char_start", "char_end")),
        Column("word", "string"),
        Column("segment", "int16"),
    ),
    # Kept columns may have the names of the places of words.
    Level.SENTENCE: (DOC_ID, Column("text", "string"), Column("char_start", "string"), Column("segment", "int64")),
}
N_ROWS = (40, 0, 1, 259)


def make_store(folder: Path, n_rows: tuple[int, ...] = N_ROWS) -> Store:
    write_store(folder, make_plan(n_rows, levels=tuple(PLACED), columns=PLACED))
    return open_store(folder)


@pytest.mark.parametrize(
    ("level", "columns"),
    [
        ("token", ["doc_id", "token_index", "word_index", "char_start", "char_end"]),
        ("word", ["doc_id", "word_index", "segment", "char_start", "char_end"]),
        ("sentence", ["doc_id"]),
    ],
)
def test_each_level_has_its_rows_and_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, columns: list[str]
) -> None:
    monkeypatch.setattr("bertfeat.search.build._ROW_GROUP_ROWS", 32)
    store = make_store(tmp_path / "s")
    rows = np.flatnonzero(np.random.default_rng(0).random(store.n_rows(level)) < 0.7)
    write_row_map(tmp_path / "rows.parquet", store, level, rows)
    counts = [part.n_rows for part in store.parts(level)]
    parts = np.repeat(np.array([entry.shard for entry in store.manifest.shards], np.int32), counts)
    head = pl.DataFrame({"part": parts[rows], "row": rows})
    found = pl.read_parquet(tmp_path / "rows.parquet")
    assert found.equals(head.hstack(store.polars(level, columns)[rows]))
    write_row_map(tmp_path / "rows.parquet", store, level, rows[:0])
    assert pl.read_parquet(tmp_path / "rows.parquet").schema == found.schema


def test_a_damaged_part_of_the_store_is_named(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s")
    part = part_at(tmp_path / "s", "token", 3)
    part.write_bytes(part.read_bytes()[:-30])
    with pytest.raises(StoreError, match=r"part-00003-.*: cannot be read: .*; run bertfeat verify"):
        write_row_map(tmp_path / "rows", store, "token", np.arange(300))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
