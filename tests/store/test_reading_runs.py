"""Vectors that are copied from the places in the manifest, and parts without such places, which are decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertfeat.errors import StoreError
from bertfeat.store import parts, schema
from bertfeat.store.part_reader import KeptGroups, opened
from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from tests.support import store_fakes
from tests.support.reading_files import (
    KINDS,
    decoded,
)
from tests.support.store_fakes import make_plan, write_store


@pytest.mark.parametrize(("dtype", "encoding"), KINDS)
@pytest.mark.parametrize(("hidden", "group_rows"), [(1, 1), (20, 7), (384, 1000)])
def test_every_part_without_nulls_is_copied(tmp_path, monkeypatch, dtype, encoding, hidden, group_rows):
    monkeypatch.setattr(store_fakes, "HIDDEN", hidden)
    monkeypatch.setattr(schema, "_ROW_GROUP_BYTES", group_rows * 8 * hidden * np.dtype(dtype).itemsize)
    write_store(tmp_path / "s", make_plan((40, 0, 9), dtype=dtype, encoding=encoding))
    store = open_store(tmp_path / "s")
    for name in ("layer_03", "layer_06", "concat_last4"):
        np.testing.assert_array_equal(store.numpy("token", name), decoded(store, "token", name))
    n_groups = [0 if part.runs is None else len(part.runs.rows) for part in store.parts("token")]
    assert n_groups == [-(-40 // min(40, group_rows)), 0, -(-9 // min(9, group_rows))]
    assert verify(tmp_path / "s").is_good


@pytest.mark.parametrize(("dtype", "encoding"), [("float32", "array"), ("float16", "binary")])
@pytest.mark.parametrize(("hidden", "n_rows"), [(384, 3_000), (1, 50_000)])
def test_a_chunk_is_one_page_of_up_to_2_mb(tmp_path, monkeypatch, dtype, encoding, hidden, n_rows):
    """By default pyarrow ends a page after 1 MB or 20,000 rows."""
    monkeypatch.setattr(store_fakes, "HIDDEN", hidden)
    write_store(tmp_path / "s", make_plan((n_rows,), combine="none", dtype=dtype, encoding=encoding))
    store = open_store(tmp_path / "s")
    runs = store.parts("token")[0].runs
    assert runs is not None
    assert hidden == 1 or 1 << 20 < max(runs.rows) * hidden * np.dtype(dtype).itemsize <= 2 << 20
    np.testing.assert_array_equal(store.numpy("token", "layer_05"), decoded(store, "token", "layer_05"))


@pytest.mark.parametrize(("dtype", "encoding"), KINDS)
def test_a_part_with_another_layout_is_decoded(tmp_path, monkeypatch, dtype, encoding):
    """The check at commit notices several pages in a chunk, whose last bytes are then not the values."""
    monkeypatch.setattr(parts, "_PAGE_BYTES", 64)
    write_store(tmp_path / "s", make_plan((3000,), dtype=dtype, encoding=encoding))
    store = open_store(tmp_path / "s")
    assert [part.runs for part in store.parts("token")] == [None]
    np.testing.assert_array_equal(store.numpy("token", "concat_last4"), decoded(store, "token", "concat_last4"))
    assert verify(tmp_path / "s").is_good


@pytest.mark.parametrize("feature", ["layer_03", "mean_last4"])
@pytest.mark.parametrize("rows", [range(4000), np.arange(0, 4000, 3)], ids=["all", "some"])
def test_a_file_that_is_cut_off_while_it_is_open_is_named(tmp_path, monkeypatch, feature, rows):
    monkeypatch.setattr(store_fakes, "HIDDEN", 384)
    write_store(tmp_path / "s", make_plan((4000,), combine="none", dtype="float32"))
    store = open_store(tmp_path / "s")
    (part,), source = store.stored_parts("token"), store._source("token", feature)
    out = np.empty((4000, 384), np.float32)

    def read():
        with opened(part, KeptGroups()) as file:
            file.read(source, range(1), out[:1])
            with Path(part.path).open("r+b") as cut:
                cut.truncate(1_000_000)
            file.read(source, rows, out[: len(rows)])

    with pytest.raises(StoreError, match=r"part-00000-.*: cannot be read: the file ends at byte 1000000; run"):
        read()
    with pytest.raises(StoreError, match=r"part-00000-.*: cannot be read: 1000000 bytes, not \d+; run"):
        store.numpy("token", "layer_03")
