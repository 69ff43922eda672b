"""Reads of whole columns, of some rows and of batches: the same rows as in the parts, and no others are read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfeat.choices import Level
from bertfeat.errors import StoreError
from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from bertfeat.store.writer import open_for_writing
from tests.support import store_fakes
from tests.support.store_fakes import (
    KINDS,
    READS,
    decoded,
    make_plan,
    make_result,
    n_bytes_read,
    part_at,
    rewrite_manifest,
    without_runs,
    write_store,
)

SHARDS = (270, 0, 7, 25)
N_ROWS = sum(SHARDS)
FEATURES = ("layer_03", "concat_last4", "concat_04_06", "mean_last4", "sum_03_05")


@pytest.fixture(scope="module", params=KINDS, ids=str)
def stores(request, tmp_path_factory):
    """Stores of layers and of their concatenation: several row groups per part, null vectors in the third part."""
    dtype, encoding = request.param
    folder = tmp_path_factory.mktemp("stores")
    with pytest.MonkeyPatch.context() as patch:
        # Wide vectors: a row group has at most 2 MB of each column.
        patch.setattr(store_fakes, "HIDDEN", 4096)
        for combine in ("none", "concat"):
            plan = make_plan(SHARDS, levels=(Level.WORD,), combine=combine, dtype=dtype, encoding=encoding)
            with open_for_writing(folder / combine, plan) as writer:
                for shard in writer.pending():
                    writer.commit(shard, make_result(plan, shard, nulls=shard.index == 2))
                writer.complete()
    found = {combine: open_store(folder / combine) for combine in ("none", "concat")}
    assert all(len(store.parts("word")[0].runs.rows) > 1 for store in found.values())
    return found


def made(store, feature):
    """Return a feature as pyarrow decodes the layers, put together here."""
    if "concat_last4" in store.columns("word"):
        arrays = dict(zip((3, 4, 5, 6), np.split(decoded(store, "word", "concat_last4"), 4, axis=1), strict=True))
    else:
        arrays = {n: decoded(store, "word", f"layer_{n:02d}") for n in (3, 4, 5, 6)}
    described = store.feature("word", feature)
    blocks = [arrays[layer] for layer in described.layers]
    if described.combine in ("sum", "mean"):
        total = np.sum([block.astype(np.float32) for block in blocks], axis=0)
        return (total / len(blocks) if described.combine == "mean" else total).astype(blocks[0].dtype)
    return np.concatenate(blocks, axis=1)


@pytest.mark.parametrize("feature", FEATURES)
def test_whole_columns_batches_and_slices(stores, feature):
    for store in stores.values():
        whole, frame = made(store, feature), store.polars("word", ["word", "doc_id"])
        np.testing.assert_array_equal(store.numpy("word", feature), whole)
        np.testing.assert_array_equal(store.torch("word", feature).numpy(), whole)
        batches = list(store.batches("word", feature, batch_size=11, columns=["word", "doc_id"]))
        assert [len(batch.vectors) for batch in batches] == [11] * 27 + [5]
        np.testing.assert_array_equal(np.concatenate([batch.vectors for batch in batches]), whole)
        for batch in batches:
            assert batch.columns.equals(frame[batch.rows.start : batch.rows.stop])
        for start in (0, 100, 290):
            np.testing.assert_array_equal(store.slice("word", feature, start, N_ROWS), whole[start:])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, N_ROWS - 1), max_size=80), st.sampled_from(FEATURES))
def test_rows_in_any_order_and_more_than_once(stores, rows, feature):
    for store in stores.values():
        whole, frame = store.numpy("word", feature), store.polars("word", ["word", "label"])
        np.testing.assert_array_equal(store.take("word", feature, rows), whole[np.array(rows, np.int64)])
        assert store.rows("word", rows, ["word", "label"]).equals(frame[rows])


def test_some_rows_of_many_are_read_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(store_fakes, "HIDDEN", 384)
    n_rows = 10_000
    write_store(tmp_path / "s", make_plan((n_rows,), combine="none"))
    store = open_store(tmp_path / "s")
    whole = store.numpy("token", "layer_05")
    rows = np.random.default_rng(0).choice(n_rows, 100, replace=False)
    n_before = n_bytes_read()
    # Opening the store finds the places of the vectors, and reads little.
    np.testing.assert_array_equal(open_store(tmp_path / "s").take("token", "layer_05", rows), whole[rows])
    assert n_bytes_read() - n_before < 1.3 * whole[rows].nbytes + 0.05 * whole.nbytes
    n_before = n_bytes_read()
    chosen = store.where("token", "token_index = 1")
    found = store.take("token", "layer_05", chosen)
    # Far less than `scan`, which reads whole pages of vectors for a filter.
    assert n_bytes_read() - n_before < 0.3 * whole.nbytes
    flags = store.polars("token", ["token_index"])["token_index"] == 1
    assert chosen.tolist() == flags.arg_true().to_list() != []
    np.testing.assert_array_equal(found, whole[flags.to_numpy()])
    n_before = n_bytes_read()
    np.testing.assert_array_equal(store.numpy("token", "layer_05"), whole)
    assert n_bytes_read() - n_before < whole.nbytes + 10_000


@pytest.mark.parametrize(("dtype", "encoding"), KINDS)
@pytest.mark.parametrize("is_sure", [True, False])
def test_parts_are_copied_from_places_that_are_sure_and_decoded_otherwise(
    tmp_path, monkeypatch, dtype, encoding, is_sure
):
    """With several pages in a chunk, its last bytes are not the values: the check at commit notices that."""
    if not is_sure:
        # Versions of the libraries that make pages of their own size.
        small, few = {"data_page_size": 64}, {"data_page_size": 64, "max_rows_per_page": 64}
        by_polars, by_pyarrow = pl.DataFrame.write_parquet, pq.ParquetWriter
        monkeypatch.setattr(pl.DataFrame, "write_parquet", lambda *args, **how: by_polars(*args, **how | small))
        monkeypatch.setattr(pq, "ParquetWriter", lambda *args, **how: by_pyarrow(*args, **how | few))
    write_store(tmp_path / "s", make_plan((3000, 0, 9), dtype=dtype, encoding=encoding))
    store = open_store(tmp_path / "s")
    assert (store.parts("token")[0].runs is not None) == is_sure
    for name in ("layer_03", "concat_last4"):
        np.testing.assert_array_equal(store.numpy("token", name), decoded(store, "token", name))
    assert verify(tmp_path / "s").is_good


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_part_that_was_replaced_or_cut_is_refused_by_every_reader(tmp_path, read):
    write_store(tmp_path / "a", make_plan((4, 4)))
    store = open_store(tmp_path / "a")
    path = part_at(tmp_path / "a", "token", 0)
    good = path.read_bytes()
    pq.write_table(pq.read_table(path), path, compression="none", use_dictionary=False, data_page_size=8)
    other = part_at(tmp_path / "a", "token", 1).read_bytes()
    for data in (path.read_bytes(), good[:100], other):
        # `valid` reads nothing of a part without null vectors, and only decoders notice other bytes of the same size.
        if read is READS["valid"] or data is other:
            continue
        path.write_bytes(data)
        said = rf"cannot be read: (its bytes are not those .*|{len(data)} bytes, not {len(good)}); run bert"
        with pytest.raises(StoreError, match=said):
            read(store)
    path.write_bytes(good)
    read(store)


@pytest.mark.parametrize("read", [*READS.values(), lambda store: store.rows("token", [5], ["token"])])
def test_a_part_with_other_rows_than_in_the_manifest_is_refused_by_every_reader(tmp_path, read):
    write_store(tmp_path / "s", make_plan())

    def change(manifest):
        first, second, *others = manifest.shards
        return manifest.with_shards([first, replace(second, parts=(replace(second.parts[0], n_rows=3),)), *others])

    rewrite_manifest(tmp_path / "s", change)
    without_runs(tmp_path / "s")
    with pytest.raises(StoreError, match=r"cannot be read: (4 rows, not 3|12 rows, not 11); run bertfeat verify"):
        read(open_store(tmp_path / "s"))
