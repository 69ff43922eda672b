"""Sums over the rows of layers that give their measures exactly, in memory that does not grow with the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bertfeat.records import Float32Array, Float64Array, Int32Array, IntArray
from bertfeat.vectors.moments import Moments
from bertfeat.vectors.nearest import lengths_of

# Rows whose variance is a smaller part of their squares are equal: the rest is rounding.
_LEAST_VARIANCE = 1e-12


class TypeSums:
    """Sums of the unit vectors of word types, which give the mean cosine of the rows of a type without their pairs.

    The squared length of a sum is the sum of the cosines of all pairs, in both orders, and of each row with itself. A
    zero vector has cosine 0 with every vector.
    """

    def __init__(self, n_types: int, dim: int) -> None:
        self.sums: Float64Array = np.zeros((n_types, dim))
        self.counts: IntArray = np.zeros(n_types, np.int64)
        self._own: Float64Array = np.zeros(n_types)

    def add(self, units: Float64Array, types: Int32Array) -> None:
        """Add unit vectors (n, dim) with their types (n,); -1 is a type that is left out."""
        order = np.argsort(types, kind="stable")[np.count_nonzero(types < 0) :]
        numbers, first, counts = np.unique(types[order], return_index=True, return_counts=True)
        if len(order):
            self.sums[numbers] += np.add.reduceat(units[order], first, axis=0)
            self._own[numbers] += np.add.reduceat(np.square(units[order]).sum(axis=1), first)
            self.counts[numbers] += counts

    def self_similarity(self) -> float:
        """Return the mean over types of the mean cosine of two rows of a type (Ethayarajh 2019); NaN without types."""
        n_pairs = self.counts * (self.counts - 1.0)
        return float(((np.square(self.sums).sum(axis=1) - self._own) / n_pairs).mean()) if len(n_pairs) else np.nan


class _Documents:
    """The mean over documents of the mean cosine of a document's rows with their mean (Ethayarajh 2019).

    Rows of a document are consecutive. A document of one row, whose cosine is 1, does not count.
    """

    def __init__(self, dim: int) -> None:
        # Of the last document, which may continue in the next block: sums of vectors and of unit vectors, and rows.
        self._number, self._sums, self._n_rows = -1, np.zeros((2, 1, dim)), np.zeros(1, np.int64)
        self._total, self._n = 0.0, 0

    def add(self, vectors: Float32Array, units: Float64Array, documents: Int32Array) -> None:
        """Add the next rows (n, dim) with the ascending numbers of their documents (n,)."""
        numbers, first, counts = np.unique(documents, return_index=True, return_counts=True)
        sums = np.stack([np.add.reduceat(one, first, axis=0, dtype=np.float64) for one in (vectors, units)])
        if numbers[0] == self._number:
            sums[:, :1] += self._sums
            counts[:1] += self._n_rows
        else:
            self._count(self._sums, self._n_rows)
        self._count(sums[:, :-1], counts[:-1])
        self._number, self._sums, self._n_rows = int(numbers[-1]), sums[:, -1:], counts[-1:]

    def mean(self) -> float:
        """Return the mean; NaN if no document has two rows. No rows may be added after it."""
        self._count(self._sums, self._n_rows)
        return self._total / self._n if self._n else np.nan

    def _count(self, sums: Float64Array, n_rows: IntArray) -> None:
        lengths = np.linalg.norm(sums[0], axis=1)
        kept = (n_rows > 1) & (lengths > 0)
        self._total += float(((sums[0] * sums[1]).sum(axis=1)[kept] / (lengths * n_rows)[kept]).sum())
        self._n += int(kept.sum())


class LayerSums:
    """The sums of one layer.

    Args:
        dim: The width of the vectors.
        n_types: The word types whose self-similarity is measured.

    Attributes:
        squares: float64 (dim,): the sum of the squares of each dimension.
    """

    def __init__(self, dim: int, n_types: int) -> None:
        self.types = TypeSums(n_types, dim)
        self.squares: Float64Array = np.zeros(dim)
        self._units, self._unit_squares = np.zeros(dim), np.zeros(dim)
        self._documents = _Documents(dim)
        self._lengths, self._mean = Moments(1, "squares"), Moments(dim, "mean")

    def add(self, vectors: Float32Array, documents: Int32Array, types: Int32Array) -> None:
        """Add the next rows (n, dim), with their documents and their word types (n,); -1 is a type that is left out."""
        lengths = lengths_of(vectors)
        units = vectors / np.where(lengths > 0, lengths, 1)[:, None]
        self.types.add(units, types)
        self._documents.add(vectors, units, documents)
        self.squares += np.einsum("ij,ij->j", vectors, vectors, dtype=np.float64)
        self._units += units.sum(axis=0)
        self._unit_squares += np.einsum("ij,ij->j", units, units)
        self._lengths.add(lengths[:, None])
        self._mean.add(vectors)

    @property
    def mean(self) -> Float64Array:
        """The mean of the rows, float64 (dim,)."""
        return self._mean.mean

    def measures(self) -> dict[str, float]:
        """Return the measures that these sums give; NaN where one is not defined."""
        n_rows, total = self._lengths.n_rows, self.squares.sum()
        # What each dimension adds to the mean cosine of all pairs.
        parts = (np.square(self._units) - self._unit_squares) / (n_rows * (n_rows - 1))
        return {
            "anisotropy": float(parts.sum()),
            "top3_anisotropy": float(np.sort(parts)[-3:].sum()),
            "self_similarity": self.types.self_similarity(),
            "within_sentence": self._documents.mean(),
            "norm_mean": float(self._lengths.mean[0]),
            "norm_sd": float(np.sqrt(self._lengths.squares[0] / n_rows)),
            "top3_share": float(np.sort(self.squares)[-3:].sum() / total) if total else np.nan,
        }


class PairSums:
    """Sums of the products of the values of pairs of layers: they give linear CKA without a matrix of rows by rows.

    Products are made in float32 of what is left after a shift by the mean of the first block, and added up in float64:
    a large common mean does not lower the precision. Values are scaled by the largest of the first block, so that
    products fit into float32. The squared length of a row is one more value of it, so that the same products hold what
    the unbiased estimate needs.

    Args:
        pairs: Pairs of numbers of layers.
        dims: The width of each layer.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]], dims: Sequence[int]) -> None:
        self._products = {(i, j): np.zeros((dims[i] + 1, dims[j] + 1)) for i, j in pairs}
        self._sums = {number: np.zeros(dims[number] + 1) for pair in pairs for number in pair}
        self._frames: dict[int, tuple[float, Float32Array]] = {}
        self._n = 0

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers, ascending."""
        return sorted(self._sums)

    def add(self, vectors: Mapping[int, Float32Array]) -> None:
        """Add the same rows of all layers, each (n, dim)."""
        values = {}
        for number, total in self._sums.items():
            if number not in self._frames:
                # A power of two: the division rounds nothing.
                scale = 2.0 ** (math.frexp(np.abs(vectors[number]).max())[1] - 1)
                self._frames[number] = scale, (vectors[number] / scale).mean(axis=0)
            scale, mean = self._frames[number]
            moved = vectors[number] / scale - mean
            values[number] = np.column_stack([moved, np.square(moved).sum(axis=1)])
            total += values[number].sum(axis=0, dtype=np.float64)
        for (i, j), product in self._products.items():
            product += values[i].T @ values[j]
        self._n += len(next(iter(values.values())))

    def results(self) -> Iterator[tuple[tuple[int, int], Float64Array, float]]:
        """Yield each pair with its sums of products of deviations from the mean, (dim, dim), and its unbiased HSIC.

        HSIC is that of equation 5 of Song et al. 2012, times factors that CKA does not depend on: n(n - 3), and the
        scales of both layers. Sums are freed once they were yielded.
        """
        n = self._n
        while self._products:
            i, j = pair = next(iter(self._products))
            product, one, two = self._products.pop(pair), self._sums[i], self._sums[j]
            inner = product[:-1, :-1]
            totals = [total[:-1] @ total[:-1] - total[-1] for total in (one, two)]
            # Row sums of the two matrices of all rows without their diagonals, multiplied row by row.
            rows = np.append(one[:-1], -1) @ product @ np.append(two[:-1], -1)
            hsic = np.square(inner).sum() - product[-1, -1] - 2 * rows / (n - 2)
            hsic += totals[0] * totals[1] / ((n - 1) * (n - 2))
            scale = self._frames[i][0] * self._frames[j][0]
            yield pair, scale * (inner - np.outer(one[:-1], two[:-1] / n)), float(hsic)


def effective_rank(scatter: Float64Array, total: float = 0.0) -> float:
    """Return the effective rank of a covariance (Roy & Vetterli 2007); NaN if rows are equal.

    It is the exponential of the entropy of the singular values, which are the covariance's eigenvalues, as shares.

    Args:
        scatter: float64 (dim, dim), a covariance or a multiple of it.
        total: The sum of the squares of the values: a variance that is only rounding error of it does not count.

    Examples:
        >>> round(effective_rank(np.diag([1.0, 1.0, 1.0, 0.0])), 6)
        3.0
    """
    values = np.clip(np.linalg.eigvalsh(scatter), 0, None)
    if values.sum() <= _LEAST_VARIANCE * total:
        return np.nan
    shares = values[values > 0] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def passes(dims: Sequence[int], max_bytes: int) -> list[list[tuple[int, int]]]:
    """Divide all pairs of layers, each with itself too, into passes whose sums fit some bytes; a pair always fits."""
    found: list[list[tuple[int, int]]] = [[]]
    left = max_bytes
    for i in range(len(dims)):
        for j in range(i, len(dims)):
            n_bytes = 8 * (dims[i] + 1) * (dims[j] + 1)
            if n_bytes > left and found[-1]:
                found.append([])
                left = max_bytes
            found[-1].append((i, j))
            left -= n_bytes
    return found
