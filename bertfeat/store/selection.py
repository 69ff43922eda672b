"""Selection of rows of a level, all or some, at once or in batches: only the parts that hold them are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.errors import UserError
from bertfeat.records import IntArray
from bertfeat.store.keptgroups import KeptGroups
from bertfeat.store.partvectors import CheckedParts, opened_vectors
from bertfeat.store.vectors import StoredPart, VectorSource

_T = TypeVar("_T")

# The bytes that a thread reads at once.
_PIECE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class FeatureBatch:
    """Consecutive rows of a level.

    `start` is the number of the first row in the level; `vectors` is (n_rows, dim) of the stored type; `columns` holds
    the other requested columns.
    """

    start: int
    vectors: npt.NDArray[Any]
    columns: pl.DataFrame

    @property
    def rows(self) -> range:
        """The numbers of the rows in the level."""
        return range(self.start, self.start + len(self.vectors))


def check_rows(rows: npt.ArrayLike, n_rows: int) -> IntArray:
    """Return row numbers as an int64 array.

    Raises:
        UserError: A number is below 0, beyond the last row, or not an integer.
    """
    numbers = np.asarray(rows)
    if numbers.size == 0:
        return np.zeros(0, np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise UserError(f"rows of shape {numbers.shape} and type {numbers.dtype}; pass a list of whole numbers")
    outside = numbers[(numbers < 0) | (numbers >= n_rows)]
    if len(outside):
        raise UserError(f"no row {outside[0]}; rows are 0 to {n_rows - 1}")
    return numbers.astype(np.int64)


def float_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return a NumPy float type.

    Raises:
        UserError: `dtype` is another type.
    """
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(np.void)
    if found.kind != "f":
        raise UserError(f"dtype {dtype!r} must be a float type: float16, float32 or float64")
    return found


def take_vectors(
    parts: Sequence[StoredPart], rows: IntArray, source: VectorSource, checked: CheckedParts
) -> npt.NDArray[Any]:
    """Return the vectors of some rows of a level, (len(rows), dim), in the order of `rows`, which may repeat.

    Parts are read in parallel. Where vectors can be copied, only the requested rows are read.
    """
    dtype = parts[0].vectors.numpy
    out = np.empty((len(rows), source.dim), dtype)
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    is_ready = bool((np.diff(rows) > 0).all())

    def read(piece: _Piece) -> None:
        asked = ascending[piece.places] - piece.start
        with opened_vectors(piece.part, source, checked) as part:
            if is_ready:
                part.read(asked, out[piece.places])
                return
            once, places = np.unique(asked, return_inverse=True)
            found = np.empty((len(once), source.dim), dtype)
            part.read(once, found)
            out[order[piece.places]] = found[places]

    _in_parallel(read, _by_part(parts, ascending))
    return out


def take_columns(
    parts: Sequence[StoredPart], rows: IntArray, names: Sequence[str], kept: KeptGroups
) -> pl.DataFrame | None:
    """Return columns of some rows as a frame in the order of `rows`, which may repeat; None without rows."""
    if not names:
        return pl.DataFrame(height=len(rows))
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    frames: list[pl.DataFrame] = []
    chosen = np.empty(len(rows), np.int64)
    n_rows = n_bytes = 0
    limit = _PIECE_BYTES
    for piece in _by_part(parts, ascending):
        found, places = kept.groups(piece.part, ascending[piece.places] - piece.start, names)
        chosen[order[piece.places]] = n_rows + places
        frames += found
        n_rows += sum(frame.height for frame in found)
        n_bytes += sum(int(frame.estimated_size()) for frame in found)
        if n_bytes > limit:
            # Many rows may be in all row groups of a store, which together are larger than memory.
            so_far = order[: piece.places.stop]
            frames = [_gather(frames, chosen[so_far])]
            chosen[so_far], n_rows = np.arange(len(so_far)), len(so_far)
            n_bytes = int(frames[0].estimated_size())
            limit = max(_PIECE_BYTES, 2 * n_bytes)
    return _gather(frames, chosen) if frames else None


