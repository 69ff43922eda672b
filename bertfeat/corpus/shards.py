"""Cut a corpus into shards: a pure function of its rows, their costs and a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bertfeat.corpus.reading import ScannedRow
from bertfeat.errors import InputError
from bertfeat.records import FileSlice, ShardSpec

# How many times the limit a group may cost that cannot be cut.
MAX_GROUP_FACTOR = 16


@dataclass(slots=True)
class _Unit:
    """Rows that no cut may part, from `start` on, in one file."""

    start: ScannedRow
    n_rows: int
    cost: int


def cut_shards(
    rows: Iterable[ScannedRow], cost: Callable[[ScannedRow], int], max_cost: int, *, keep_groups: bool
) -> tuple[ShardSpec, ...]:
    """Cut rows into shards of consecutive rows, each filled until the next row would cost too much.

    Args:
        rows: The rows of the corpus, in order; read once, never held.
        cost: What a row costs, in bytes of output.
        max_cost: The most that a shard costs, in the same bytes; a row that costs more is a shard alone.
        keep_groups: Never cut inside a group (for document context).

    Raises:
        InputError: With `keep_groups`, a group costs more than 16 times `max_cost`.
    """
    shards: list[ShardSpec] = []
    shard = _OpenShard(0, 0)
    for unit in _units(rows, cost, max_cost, keep_groups):
        if shard.n_rows and shard.cost + unit.cost > max_cost:
            shards.append(shard.close())
            shard = _OpenShard(shard.index + 1, shard.first_row + shard.n_rows)
        shard.add(unit)
    if shard.n_rows:
        shards.append(shard.close())
    return tuple(shards)


class _OpenShard:
    """The shard that is being filled."""

    def __init__(self, index: int, first_row: int) -> None:
        self.index = index
        self.first_row = first_row
        self.n_rows = 0
        self.cost = 0
        # Where each slice starts, and its rows.
        self._starts: list[ScannedRow] = []
        self._counts: list[int] = []

    def add(self, unit: _Unit) -> None:
        """Add rows that follow those before; rows of one file make one slice."""
        if not self._starts or self._starts[-1].file != unit.start.file:
            self._starts.append(unit.start)
            self._counts.append(0)
        self._counts[-1] += unit.n_rows
        self.n_rows += unit.n_rows
        self.cost += unit.cost

    def close(self) -> ShardSpec:
        """Return the shard as it is planned."""
        slices = tuple(
            FileSlice(start.file, start.offset, start.row, n_rows, start.state)
            for start, n_rows in zip(self._starts, self._counts, strict=True)
        )
        return ShardSpec(self.index, self.first_row, self.n_rows, slices)


def _units(
    rows: Iterable[ScannedRow], cost: Callable[[ScannedRow], int], max_cost: int, keep_groups: bool
) -> Iterator[_Unit]:
    unit: _Unit | None = None
    for row in rows:
        if unit is not None and keep_groups and _belongs(row, unit.start):
            unit.n_rows += 1
            unit.cost += cost(row)
            if unit.cost > MAX_GROUP_FACTOR * max_cost:
                raise _too_large(unit, max_cost)
            continue
        if unit is not None:
            yield unit
        unit = _Unit(row, 1, cost(row))
    if unit is not None:
        yield unit


def _belongs(row: ScannedRow, start: ScannedRow) -> bool:
    """Tell whether a row stays with the rows from `start` on; a bad row without a group stays where it stands."""
    if row.file != start.file:
        return False
    if row.bad is not None and row.group is None:
        return start.group is not None
    return row.group is not None and row.group == start.group


def _too_large(unit: _Unit, max_cost: int) -> InputError:
    name = str(unit.start.group).partition(":")[2]
    return InputError(
        f"document {name!r}, which starts here, takes more than {MAX_GROUP_FACTOR} shards of {max_cost:,} bytes, and "
        "--document-context does not cut a document; mark document boundaries or raise --shard-bytes",
        path=unit.start.path,
        row=unit.start.row,
    )
