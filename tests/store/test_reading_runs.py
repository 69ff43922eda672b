"""Vectors that are copied from the places in the manifest, and parts without such places, which are decoded."""

from __future__ import annotations

import numpy as np
import pytest

from bertfeat.store import parts, schema
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


@pytest.mark.parametrize(("dtype", "encoding"), KINDS)
def test_a_part_with_another_layout_is_decoded(tmp_path, monkeypatch, dtype, encoding):
    """The check at commit notices several pages in a chunk, whose last bytes are then not the values."""
    monkeypatch.setattr(parts, "_PAGE_BYTES", 64)
    write_store(tmp_path / "s", make_plan((3000,), dtype=dtype, encoding=encoding))
    store = open_store(tmp_path / "s")
    assert [part.runs for part in store.parts("token")] == [None]
    np.testing.assert_array_equal(store.numpy("token", "concat_last4"), decoded(store, "token", "concat_last4"))
    assert verify(tmp_path / "s").is_good
