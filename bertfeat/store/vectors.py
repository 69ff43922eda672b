"""Vector columns of parts as NumPy arrays: stored columns by name, and features made from stored layers."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.choices import Combine, VectorEncoding
from bertfeat.errors import StoreError, UserError, did_you_mean
from bertfeat.records import LevelSchema, PartInfo
from bertfeat.storage import AnyPath, ObjectPath
from bertfeat.store.vectorlayout import VectorLayout

_LAYER = re.compile(r"layer_(\d{2,})")
_COMBINED = re.compile(r"(?P<how>concat|sum|mean)_(?:last(?P<last>\d+)|(?P<all>all)|(?P<set>\d{2,}(?:_\d{2,})*))")


@dataclass(frozen=True, slots=True)
class Piece:
    """Values `start` to `start + width - 1` of a stored column, which become the values from `target` of a vector."""

    column: str
    start: int
    width: int
    target: int


@dataclass(frozen=True, slots=True)
class VectorSource:
    """The stored values of a feature, its layers (absolute, ascending) and how they combine.

    The pieces of a sum or mean that is not stored have the same target; all other targets do not overlap.
    """

    dim: int
    pieces: tuple[Piece, ...]
    layers: tuple[int, ...]
    combine: Combine

    @property
    def adds(self) -> bool:
        """Whether the pieces are added up."""
        return len(self.pieces) > 1 and self.combine in (Combine.SUM, Combine.MEAN)

    @property
    def columns(self) -> list[str]:
        """The stored columns to read."""
        return list(dict.fromkeys(piece.column for piece in self.pieces))


def feature_name(feature: str | int, n_layers: int) -> str:
    """Return the name of a feature that is given by its name, or by the number of a layer; -1 is the last one.

    Raises:
        UserError: There is no such layer.

    Examples:
        >>> feature_name("mean_all", 12), feature_name(6, 12), feature_name(-1, 12)
        ('mean_all', 'layer_06', 'layer_12')
    """
    if isinstance(feature, str):
        return feature
    try:
        layer = operator.index(feature)
    except TypeError:
        raise UserError(f"feature {feature!r} must be a name, or the number of a layer") from None
    if not -n_layers - 1 <= layer <= n_layers:
        raise UserError(f"no layer {layer}; layers are 0 to {n_layers}, and -1 is the last one")
    return f"layer_{layer % (n_layers + 1):02d}"


def find_source(schema: LevelSchema, name: str, n_layers: int) -> VectorSource:
    """Find a feature among the stored columns, or make it from layers that are stored alone or concatenated.

    Args:
        schema: The level's columns.
        name: A stored feature, `layer_11`, or `concat_last4`, `mean_all`, `sum_09_11`, ...
        n_layers: Blocks of the model, which `last4` and `all` count.

    Raises:
        UserError: The feature is not stored and cannot be made from stored layers.
    """
    for feature in schema.features:
        if feature.name == name:
            piece = Piece(name, 0, feature.dim, 0)
            combine = Combine.NONE if len(feature.layers) == 1 else Combine(feature.combine)
            return VectorSource(feature.dim, (piece,), feature.layers, combine)
    combine, layers = _layers_named(name, n_layers)
    stored = _stored_layers(schema)
    if not layers or not set(layers) <= set(stored):
        names = [feature.name for feature in schema.features]
        # A layer that is not stored is not a typing error.
        hint = None if layers else did_you_mean(name, [*names, *(f"layer_{layer:02d}" for layer in stored)])
        there = f"nor can it be made from those there are: {', '.join(names)}"
        raise UserError(f"no feature {name!r} at level {schema.level}{f'; {hint}' if hint else f', {there}'}")
    pieces: list[Piece] = []
    target = dim = 0
    for layer in layers:
        column, start, width = stored[layer]
        pieces.append(Piece(column, start, width, target))
        dim = target + width
        target = dim if combine is Combine.CONCAT else 0
    return VectorSource(dim, tuple(pieces), layers, Combine.NONE if len(layers) == 1 else combine)


def _layers_named(name: str, n_layers: int) -> tuple[Combine, tuple[int, ...]]:
    """Return how a feature's name combines which layers; no layers for a name of another form."""
    if match := _LAYER.fullmatch(name):
        return Combine.NONE, (int(match[1]),)
    match = _COMBINED.fullmatch(name)
    if match is None:
        return Combine.NONE, ()
    combine = Combine(match["how"])
    if match["last"] is not None:
        return combine, tuple(range(max(0, n_layers + 1 - int(match["last"])), n_layers + 1))
    if match["all"] is not None:
        return combine, tuple(range(n_layers + 1))
    return combine, tuple(sorted({int(layer) for layer in match["set"].split("_")}))


