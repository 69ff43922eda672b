"""Cutter of a corpus into shards: a pure function of its rows, their costs and a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bertfeat.corpus.reader import ScannedRow
from bertfeat.errors import InputError
from bertfeat.records import FileSlice, ShardSpec

# A group that cannot be cut may cost this many times the limit.
MAX_GROUP_FACTOR = 16


@dataclass(slots=True)
class _Unit:
    """Rows of one file that no cut may separate, from `start` on."""

    start: ScannedRow
    n_rows: int
    cost: int


def cut_shards(
    rows: Iterable[ScannedRow], cost: Callable[[ScannedRow], int], max_cost: int, *, keep_groups: bool, first: int = 0
) -> tuple[ShardSpec, ...]:
    """Cut rows, read once and not kept, into shards of consecutive rows, none above `max_cost` bytes of output.

    What costs more alone is a shard alone: a row or, with `keep_groups`, a group. `first` numbers the first shard.
    """
    shards: list[ShardSpec] = []
    # The open shard: the first row of each of its slices, the rows of each, and its cost.
    starts: list[ScannedRow] = []
    counts: list[int] = []
    total = 0
    for unit in _units(rows, cost, max_cost, keep_groups):
        if starts and total + unit.cost > max_cost:
            shards.append(_shard(first + len(shards), starts, counts))
            starts, counts, total = [], [], 0
        if not starts or starts[-1].file != unit.start.file:
            starts.append(unit.start)
            counts.append(0)
        counts[-1] += unit.n_rows
        total += unit.cost
    if starts:
        shards.append(_shard(first + len(shards), starts, counts))
    return tuple(shards)


def _shard(number: int, starts: list[ScannedRow], counts: list[int]) -> ShardSpec:
    slices = tuple(
        FileSlice(start.file, start.offset, start.row, n_rows, start.state)
        for start, n_rows in zip(starts, counts, strict=True)
    )
    return ShardSpec(number, starts[0].index, sum(counts), slices)


def _units(
    rows: Iterable[ScannedRow], cost: Callable[[ScannedRow], int], max_cost: int, keep_groups: bool
) -> Iterator[_Unit]:
    unit: _Unit | None = None
    for row in rows:
        if unit is not None and keep_groups and _belongs(row, unit.start):
            unit.n_rows += 1
            unit.cost += cost(row)
            if unit.cost > MAX_GROUP_FACTOR * max_cost:
                name = str(unit.start.group).partition(":")[2]
                raise InputError(
                    f"document {name!r}, which starts here, takes more than {MAX_GROUP_FACTOR} shards of {max_cost:,} "
                    "bytes, and `document_context` does not cut a document; mark document boundaries or raise "
                    "`shard_bytes`",
                    path=unit.start.path,
                    row=unit.start.row,
                )
            continue
        if unit is not None:
            yield unit
        unit = _Unit(row, 1, cost(row))
    if unit is not None:
        yield unit


def _belongs(row: ScannedRow, start: ScannedRow) -> bool:
    """Return whether a row belongs to the group of `start`; a bad row without a group belongs to the one around it."""
    if row.file != start.file or start.group is None:
        return False
    return row.group == start.group or (row.bad is not None and row.group is None)
