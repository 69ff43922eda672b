"""A plan covers every row once, keeps its limits, and depends on nothing but its arguments."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bertfeat.corpus import ScannedRow, cut_shards
from bertfeat.corpus.shards import MAX_GROUP_FACTOR
from bertfeat.errors import InputError
from bertfeat.records import BadRow, ShardSpec


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
