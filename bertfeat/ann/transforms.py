"""Transforms of vectors before they are compared: centering, whitening, principal axes, truncation; unit length."""
# Raw BERT vectors have a large part in common: any two of them have a cosine near 0.6.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.records import Float32Array, IntArray
from bertfeat.vectors.array import Vectors, chunks_of
from bertfeat.vectors.nearest import Metric, unit_length
from bertfeat.vectors.standardized import Moments, Projection, principal_axes

# Below this part of the largest variance a direction holds only rounding errors: LayerNorm makes one direction empty,
# and float16 fills it with noise. It is scaled as if its variance were this part, which keeps it small.
EIGENVALUE_FLOOR = 1e-7

_STEP_ROWS = 2048


class TransformKind(StrEnum):
    """A kind of transform: how it is asked for, what it is fitted to, and whether axes are divided by deviations."""

    NONE = "none", ("none",), None
    CENTER = "center", ("center",), "mean"
    WHITEN = "whiten", ("whiten", "whiten:DIM"), "scatter", True
    PCA = "pca", ("pca:DIM",), "scatter"
    TRUNCATE = "truncate", ("truncate:DIM",), None

    forms: tuple[str, ...]  # DIM is the width that it leaves
    fitted_to: Literal["mean", "scatter"] | None  # a kind of `Moments`
    divides: bool

    def __new__(
        cls, name: str, forms: tuple[str, ...], fitted_to: Literal["mean", "scatter"] | None, divides: bool = False
    ) -> Self:
        """Make a member whose value is its name."""
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.forms, kind.fitted_to, kind.divides = forms, fitted_to, divides
        return kind


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """A transform to fit; `dim` is the number of dimensions that it leaves, None for all."""

    kind: TransformKind
    dim: int | None = None

    def __str__(self) -> str:
        return str(self.kind) if self.dim is None else f"{self.kind}:{self.dim}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a transform such as `center` or `whiten:128`; raise a UserError if it is not one."""
        name, colon, number = text.partition(":")
        forms = [form for kind in TransformKind for form in kind.forms]
        if (f"{name}:DIM" if colon else name) not in forms:
            raise UserError(f"transform {text!r}: choose one of {', '.join(forms)}")
        if not colon:
            return cls(TransformKind[name.upper()])
        if not (number.isascii() and number.isdigit() and int(number) >= 1):
            raise UserError(f"transform {text!r}: DIM is {number!r}; give a whole number from 1 on, as in {name}:128")
        return cls(TransformKind[name.upper()], int(number))

    def out_dim(self, dim: int) -> int:
        """Return the number of dimensions that the transform leaves of `dim`."""
        return dim if self.dim is None else self.dim

    def check(self, dim: int, n_vectors: int) -> None:
        """Raise a UserError if vectors are too few, or have too few dimensions, to fit the transform to."""
        if self.dim is not None and self.dim > dim:
            raise UserError(f"transform '{self}': the vectors have {dim} dimensions; give 1 to {dim}")
        least = {None: 0, "mean": 1, "scatter": self.out_dim(dim) + 1}[self.kind.fitted_to]
        if n_vectors < least:
            raise UserError(
                f"transform '{self}': it takes {least} vectors or more, and there are {n_vectors}; use a smaller DIM, "
                "center or none, or index more vectors"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Truncation:
    """The first `out_dim` of `dim` values, scaled to length 1: Matryoshka embeddings (Kusupati et al. 2022)."""

    dim: int
    out_dim: int

    def apply(self, vectors: npt.NDArray[Any]) -> Float32Array:
        """Return float32 (n, out_dim) vectors of length 1; a zero vector stays zero."""
        return unit_length(np.ascontiguousarray(vectors[:, : self.out_dim], dtype=np.float32))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays to save."""
        return {"dimensions": np.array([self.dim, self.out_dim], dtype=np.int64)}


Transform: TypeAlias = Truncation | Projection


def transform_of(arrays: Mapping[str, npt.NDArray[Any]]) -> Transform:
    """Return the transform of arrays that `to_arrays` gave."""
    if "dimensions" in arrays:
        return Truncation(*map(int, arrays["dimensions"]))
    return Projection(arrays["mean"], arrays.get("matrix"))


def fit_transform(source: Vectors, spec: TransformSpec) -> Transform | None:
    """Fit a transform to all vectors of a source, read once, in float64; None for `none`."""
    n_vectors, dim = source.shape
    spec.check(dim, n_vectors)
    if spec.kind.fitted_to is None:
        return None if spec.dim is None else Truncation(dim, spec.dim)
    moments = Moments(dim, spec.kind.fitted_to)
    for _, vectors in chunks_of(source):
        moments.add(vectors)
    if spec.kind.fitted_to == "mean":
        return Projection(moments.mean)
    try:
        variances, axes = principal_axes(moments, spec.out_dim(dim))
    except UserError as error:
        raise UserError(f"transform '{spec}': {error}; use none") from None
    if spec.kind.divides:
        axes = axes / np.sqrt(np.maximum(variances, EIGENVALUE_FLOOR * variances[0]))
    return Projection(moments.mean, np.ascontiguousarray(axes, dtype=np.float32))


def prepare(vectors: npt.NDArray[Any], transform: Transform | None, metric: Metric) -> Float32Array:
    """Return vectors, float (n, dim), as an index holds them: float32 (n, out_dim), for the cosine of unit length."""
    out = np.ascontiguousarray(vectors, dtype=np.float32) if transform is None else transform.apply(vectors)
    return unit_length(out) if metric is Metric.COSINE else out


def prepared_rows(source: Vectors, positions: IntArray, transform: Transform | None, metric: Metric) -> Float32Array:
    """Return the vectors at some positions, ascending, as an index takes them; the source is read once."""
    dim = source.shape[1] if transform is None else transform.out_dim
    out = np.empty((len(positions), dim), dtype=np.float32)
    for rows, vectors in chunks_of(source):
        first, last = np.searchsorted(positions, [rows.start, rows.stop])
        if last > first:
            out[first:last] = prepare(vectors[positions[first:last] - rows.start], transform, metric)
    return out


def prepared_chunks(
    source: Vectors, pieces: Sequence[range], step: int, transform: Transform | None, metric: Metric
) -> Iterator[Float32Array]:
    """Yield prepared vectors, float32 (n, dim), each valid until the next one; it ends with a piece or after `step`."""
    at = first = pieces[0].start
    cuts = iter([cut for piece in pieces for cut in [*range(piece.start + step, piece.stop, step), piece.stop]])
    stop = next(cuts)
    widest = min(step, max(map(len, pieces)))
    chunk = np.empty((widest, source.shape[1] if transform is None else transform.out_dim), dtype=np.float32)
    for number, rows in enumerate(source.chunks):
        if rows.stop <= at:
            continue
        vectors = source.read(number)
        while at < rows.stop:
            until = min(stop, rows.stop)
            some = vectors[at - rows.start : until - rows.start]
            chunk[at - first : until - first] = prepare(some, transform, metric)
            at = until
            if at == stop:
                yield chunk[: at - first]
                first, stop = at, next(cuts, at)