def _gather(frames: Sequence[pl.DataFrame], rows: IntArray) -> pl.DataFrame:
    """Return some rows of frames, one or more, that share no memory with them."""
    # Of strings in a single chunk, polars would keep all, as long as the few that are chosen live.
    return pl.concat([*frames, frames[0][:1]])[rows]


def slice_vectors(
    parts: Sequence[StoredPart],
    start: int,
    stop: int,
    source: VectorSource,
    checked: CheckedParts,
    dtype: npt.DTypeLike | None = None,
) -> npt.NDArray[Any]:
    """Return the vectors of the rows `start` to `stop - 1` of a level, (n_rows, dim); NaN where a vector is null.

    Another float type than the stored one is converted piece by piece.
    """
    stored = parts[0].vectors.numpy
    dtype = stored if dtype is None else float_type(dtype)
    out = np.empty((stop - start, source.dim), dtype)
    most = max(1, _PIECE_BYTES // (source.dim * stored.itemsize))

    def read(piece: tuple[StoredPart, int, int, int]) -> None:
        part, of_part, first, last = piece
        target = out[first - start : last - start]
        block = target if dtype == stored else np.empty(target.shape, stored)
        with opened_vectors(part, source, checked) as opened:
            opened.read(range(first - of_part, last - of_part), block)
        if block is not target:
            try:
                with np.errstate(over="raise"):
                    target[:] = block
            except FloatingPointError:
                raise UserError(f"dtype {dtype} does not hold a value of these vectors; pass float32") from None

    pieces = []
    for part, of_part in zip(parts, _starts(parts).tolist(), strict=False):
        first, last = max(start, of_part), min(stop, of_part + part.info.n_rows)
        # A part that must be decoded is read at once, so that each row group is decoded once.
        step = most if part.info.runs is not None else max(1, last - first)
        pieces += [(part, of_part, at, min(last, at + step)) for at in range(first, last, step)]
    _in_parallel(read, pieces)
    return out


def read_batches(
    parts: Sequence[StoredPart],
    source: VectorSource,
    checked: CheckedParts,
    names: Sequence[str],
    batch_size: int,
) -> Iterator[FeatureBatch]:
    """Yield batches of `batch_size` rows, the last one perhaps with fewer, with the vectors and the columns `names`."""
    start = n_filled = 0
    dtype = parts[0].vectors.numpy
    vectors = np.empty((batch_size, source.dim), dtype)
    frames: list[pl.DataFrame] = []
    for stored in parts:
        with opened_vectors(stored, source, checked, use_threads=True) as part:
            first = 0
            while first < stored.info.n_rows:
                rows = range(first, min(stored.info.n_rows, first + batch_size - n_filled))
                part.read(rows, vectors[n_filled : n_filled + len(rows)])
                frames.append(part.columns(rows, names))
                first, n_filled = rows.stop, n_filled + len(rows)
                if n_filled == batch_size:
                    yield FeatureBatch(start, vectors, pl.concat(frames))
                    start, n_filled, frames = start + batch_size, 0, []
                    vectors = np.empty((batch_size, source.dim), dtype)
    if n_filled:
        yield FeatureBatch(start, vectors[:n_filled], pl.concat(frames))


class _Piece(NamedTuple):
    """A part, its first row in the level, and the places of its rows in an ascending array."""

    part: StoredPart
    start: int
    places: slice


def _by_part(parts: Sequence[StoredPart], rows: IntArray) -> list[_Piece]:
    """Return the parts that hold some of `rows`, which are ascending."""
    starts = _starts(parts)
    stops = np.searchsorted(rows, starts).tolist()
    bounds = zip(parts, starts.tolist(), stops, stops[1:], strict=False)
    return [_Piece(part, start, slice(first, last)) for part, start, first, last in bounds if last > first]


def _starts(parts: Sequence[StoredPart]) -> IntArray:
    """Return the first row of each part in its level, then the number of rows."""
    return np.cumsum([0, *(part.info.n_rows for part in parts)], dtype=np.int64)


def _in_parallel(work: Callable[[_T], None], pieces: Sequence[_T]) -> None:
    """Do pieces of work in threads, one per processor."""
    n_threads = min(len(pieces), os.cpu_count() or 1)
    if n_threads <= 1:
        for piece in pieces:
            work(piece)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(work, pieces))
