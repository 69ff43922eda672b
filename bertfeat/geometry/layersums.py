"""Sums over the rows of a layer that give its measures exactly, in memory that does not grow with the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bertfeat.moments import Moments
from bertfeat.nearest import lengths_of
from bertfeat.records import Float32Array, Float64Array, Int32Array, IntArray

_N_LARGEST = 3


class UnitSums:
    """Sums of unit vectors of groups of rows: they give the mean cosine of all pairs of a group, without the pairs.

    The squared length of the sum is the sum of the cosines of all pairs, in both orders, and of each row with itself. A
    zero vector has cosine 0 with every vector.

    Args:
        n_groups: The number of groups.
        dim: The width of the vectors.
    """

    def __init__(self, n_groups: int, dim: int) -> None:
        self.sums: Float64Array = np.zeros((n_groups, dim))
        self._own: Float64Array = np.zeros(n_groups)
        self.counts: IntArray = np.zeros(n_groups, np.int64)

    def add(self, units: Float64Array, groups: Int32Array | IntArray) -> None:
        """Add unit vectors (n, dim) with their groups (n,)."""
        if not len(groups):
            return
        order = np.argsort(groups, kind="stable")
        numbers, first, counts = np.unique(groups[order], return_index=True, return_counts=True)
        self.sums[numbers] += np.add.reduceat(units[order], first, axis=0)
        self._own[numbers] += np.add.reduceat(np.square(units[order]).sum(axis=1), first)
        self.counts[numbers] += counts

    def merge(self, group: int, other: UnitSums, theirs: int) -> None:
        """Add a group of other sums to a group."""
        self.sums[group] += other.sums[theirs]
        self._own[group] += other._own[theirs]
        self.counts[group] += other.counts[theirs]

    def cosines(self) -> Float64Array:
        """Return the mean cosine of the pairs of each group, (n_groups,); NaN for groups of less than two rows."""
        n_pairs = self.counts * (self.counts - 1.0)
        n_pairs[n_pairs == 0] = np.nan
        return np.asarray((np.square(self.sums).sum(axis=1) - self._own) / n_pairs)


class _Sentences:
    """The mean over documents of the mean cosine of the pairs of rows of a document; documents are consecutive."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._last = UnitSums(1, dim)
        self._number = -1
        self._total, self._n = 0.0, 0

    def add(self, units: Float64Array, documents: Int32Array) -> None:
        """Add the next rows (n, dim) with the ascending numbers of their documents (n,)."""
        first = int(documents[0])
        sums = UnitSums(int(documents[-1]) - first + 1, self._dim)
        sums.add(units, documents - first)
        if first == self._number:
            sums.merge(0, self._last, 0)
        else:
            self._count(self._last.cosines())
        self._count(sums.cosines()[:-1])
        self._number = int(documents[-1])
        self._last = UnitSums(1, self._dim)
        self._last.merge(0, sums, -1)

    def mean(self) -> float:
        """Return the mean over all documents; NaN if none has two rows. No rows may be added after it."""
        self._count(self._last.cosines())
        self._last = UnitSums(1, self._dim)
        return self._total / self._n if self._n else np.nan

    def _count(self, cosines: Float64Array) -> None:
        known = cosines[~np.isnan(cosines)]
        self._total, self._n = self._total + float(known.sum()), self._n + len(known)