def _stored_layers(schema: LevelSchema) -> dict[int, tuple[str, int, int]]:
    """Map each layer that is stored, alone or concatenated, to its column, first value and width."""
    stored: dict[int, tuple[str, int, int]] = {}
    for feature in schema.features:
        if feature.combine == Combine.CONCAT:
            width = feature.dim // len(feature.layers)
            for number, layer in enumerate(feature.layers):
                stored.setdefault(layer, (feature.name, number * width, width))
    for feature in schema.features:
        # A column of one layer comes first: less must be read.
        if _LAYER.fullmatch(feature.name):
            stored[feature.layers[0]] = (feature.name, 0, feature.dim)
    return stored


@contextlib.contextmanager
def open_parquet(path: AnyPath) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; of an object, only the needed pieces are read, with few requests."""
    if not isinstance(path, ObjectPath):
        with pq.ParquetFile(path) as file:
            yield file
        return
    with path.open() as source, pq.ParquetFile(source, pre_buffer=True) as file:
        yield file


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part as the manifest describes it."""

    path: AnyPath
    info: PartInfo
    schema: LevelSchema
    vectors: VectorLayout

    @property
    def columns(self) -> list[str]:
        """The names of all columns, vectors last."""
        schema = self.schema
        return [*(column.name for column in schema.columns), *(feature.name for feature in schema.features)]


@contextlib.contextmanager
def opened_part(part: StoredPart) -> Iterator[pq.ParquetFile]:
    """Open a part for reading, and check that it has the size, rows and columns of the manifest.

    Raises:
        StoreError: The part is missing, damaged or another file, now or while it is read.
    """
    with reading(part.path), open_parquet(part.path) as file:
        if isinstance(part.path, Path):
            check_size(part, part.path.stat().st_size)
        _check_footer(file, part)
        yield file


