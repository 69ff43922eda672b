"""Vector columns of parts as NumPy arrays: stored columns by name, and features made from stored layers."""

from __future__ import annotations

import contextlib
import functools
import operator
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.choices import Combine, VectorEncoding
from bertfeat.durable import files
from bertfeat.errors import StoreError, UserError, did_you_mean
from bertfeat.records import IntArray, LevelSchema, PartInfo
from bertfeat.storage import AnyPath, ObjectPath
from bertfeat.store.offsets import VectorOffsets
from bertfeat.store.vector_layout import VectorLayout

_LAYER = re.compile(r"layer_(\d{2,})")
_COMBINED = re.compile(r"(?P<how>concat|sum|mean)_(?:last(?P<last>\d+)|(?P<all>all)|(?P<set>\d{2,}(?:_\d{2,})*))")


@dataclass(frozen=True, slots=True)
class Piece:
    """Values `start` to `start + width - 1` of a stored column."""

    column: str
    start: int
    width: int


@dataclass(frozen=True, slots=True)
class VectorSource:
    """The stored values of a feature, its layers (absolute, ascending) and how they combine.

    The pieces of a sum or mean that is not stored are added up, those of other features laid end to end.
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

    `n_layers`, the blocks of the model, is what `last4` and `all` count.
    """
    for feature in schema.features:
        if feature.name == name:
            piece = Piece(name, 0, feature.dim)
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
    pieces = tuple(stored[layer] for layer in layers)
    dim = sum(piece.width for piece in pieces) if combine is Combine.CONCAT else pieces[0].width
    return VectorSource(dim, pieces, layers, Combine.NONE if len(layers) == 1 else combine)


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


def _stored_layers(schema: LevelSchema) -> dict[int, Piece]:
    """Map each layer that is stored, alone or concatenated, to its values."""
    stored: dict[int, Piece] = {}
    for feature in schema.features:
        if feature.combine == Combine.CONCAT:
            width = feature.dim // len(feature.layers)
            for number, layer in enumerate(feature.layers):
                stored.setdefault(layer, Piece(feature.name, number * width, width))
    for feature in schema.features:
        # A column of one layer comes first: less must be read.
        if _LAYER.fullmatch(feature.name):
            stored[feature.layers[0]] = Piece(feature.name, 0, feature.dim)
    return stored


@dataclass(frozen=True)
class StoredPart:
    """A part as the manifest describes it."""

    path: AnyPath
    info: PartInfo
    schema: LevelSchema
    vectors: VectorLayout
    # Files whose digest was found right.
    _checked: set[tuple[int, int, int]] = field(default_factory=set, compare=False, repr=False)

    @property
    def can_be_copied(self) -> bool:
        """Whether vectors can be copied from their places in the file, without a decoder."""
        return self.info.runs is not None and isinstance(self.path, Path) and sys.byteorder == "little"

    @functools.cached_property
    def offsets(self) -> Mapping[str, VectorOffsets]:
        """Where the vector columns lie, of a part with runs."""
        assert self.info.runs is not None
        starts = np.cumsum([0, *self.info.runs.rows], dtype=np.int64)
        return {
            name: VectorOffsets(
                dim * self.vectors.numpy.itemsize, starts, np.array(self.info.runs.offsets[name], np.int64)
            )
            for name, dim in ((feature.name, feature.dim) for feature in self.schema.features)
        }

    def check_digest(self) -> None:
        """Raise ValueError if a local part does not have the bytes that were written; reads it whole, once.

        A decoder may turn a damaged level or encoding into other vectors. Vectors that are copied from known places
        depend on no other bytes of the file.
        """
        if not isinstance(self.path, Path):
            return
        status = self.path.stat()
        check_size(self, status.st_size)
        identity = status.st_ino, status.st_size, status.st_mtime_ns
        if identity not in self._checked:
            if files.digest_of(self.path) != self.info.digest:
                raise ValueError("its bytes are not those that were written")
            self._checked.add(identity)


@contextlib.contextmanager
def opened_part(part: StoredPart) -> Iterator[pq.ParquetFile]:
    """Open a part for reading, and check that it has the size, rows and columns of the manifest.

    Of an object, only the needed pieces are read, with few requests.
    """
    with reading(part.path), contextlib.ExitStack() as stack:
        if isinstance(part.path, ObjectPath):
            file = stack.enter_context(pq.ParquetFile(stack.enter_context(part.path.open()), pre_buffer=True))
        else:
            check_size(part, part.path.stat().st_size)
            file = stack.enter_context(pq.ParquetFile(part.path))
        _check_footer(file, part)
        yield file


@contextlib.contextmanager
def reading(path: AnyPath) -> Iterator[None]:
    """Turn the errors of a damaged part into a StoreError of one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(
            f"{path}: no such file; open the store again if it was replaced or compacted meanwhile, else run "
            "bertfeat verify"
        ) from error
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
    names = [column.name for column in part.schema.columns] + [feature.name for feature in part.schema.features]
    if schema.names != names:
        raise ValueError(f"its columns are {', '.join(schema.names)}, not {', '.join(names)}")
    # polars panics on names inside types that are not UTF-8; Python raises ValueError.
    _ = [str(kind) for kind in schema.types]
    for feature in part.schema.features:
        kind, wanted = schema.field(feature.name).type, part.vectors.arrow(feature.dim)
        if kind != wanted:
            raise ValueError(f"its column {feature.name!r} is {kind}, not {wanted}")


def read_groups(file: pq.ParquetFile, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
    """Return columns of some row groups, in the order of `names`: as many rows as the footer says."""
    table = file.read_row_groups(groups, columns=list(names)).select(list(names))
    n_rows = sum(file.metadata.row_group(group).num_rows for group in groups)
    # pyarrow skips pages of unknown types, and polars does not check that strings are UTF-8.
    if names and table.num_rows != n_rows:
        raise ValueError(f"its row groups have {table.num_rows} of their {n_rows} rows")
    table.validate(full=True)
    fields = [file.schema_arrow.field(name).remove_metadata() for name in names]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


def add_layers(layers: Iterable[npt.NDArray[Any]], combine: str, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Add up layers in float32, round once, and return `out`, which then holds their sum or mean.

    Each layer, an array of the shape of `out`, is used before the next one is asked for.

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


def copy_decoded(
    table: pa.Table, vectors: VectorLayout, piece: Piece, rows: range | IntArray, out: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Copy values of some rows of a decoded row group; null vectors become NaN. Return `out`."""
    column = table.column(piece.column)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    # The values of null vectors are any.
    if vectors.encoding is VectorEncoding.BINARY:
        n_bytes, offset, data = array.type.byte_width, 0, array.buffers()[1]
    else:
        n_bytes, offset = array.type.list_size * out.itemsize, array.values.offset * out.itemsize
        data = array.values.buffers()[1]
    flat = np.frombuffer(data, out.dtype, len(array) * n_bytes // out.itemsize, offset + array.offset * n_bytes)
    chosen = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
    out[:] = flat.reshape(len(array), -1)[chosen, piece.start : piece.start + piece.width]
    if array.null_count:
        out[array.is_null().to_numpy(zero_copy_only=False)[chosen]] = np.nan
    return out
