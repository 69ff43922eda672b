"""Selection of rows of a level, all or some, at once or in batches: only the parts that hold them are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.devices import n_cpus
from bertfeat.errors import UserError
from bertfeat.records import IntArray
from bertfeat.store.offsets import Rows, split_rows
from bertfeat.store.part_reader import KeptGroups, opened
from bertfeat.store.vectors import StoredPart, VectorSource, opened_part, read_groups, reading

# The bytes that a thread reads at once.
_PIECE_BYTES = 32 << 20
# Less than this is copied before a thread has started.
_THREAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class FeatureBatch:
    """Some rows of a level.

    `rows` has their numbers in the level, a range, or int64 (n_rows,) if they are shuffled; `vectors` is (n_rows, dim)
    of the stored type; `columns` holds the other requested columns.
    """

    rows: Any
    vectors: npt.NDArray[Any]
    columns: pl.DataFrame


def check_rows(rows: npt.ArrayLike, n_rows: int) -> IntArray:
    """Return row numbers as an int64 array; refuse one that is negative, beyond the last row, or not an integer."""
    numbers = np.asarray(rows)
    if numbers.size == 0:
        return np.zeros(0, np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise UserError(f"rows of shape {numbers.shape} and type {numbers.dtype}; pass a list of whole numbers")
    outside = numbers[(numbers < 0) | (numbers >= n_rows)]
    if len(outside):
        raise UserError(f"no row {outside[0]}; rows are 0 to {n_rows - 1}")
    return numbers.astype(np.int64)


def read_vectors(
    parts: Sequence[StoredPart],
    rows: Rows,
    source: VectorSource,
    kept: KeptGroups,
    dtype: npt.DTypeLike | None = None,
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Return the vectors of some rows of a level, (len(rows), dim), in `out` if given; NaN where a vector is null.

    Pieces are read in parallel, and another float type than the stored one is converted piece by piece.
    """
    stored = parts[0].vectors.numpy
    dtype = stored if dtype is None else _float_type(dtype)
    out = np.empty((len(rows), source.dim), dtype) if out is None else out
    most = max(1, _PIECE_BYTES // (source.dim * stored.itemsize))

    def read(part: StoredPart, rows: Rows, target: npt.NDArray[Any]) -> None:
        block = target if dtype == stored else np.empty(target.shape, stored)
        with opened(part, kept) as file:
            file.read(source, rows, block)
        if block is not target:
            try:
                with np.errstate(over="raise"):
                    target[:] = block
            except FloatingPointError:
                raise UserError(f"dtype {dtype} does not hold a value of these vectors; pass float32") from None

    pieces = []
    for number, places, found in split_rows(rows, starts_of(parts)):
        # A part that must be decoded is read at once, so that each row group is decoded once.
        step = most if parts[number].can_be_copied else len(found)
        target = out[places]
        pieces += [(parts[number], found[at : at + step], target[at : at + step]) for at in range(0, len(found), step)]
    is_short = out.nbytes < _THREAD_BYTES and all(part.can_be_copied for part, _, _ in pieces)
    n_threads = 1 if is_short else min(len(pieces), n_cpus())
    if n_threads <= 1:
        for piece in pieces:
            read(*piece)
    else:
        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(lambda piece: read(*piece), pieces))
    return out


def take_vectors(
    parts: Sequence[StoredPart], rows: IntArray, source: VectorSource, kept: KeptGroups
) -> npt.NDArray[Any]:
    """Return the vectors of some rows of a level, (len(rows), dim), in the order of `rows`, which may repeat."""
    if (np.diff(rows) > 0).all():
        return read_vectors(parts, rows, source, kept)
    once, places = np.unique(rows, return_inverse=True)
    return read_vectors(parts, once, source, kept)[places]


def take_columns(parts: Sequence[StoredPart], rows: IntArray, names: Sequence[str], kept: KeptGroups) -> pl.DataFrame:
    """Return columns of some rows of a level as a frame, in the order of `rows`, which may repeat."""
    if not names:
        return pl.DataFrame(height=len(rows))
    once, places = np.unique(rows, return_inverse=True)
    found: list[tuple[pl.DataFrame, IntArray]] = []
    n_bytes = 0
    with reading(parts[0].path.parent):
        for number, _, chosen in split_rows(once, starts_of(parts)):
            with opened(parts[number], kept) as part:
                groups = part.groups(chosen, names)
            n_bytes += sum(int(group.estimated_size()) for group, _ in groups)
            # The row groups of all parts may together be larger than memory.
            found += groups if n_bytes < _PIECE_BYTES else [(_gather(groups), np.arange(len(chosen)))]
            del groups
        if found:
            return _gather(found, places)
        with opened_part(parts[0]) as file:
            return cast("pl.DataFrame", pl.from_arrow(read_groups(file, [], names)))


def _gather(groups: Sequence[tuple[pl.DataFrame, IntArray]], places: IntArray | slice = slice(None)) -> pl.DataFrame:
    """Return some rows of frames, in the order of `places`, as a frame that shares no memory with them."""
    rows, first = [], 0
    for frame, found in groups:
        rows.append(found + first)
        first += frame.height
    # Of strings in a single chunk, polars would keep all, as long as the few that are chosen live.
    return pl.concat([*(frame for frame, _ in groups), groups[0][0][:1]])[np.concatenate(rows)[places]]


def read_batches(
    parts: Sequence[StoredPart], source: VectorSource, kept: KeptGroups, names: Sequence[str], batch_size: int
) -> Iterator[FeatureBatch]:
    """Yield batches of `batch_size` rows, the last one perhaps with fewer, with the vectors and the columns `names`."""
    starts, dtype = starts_of(parts), parts[0].vectors.numpy
    current, part = -1, None
    with reading(parts[0].path.parent), contextlib.ExitStack() as stack:
        for start in range(0, int(starts[-1]), batch_size):
            rows = range(start, min(int(starts[-1]), start + batch_size))
            vectors, frames = np.empty((len(rows), source.dim), dtype), []
            for number, places, found in split_rows(rows, starts):
                if part is None or number != current:
                    stack.close()
                    part, current = stack.enter_context(opened(parts[number], kept)), number
                part.read(source, found, vectors[places])
                if names:
                    frames += [group.slice(at.start, len(at)) for group, at in part.groups(found, names)]
            yield FeatureBatch(rows, vectors, pl.concat(frames) if names else pl.DataFrame(height=len(rows)))


def starts_of(parts: Sequence[StoredPart]) -> IntArray:
    """Return the first row of each part in its level, then the number of rows."""
    return np.cumsum([0, *(part.info.n_rows for part in parts)], dtype=np.int64)


def _float_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(np.void)
    if found.kind != "f":
        raise UserError(f"dtype {dtype!r} must be a float type: float16, float32 or float64")
    return found