@contextlib.contextmanager
def reading(path: AnyPath) -> Iterator[None]:
    """Turn the errors of a damaged part into a StoreError of one line."""
    try:
        yield
    except (pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(f"{path}: cannot be read: {reason}; run bertfeat verify") from error


def group_rows(file: pq.ParquetFile) -> list[int]:
    """Return the rows of each row group."""
    return [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]


def check_size(part: StoredPart, n_bytes: int) -> None:
    """Raise ValueError if a file does not have the size in the manifest."""
    if n_bytes != part.info.n_bytes:
        raise ValueError(f"{n_bytes} bytes, not {part.info.n_bytes}")


def _check_footer(file: pq.ParquetFile, part: StoredPart) -> None:
    counts = group_rows(file)
    if min(counts, default=0) < 0 or sum(counts) != part.info.n_rows:
        raise ValueError(f"{sum(counts)} rows, not {part.info.n_rows}")
    if part.info.runs is not None and counts != list(part.info.runs.rows):
        raise ValueError("its row groups are not those of the manifest")
    schema = file.schema_arrow
    if schema.names != part.columns:
        raise ValueError(f"its columns are {', '.join(schema.names)}, not {', '.join(part.columns)}")
    # polars panics on names inside types that are not UTF-8; Python raises ValueError.
    _ = [str(kind) for kind in schema.types]
    for feature in part.schema.features:
        kind, wanted = schema.field(feature.name).type, part.vectors.arrow(feature.dim)
        # Whether elements may be null does not change their places.
        is_same = kind == wanted
        if pa.types.is_fixed_size_list(kind) and pa.types.is_fixed_size_list(wanted):
            is_same = (kind.value_type, kind.list_size) == (wanted.value_type, wanted.list_size)
        if not is_same:
            raise ValueError(f"its column {feature.name!r} is {kind}, not {wanted}")


def read_groups(
    file: pq.ParquetFile, groups: Sequence[int], names: Sequence[str], *, use_threads: bool = True
) -> pa.Table:
    """Return columns of some row groups, in the order of `names`: as many rows as the footer says."""
    table = file.read_row_groups(groups, columns=list(names), use_threads=use_threads).select(list(names))
    n_rows = sum(file.metadata.row_group(group).num_rows for group in groups)
    # pyarrow skips pages of unknown types, and polars does not check that strings are UTF-8.
    if names and table.num_rows != n_rows:
        raise ValueError(f"its row groups have {table.num_rows} of their {n_rows} rows")
    table.validate(full=True)
    return pa.Table.from_arrays(table.columns, schema=_schema(file, names))


def empty_table(file: pq.ParquetFile, names: Sequence[str]) -> pa.Table:
    """Return columns of a part without rows and without their metadata."""
    # `empty_table` of a schema would import pandas.
    return pa.Table.from_batches([], _schema(file, names))


def _schema(file: pq.ParquetFile, names: Sequence[str]) -> pa.Schema:
    return pa.schema([file.schema_arrow.field(name).remove_metadata() for name in names])


def fill(out: npt.NDArray[Any], column: pa.ChunkedArray, piece: Piece, vectors: VectorLayout) -> None:
    """Copy values of a decoded column into `out` (rows of the column, width of the piece); null vectors become NaN."""
    if len(column) != len(out):
        raise ValueError(f"{len(column)} of {len(out)} rows of {piece.column}")
    row = 0
    for chunk in column.chunks:
        if not len(chunk):
            continue
        block = out[row : row + len(chunk)]
        block[:] = _matrix(chunk, vectors)[:, piece.start : piece.start + piece.width]
        if chunk.null_count:
            block[chunk.is_null().to_numpy(zero_copy_only=False)] = np.nan
        row += len(chunk)


def add_layers(layers: Iterable[npt.NDArray[Any]], combine: str, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Add up layers in float32, round once, and return `out`, which then holds their sum or mean.

    Args:
        layers: Arrays of the shape of `out`; each is used before the next is asked for.
        combine: `sum` or `mean`.
        out: Takes the values.

    Examples:
        >>> add_layers([np.array([1.0, 2.0]), np.array([2.0, 2.0])], "mean", np.empty(2, np.float16)).tolist()
        [1.5, 2.0]
    """
    total = np.zeros(out.shape, np.float32)
    n_layers = 0
    for layer in layers:
        total += layer
        n_layers += 1
    if combine == Combine.MEAN:
        total /= n_layers
    out[...] = total
    return out


def _matrix(chunk: pa.Array, vectors: VectorLayout) -> npt.NDArray[Any]:
    """View an Arrow vector column as an array (n_rows, dim) without copying it."""
    itemsize = vectors.numpy.itemsize
    if vectors.encoding is VectorEncoding.BINARY:
        dim, offset, data = chunk.type.byte_width // itemsize, 0, chunk.buffers()[1]
    else:
        dim, offset, data = chunk.type.list_size, chunk.values.offset, chunk.values.buffers()[1]
    start = (offset + chunk.offset * dim) * itemsize
    return np.frombuffer(data, vectors.numpy, count=len(chunk) * dim, offset=start).reshape(len(chunk), dim)