class LayerSums:
    """The sums of one layer.

    Args:
        dim: The width of the vectors.
        n_types: The word types whose self-similarity is measured.
    """

    def __init__(self, dim: int, n_types: int) -> None:
        self.types = UnitSums(n_types, dim)
        self._all = UnitSums(1, dim)
        self._sentences = _Sentences(dim)
        self._squares: Float64Array = np.zeros(dim)
        self._lengths = Moments(1, "squares")
        self._mean = Moments(dim, "mean")

    def add(self, vectors: Float32Array, documents: Int32Array, types: Int32Array) -> None:
        """Add the next rows (n, dim), with their documents and their word types (n,); -1 is a type that is left out."""
        lengths = lengths_of(vectors)
        units = vectors / np.where(lengths > 0, lengths, 1)[:, None]
        self._all.add(units, np.zeros(len(units), np.int32))
        self._sentences.add(units, documents)
        self.types.add(units[types >= 0], types[types >= 0])
        self._squares += np.einsum("ij,ij->j", vectors, vectors, dtype=np.float64)
        self._lengths.add(lengths[:, None])
        self._mean.add(vectors)

    @property
    def mean(self) -> Float64Array:
        """The mean of the rows, float64 (dim,)."""
        return self._mean.mean

    def measures(self) -> dict[str, float]:
        """Return the measures that these sums give; NaN where one is not defined."""
        n_rows, total = self._lengths.n_rows, self._squares.sum()
        cosines = self.types.cosines()
        known = cosines[~np.isnan(cosines)]
        return {
            "anisotropy": float(self._all.cosines()[0]),
            "self_similarity": float(known.mean()) if len(known) else np.nan,
            "within_sentence": float(self._sentences.mean()),
            "norm_mean": float(self._lengths.mean[0]),
            "norm_sd": float(np.sqrt(self._lengths.squares[0] / n_rows)),
            "top3_share": float(self._squares[self.largest()].sum() / total) if total else np.nan,
        }

    def largest(self) -> list[int]:
        """Return the numbers of the dimensions with the largest sums of squares, the largest first."""
        return [int(number) for number in np.argsort(-self._squares, kind="stable")[:_N_LARGEST]]


class PairSums:
    """Sums of the products of the values of pairs of layers: they give linear CKA without a matrix of rows by rows.

    ``CKA = |X'Y|^2 / (|X'X| |Y'Y|)`` with the Frobenius norm and centred columns (Kornblith et al. 2019). Products are
    made in float32 of what is left after a shift by the mean of the first block, and added up in float64: a large
    common mean does not lower the precision.

    Args:
        pairs: Pairs of numbers of layers, ascending.
        dims: The width of each layer, by its number.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]], dims: Mapping[int, int]) -> None:
        self._products = {(i, j): np.zeros((dims[i], dims[j])) for i, j in pairs}
        self._shifts: dict[int, Float32Array] = {}
        self._sums = {number: np.zeros(dims[number]) for pair in pairs for number in pair}
        self._n = 0

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers, ascending."""
        return sorted(self._sums)

    def add(self, vectors: Mapping[int, Float32Array]) -> None:
        """Add the same rows of all layers, each (n, dim)."""
        moved = {}
        for number, total in self._sums.items():
            shift = self._shifts.setdefault(number, vectors[number].mean(axis=0))
            moved[number] = vectors[number] - shift
            total += moved[number].sum(axis=0, dtype=np.float64)
        for (i, j), product in self._products.items():
            product += moved[i].T @ moved[j]
        self._n += len(next(iter(moved.values())))

    def scatters(self) -> Iterator[tuple[tuple[int, int], Float64Array]]:
        """Yield each pair with its sums of products of deviations from the mean, float64 (dim, dim); it is freed."""
        while self._products:
            i, j = pair = next(iter(self._products))
            yield pair, self._products.pop(pair) - np.outer(self._sums[i], self._sums[j] / self._n)


def effective_rank(scatter: Float64Array) -> float:
    """Return the exponential of the entropy of a covariance's spectrum (Roy & Vetterli 2007); NaN for equal rows.

    Args:
        scatter: float64 (dim, dim), a covariance or a multiple of it.

    Examples:
        >>> round(effective_rank(np.diag([1.0, 1.0, 1.0, 0.0])), 6)
        3.0
    """
    values = np.clip(np.linalg.eigvalsh(scatter), 0, None)
    if not values.sum() > 0:
        return np.nan
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def passes(dims: Mapping[int, int], max_bytes: int) -> list[list[tuple[int, int]]]:
    """Divide all pairs of layers, each with itself too, into passes whose sums fit some bytes; a pair always fits."""
    found: list[list[tuple[int, int]]] = [[]]
    left = max_bytes
    for i in sorted(dims):
        for j in (number for number in sorted(dims) if number >= i):
            n_bytes = 8 * dims[i] * dims[j]
            if n_bytes > left and found[-1]:
                found.append([])
                left = max_bytes
            found[-1].append((i, j))
            left -= n_bytes
    return found
