"""Vectors that probes learn from: in memory, or a stream that is read chunk by chunk.

Labels are small and always in memory, one per row; vectors may not fit. Every fit uses `chunks_of`, which takes both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, overload, runtime_checkable

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.finite import first_not_finite
from bertfeat.records import Float32Array, IntArray

FloatArray: TypeAlias = npt.NDArray[Any]  # float16, float32 or float64

# Values of one chunk of an array in memory: 32 MB of float32.
_CHUNK_VALUES = 8 << 20


@runtime_checkable
class VectorStream(Protocol):
    """Vectors (n_rows, dim) that are read chunk by chunk, in any order and as often as needed.

    `chunks` are consecutive ranges of rows that cover all of them. If rows form sequences (the words of a sentence), no
    chunk ends inside a sequence.
    """

    shape: tuple[int, int]
    chunks: Sequence[range]

    def read(self, chunk: int) -> FloatArray:
        """Return the vectors of a chunk, float16 or float32 (rows of the chunk, dim)."""
        ...


Matrix: TypeAlias = FloatArray | VectorStream


def as_matrix(X: object) -> Matrix:
    """Return a stream as it is, or vectors as a float array (n_rows, dim), not copied if they are one.

    Raises:
        UserError: X holds values that are not numbers, or does not have two dimensions.
    """
    if isinstance(X, VectorStream):
        return X
    array = np.asarray(X)
    if array.dtype.kind != "f":
        try:
            array = array.astype(np.float32)
        except (TypeError, ValueError):
            raise UserError(f"X holds {array.dtype}, which are not numbers; pass a float array (n_rows, dim)") from None
    if array.ndim != 2:
        raise UserError(f"X has shape {array.shape}; pass a float array (n_rows, dim)")
    return array


def chunk_ranges(X: Matrix) -> Sequence[range]:
    """Return the ranges of rows in which a matrix is read."""
    if isinstance(X, VectorStream):
        return X.chunks
    n_rows, dim = X.shape
    step = max(1, _CHUNK_VALUES // max(1, dim))
    return [range(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def read_chunk(X: Matrix, chunk: int) -> Float32Array:
    """Return the vectors of the chunk-th of `chunk_ranges` as float32 (rows, dim), checked to be finite.

    Raises:
        UserError: A vector holds NaN or infinity; the message names the row.
    """
    rows = chunk_ranges(X)[chunk]
    raw = X.read(chunk) if isinstance(X, VectorStream) else X[rows.start : rows.stop]
    vectors = np.ascontiguousarray(raw, dtype=np.float32)
    check_finite(vectors, lambda bad: rows.start + bad)
    return vectors


def check_finite(vectors: FloatArray, row_of: Callable[[int], int]) -> None:
    """Check that vectors (n, dim) are finite.

    Raises:
        UserError: A vector holds NaN or infinity; the message names its row, which `row_of` returns.
    """
    bad = first_not_finite(vectors)
    if bad is not None:
        raise UserError(
            f"row {row_of(bad)}: its vector holds NaN or infinity; leave such rows out "
            "(store.valid says which rows have a vector)"
        )


def chunks_of(X: Matrix) -> Iterator[tuple[range, Float32Array]]:
    """Yield ranges of rows and their vectors, float32 (rows, dim), in order.

    Raises:
        UserError: A vector holds NaN or infinity; the message names the row.
    """
    for chunk, rows in enumerate(chunk_ranges(X)):
        yield rows, read_chunk(X, chunk)


class Sequences(Sequence[Any]):
    """Vectors in sequences, such as the words of sentences; a list of arrays (n_words, dim), stored end to end.

    If the vectors are in memory, this is a sequence of arrays, which scikit-learn can split.

    Args:
        vectors: The rows of all sequences end to end, (n_rows, dim), in memory or as a stream.
        lengths: int (n_sequences,): the rows of each; may be 0; their sum is n_rows.

    Raises:
        UserError: The sum of the lengths is not the number of rows.
    """

    def __init__(self, vectors: Matrix, lengths: npt.ArrayLike) -> None:
        self.vectors = as_matrix(vectors)
        self.lengths: IntArray = np.asarray(lengths, dtype=np.int64)
        self.starts: IntArray = np.concatenate([[0], np.cumsum(self.lengths)])
        if self.starts[-1] != self.vectors.shape[0]:
            raise UserError(f"sequences of {self.starts[-1]} rows do not cover {self.vectors.shape[0]} vectors")

    @classmethod
    def of(cls, X: object) -> Sequences:
        """Return sequences as they are, or lay a list of arrays (n_i, dim) end to end.

        Raises:
            UserError: The list is empty, or its arrays do not have two dimensions and one width.
        """
        if isinstance(X, Sequences):
            return X
        if not isinstance(X, Sequence | np.ndarray) or not len(X):
            raise UserError("X is not a list of arrays (n_words, dim), one per sequence")
        arrays = [as_matrix(array) for array in X]
        try:
            return cls(np.concatenate(arrays), [len(array) for array in arrays])  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            raise UserError(f"X is not a list of arrays (n_words, dim) of one width: {error}") from None

    @property
    def dim(self) -> int:
        """The width of a vector."""
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> FloatArray: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | npt.NDArray[Any]) -> Sequences: ...
    def __getitem__(self, index: Any) -> Any:
        """Return one sequence's vectors, or some of the sequences.

        Raises:
            UserError: The vectors are a stream, which has no random access.
        """
        if isinstance(self.vectors, VectorStream):
            raise UserError("sequences of a stream are read in chunks, not one by one")
        if isinstance(index, int | np.integer):
            if not -len(self) <= index < len(self):
                raise IndexError(index)
            index = index % len(self)
            return self.vectors[self.starts[index] : self.starts[index + 1]]
        chosen = np.arange(len(self))[index]
        pieces = [self.vectors[self.starts[i] : self.starts[i + 1]] for i in chosen]
        rows = np.concatenate(pieces) if pieces else self.vectors[:0]
        return Sequences(rows, self.lengths[chosen])


def flatten_labels(y: object, lengths: IntArray) -> npt.NDArray[Any]:
    """Return labels (n_rows,) of labels given flat or as one list per sequence.

    Raises:
        UserError: There are more or fewer labels than rows.
    """
    n_rows = int(lengths.sum())
    if isinstance(y, np.ndarray) and y.dtype != object and y.ndim == 1:
        flat = y
    else:
        lists = list(y)  # type: ignore[call-overload]
        nested = bool(lists) and not isinstance(lists[0], str) and hasattr(lists[0], "__len__")
        if nested and [len(labels) for labels in lists] != lengths.tolist():
            raise UserError("y and X have sequences of different lengths")
        flat = np.asarray([label for labels in lists for label in labels] if nested else lists)
    if len(flat) != n_rows:
        raise UserError(f"y has {len(flat)} labels for {n_rows} rows of X")
    return flat
