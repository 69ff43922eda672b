"""Vectors that are copied from the places in the manifest, and parts without such places, which are decoded."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bertfeat.choices import Level
from bertfeat.errors import StoreError
from bertfeat.records import PartInfo, VectorRuns
from bertfeat.store import codec, open_for_writing, open_store, parts, schema, verify
from bertfeat.store.partvectors import CheckedParts, opened_vectors
from bertfeat.store.plain import PlainColumn, read_rows, take_rows
from bertfeat.store.runs import check_runs
from tests.support import store_fakes
from tests.support.reading_files import (
    KINDS,
    NAME,
    by_store,
    decoded,
    layout,
    part_of,
    same,
    stored,
    table,
    values,
    write_arrow,
)
from tests.support.store_fakes import features, make_plan, make_result, write_store


def receipts(root):
    return sorted((root / "_bertfeat/receipts").iterdir())


def edit(path, change):
    """Change a sealed file, and seal it again."""
    content = codec.unseal(path.read_bytes())
    change(content)
    path.write_bytes(codec.seal(content))


@pytest.mark.parametrize(("dtype", "encoding"), KINDS)
@pytest.mark.parametrize("hidden", [1, 3, 20, 384])
@pytest.mark.parametrize("group_rows", [1, 7, 1000])
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
@pytest.mark.parametrize(("hidden", "n_rows"), [(384, 9_000), (1, 50_000)])
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


@pytest.mark.parametrize(("dtype", "encoding"), KINDS)
def test_a_store_without_runs_is_read_verified_and_resumed(tmp_path, dtype, encoding):
    """Finished shards stay, and the manifest holds runs only for new parts."""
    root, plan = tmp_path / "s", make_plan((7, 8, 9), dtype=dtype, encoding=encoding)
    with open_for_writing(root, plan) as writer:
        writer.commit(plan.shards[0], make_result(plan, plan.shards[0]))
    edit(receipts(root)[0], lambda receipt: receipt["receipt"]["parts"][0].pop("runs"))
    before = receipts(root)[0].read_bytes()
    write_store(root, plan)
    assert receipts(root)[0].read_bytes() == before
    write_store(tmp_path / "whole", plan)
    store, whole = open_store(root), open_store(tmp_path / "whole")
    assert [part.runs is None for part in store.parts("token")] == [True, False, False]
    assert store.parts("token") == whole.parts("token"), "runs are not compared"
    for name in ("layer_03", "concat_04_06", "mean_last4"):
        np.testing.assert_array_equal(store.numpy("token", name), whole.numpy("token", name))
        np.testing.assert_array_equal(store.take("token", name, [20, 3]), whole.take("token", name, [20, 3]))
    assert verify(root).is_good
    with open_for_writing(root, plan) as writer:
        assert writer.is_complete


FEATURES = features("none")[:2]
RUNS = VectorRuns((3, 2), {"layer_03": (10, 60), "layer_04": (34, 76)})
PART = PartInfo(Level.TOKEN, "token/part-00000.parquet", 5, 100, "ab", RUNS)


@pytest.mark.parametrize(
    ("rows", "offsets"),
    [
        ((3, 3), RUNS.offsets),
        ((5,), RUNS.offsets),
        ((3, 2, 0), {"layer_03": (10, 60, 92), "layer_04": (34, 76, 92)}),
        ((3, 2), {"layer_03": (10, 60)}),
        ((3, 2), {**RUNS.offsets, "layer_05": (10, 60)}),
        ((3, 2), {**RUNS.offsets, "layer_04": (34,)}),
        ((3, 2), {**RUNS.offsets, "layer_04": (33, 76)}),
        ((3, 2), {**RUNS.offsets, "layer_04": (34, 75)}),
        ((3, 2), {**RUNS.offsets, "layer_04": (34, 77)}),
        ((3, 2), {**RUNS.offsets, "layer_04": (34, 2**63 - 1)}),
        ((3, 2), {**RUNS.offsets, "layer_03": (3, 60)}),
        ((3, 2), {**RUNS.offsets, "layer_03": (34, 60)}),
    ],
)
def test_runs_that_do_not_fit_are_refused(rows, offsets):
    for good in (PART, replace(PART, runs=None)):
        check_runs(good, FEATURES, layout("float16", "array"))
    with pytest.raises(ValueError, match=r"token/part-00000.parquet: (runs of \d rows, not 5|its runs )"):
        check_runs(replace(PART, runs=VectorRuns(rows, offsets)), FEATURES, layout("float16", "array"))


def test_changed_offsets_are_noticed(tmp_path):
    """The seal shows an edited manifest. If it is sealed again, it differs from the receipts, and these from parts."""
    root = tmp_path / "s"
    write_store(root, make_plan((4, 4)))
    path, good = root / "manifest.json", (root / "manifest.json").read_bytes()
    offset = open_store(root).parts("token")[0].runs.offsets["layer_03"][0]
    path.write_bytes(good.replace(str(offset).encode(), str(offset - 1).encode()))
    with pytest.raises(StoreError, match="damaged or edited: its content does not match its check value"):
        open_store(root)
    path.write_bytes(good)

    def shift(part):
        part["runs"]["offsets"]["layer_03"][0] -= 1

    edit(path, lambda manifest: shift(manifest["shards"][0]["parts"][0]))
    assert [problem.part for problem in verify(root).problems] == ["manifest.json"]
    edit(receipts(root)[0], lambda receipt: shift(receipt["receipt"]["parts"][0]))
    (problem,) = verify(root).problems
    assert (problem.part, problem.shard) == ("token/part-00000.parquet", 0)
    assert problem.reason == "its vectors lie elsewhere than its receipt says"


def test_a_receipt_with_runs_outside_its_part_is_done_again(tmp_path):
    root, plan = tmp_path / "s", make_plan((4, 4))
    write_store(root, plan)
    good = receipts(root)[0].read_bytes()

    def change(receipt):
        receipt["receipt"]["parts"][0]["runs"]["offsets"]["layer_03"] = [10**9]

    edit(receipts(root)[0], change)
    assert "its runs overlap or lie outside the file" in str(verify(root).problems[0])
    with open_for_writing(root, plan) as writer:
        assert [shard.index for shard in writer.pending()] == [0]
    write_store(root, plan)
    assert json.loads(receipts(root)[0].read_bytes())["receipt"]["parts"] == json.loads(good)["receipt"]["parts"]


def test_a_file_that_is_cut_off_while_it_is_open_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(store_fakes, "HIDDEN", 384)
    write_store(tmp_path / "s", make_plan((4000,), combine="none", dtype="float32"))
    store = open_store(tmp_path / "s")
    (part,) = store.stored_parts("token")
    out = np.empty((4000, 384), np.float32)

    def read():
        with opened_vectors(part, store._source("token", "layer_03"), CheckedParts()) as opened:
            opened.read(range(1), out[:1])
            with Path(part.path).open("r+b") as file:
                file.truncate(1_000_000)
            opened.read(range(4000), out)

    with pytest.raises(StoreError, match=r"part-00000.parquet: cannot be read: the file ends at byte 1000000; run"):
        read()
    with pytest.raises(StoreError, match=r"part-00000.parquet: cannot be read: 1000000 bytes, not \d+; run"):
        store.numpy("token", "layer_03")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("run_rows", [700, 97, 1])
def test_rows_and_parts_of_rows_across_runs(tmp_path, dtype, run_rows):
    vectors = values(700, 100, dtype)
    starts = np.array([*range(0, 700, run_rows), 700])
    row_bytes = vectors[0].nbytes
    pieces = [b"head" * (n % 5 + 1) + vectors[a:b].tobytes() for n, (a, b) in enumerate(pairwise(starts))]
    (tmp_path / "f").write_bytes(b"".join(pieces))
    ends = np.cumsum([len(piece) for piece in pieces])
    column = PlainColumn(row_bytes, starts, ends - np.diff(starts) * row_bytes)
    rng = np.random.default_rng(0)
    with (tmp_path / "f").open("rb") as opened:
        for start, width in ((0, 100), (0, 1), (99, 1), (30, 40)):
            for n_rows in (1, 2, 50, 700):
                rows = np.sort(rng.choice(700, n_rows, replace=False))
                # The filled rows are not adjacent, like a layer in a concatenation.
                out = np.zeros((n_rows, 150), dtype)
                take_rows(opened.fileno(), column, rows, start, out[:, 20 : 20 + width])
                assert same(out[:, 20 : 20 + width], vectors[rows, start : start + width])
                assert not out[:, :20].any()
                assert not out[:, 20 + width :].any()
                first = int(rng.integers(0, 701 - n_rows))
                read_rows(opened.fileno(), column, first, start, out[:, 20 : 20 + width])
                assert same(out[:, 20 : 20 + width], vectors[first : first + n_rows, start : start + width])
        with pytest.raises(ValueError, match="rows 1 to 700 of 700"):
            read_rows(opened.fileno(), column, 1, 0, np.empty((700, 100), dtype))
        with pytest.raises(ValueError, match="rows 3 to 700 of 700"):
            take_rows(opened.fileno(), column, np.array([3, 700]), 0, np.empty((2, 100), dtype))


def test_other_types_are_not_taken_for_vectors(tmp_path):
    path = tmp_path / "a.parquet"
    for column in (
        pa.array([[0.5, 1.0]], pa.list_(pa.float64(), 2)),
        pa.array([[0.5, 1.0]], pa.list_(pa.float32())),
        pa.array([7], pa.int32()),
        pa.array([b"abcd"]),
    ):
        write_arrow(path, pa.table({NAME: column}))
        for encoding in ("array", "binary"):
            with pytest.raises(StoreError, match=f"its column '{NAME}' is "):
                by_store(path, "float32", encoding, 2)
            with (
                pytest.raises(StoreError, match=f"its column '{NAME}' is "),
                opened_vectors(part_of(path, "float16", encoding, 3), stored(3), CheckedParts()) as part,
            ):
                part.read(range(1), np.empty((1, 3), np.float16))
    with_list = write_arrow(path, table(values(3, 4, "float32"), "array"))
    with pytest.raises(StoreError, match="its column"):
        by_store(with_list, "float32", "binary", 4)
