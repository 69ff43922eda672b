"""Vectors that are read chunk by chunk: the form in which heads, indexes, figures and exports take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.finite import first_not_finite

FloatArray: TypeAlias = npt.NDArray[Any]  # float16, float32 or float64

# Values of one chunk of an array in memory: 32 MB of float32.
_CHUNK_VALUES = 8 << 20


@runtime_checkable
class Vectors(Protocol):
    """Finite vectors (n_rows, dim), read chunk by chunk, in any order and as often as needed.

    `chunks` are consecutive ranges that cover all rows; none ends inside a sequence, such as the words of a sentence.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and the width."""
        ...

    @property
    def chunks(self) -> Sequence[range]:
        """The ranges of rows that are read at a time."""
        ...

    def read(self, chunk: int) -> FloatArray:
        """Return the vectors of a chunk, float (rows of the chunk, dim); NaN or infinity is a UserError."""
        ...


class ArrayVectors:
    """Vectors in memory, (n_rows, dim), not copied if they are floats; a chunk is checked when it is first read."""

    def __init__(self, values: object, *, chunk_rows: int | None = None) -> None:
        self.array = float_array(values)
        n_rows, dim = self.array.shape
        step = chunk_rows or max(1, _CHUNK_VALUES // max(1, dim))
        self.chunks: Sequence[range] = [range(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]
        self._checked: set[int] = set()

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and the width."""
        n_rows, dim = self.array.shape
        return n_rows, dim

    def whole(self) -> FloatArray:
        """Return all vectors, float (n_rows, dim); see `read`."""
        for chunk in range(len(self.chunks)):
            self.read(chunk)
        return self.array

    def read(self, chunk: int) -> FloatArray:
        """Return the vectors of a chunk, float (rows of the chunk, dim); see `Vectors`."""
        rows = self.chunks[chunk]
        vectors = self.array[rows.start : rows.stop]
        if chunk not in self._checked:
            check_finite(vectors, range(rows.start, rows.stop))
            self._checked.add(chunk)
        return vectors


def as_vectors(values: object) -> Vectors:
    """Return vectors as they are, or numbers (n_rows, dim) as `ArrayVectors`."""
    return values if isinstance(values, Vectors) else ArrayVectors(values)


def chunks_of(vectors: Vectors) -> Iterator[tuple[range, FloatArray]]:
    """Yield the chunks in order: their rows, and their vectors (n, dim)."""
    for chunk, rows in enumerate(vectors.chunks):
        yield rows, vectors.read(chunk)


def float_array(values: object) -> FloatArray:
    """Return numbers as a float array (n_rows, dim), not copied if they are one; anything else is a UserError."""
    array = np.asarray(values)
    if array.dtype.kind != "f":
        try:
            array = array.astype(np.float32)
        except (TypeError, ValueError):
            raise UserError(f"X holds {array.dtype}, which are not numbers; pass a float array (n_rows, dim)") from None
    if array.ndim != 2:
        raise UserError(f"X has shape {array.shape}; pass a float array (n_rows, dim)")
    return array


def check_finite(vectors: FloatArray, numbers: Sequence[int] | npt.NDArray[Any]) -> None:
    """Raise a UserError if one of vectors, float (n, dim), is not finite; it names the row, one of `numbers`, (n,)."""
    bad = first_not_finite(vectors)
    if bad is not None:
        raise UserError(
            f"row {numbers[bad]}: its vector holds NaN or infinity; leave such rows out "
            "(store.valid says which rows have a vector)"
        )
