"""Sequences of vectors, such as the words of sentences, and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.ragged import ragged_arange
from bertfeat.records import IntArray
from bertfeat.vectors.array import ArrayVectors, as_vectors, float_array


class Sequences(Sequence[Any]):
    """Vectors in sequences, such as the words of sentences; a list of arrays (n_words, dim), stored end to end.

    If the vectors are in memory, this is a sequence of arrays, which scikit-learn can split.

    Args:
        vectors: The rows of all sequences end to end, (n_rows, dim): an array, or `Vectors`.
        lengths: int (n_sequences,): the rows of each; may be 0; their sum is n_rows.

    Raises:
        UserError: The sum of the lengths is not the number of rows.
    """

    def __init__(self, vectors: object, lengths: npt.ArrayLike) -> None:
        self.vectors = as_vectors(vectors)
        self.lengths: IntArray = np.asarray(lengths, dtype=np.int64)
        self.starts: IntArray = np.concatenate([[0], np.cumsum(self.lengths)])
        if self.starts[-1] != self.vectors.shape[0]:
            raise UserError(f"sequences of {self.starts[-1]} rows do not cover {self.vectors.shape[0]} vectors")

    @classmethod
    def of(cls, X: object) -> Sequences:
        """Return sequences as they are, or lay a list of arrays (n_i, dim) end to end."""
        if isinstance(X, Sequences):
            return X
        if not isinstance(X, Sequence | np.ndarray) or not len(X):
            raise UserError("X is not a list of arrays (n_words, dim), one per sequence")
        arrays = [float_array(array) for array in X]
        try:
            return cls(np.concatenate(arrays), [len(array) for array in arrays])
        except ValueError as error:
            raise UserError(f"X is not a list of arrays (n_words, dim) of one width: {error}") from None

    @property
    def dim(self) -> int:
        """The width of a vector."""
        return self.vectors.shape[1]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        """Return one sequence's vectors, or some of the sequences."""
        if not isinstance(self.vectors, ArrayVectors):
            raise UserError("sequences of a stream are read in chunks, not one by one")
        array = self.vectors.array
        chosen = np.arange(len(self))[index]
        if not chosen.ndim:
            return array[self.starts[chosen] : self.starts[chosen + 1]]
        return Sequences(array[ragged_arange(self.starts[chosen], self.lengths[chosen])], self.lengths[chosen])


def flatten_labels(y: object, lengths: IntArray) -> npt.NDArray[Any]:
    """Return labels (n_rows,) of labels given flat or as one list per sequence; there must be one for each row."""
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
