"""Reader of Parquet with columns of vectors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from bertfeat.choices import Combine
from bertfeat.config import ExtractConfig
from bertfeat.corpus.rowsources import Words
from bertfeat.corpus.rowtables import Batch, ParquetTable, RowCursor
from bertfeat.corpus.tablerows import TableRows
from bertfeat.corpus.vectorfiles import Block, Stored, Unit, VectorReader
from bertfeat.errors import did_you_mean
from bertfeat.records import FeatureColumn, FileSlice, InputFile

_LAYER = re.compile(r"layer_(\d{2,3})", re.ASCII)


class ParquetVectors(VectorReader):
    """Reads .parquet: columns of lists of floats are vectors, and all others come along."""

    format = "parquet"
    endings = (".parquet",)
    has_columns = True

    def __init__(self, file: InputFile, config: ExtractConfig, vector_columns: Sequence[str] = ()) -> None:
        super().__init__(file, config, vector_columns)
        self._table = ParquetTable(file)
        names = self._chosen(self._table.types)
        self._cursor = RowCursor(self._table, names)
        self.features = self._described(names)
        self.own_rows = TableRows(self._table, self.level, names)

    def _chosen(self, types: dict[str, Any]) -> list[str]:
        for name in self.vector_columns:
            if name not in types:
                there = did_you_mean(name, types) or f"columns are {', '.join(types)}"
                raise self.wrong(f"no column {name!r} for `vector_columns`; {there}")
            if not _is_vector(types[name]):
                raise self.wrong(f"column {name!r} is {types[name]}; vectors are lists of float16, float32 or float64")
        names = list(self.vector_columns) or [name for name, kind in types.items() if _is_vector(kind)]
        if not names:
            shown = ", ".join(f"{name} ({kind})" for name, kind in types.items()) or "none"
            raise self.wrong(f"no column holds lists of float16, float32 or float64; columns are {shown}")
        return names

    def _described(self, names: Sequence[str]) -> tuple[FeatureColumn, ...]:
        """Return the vector columns, whose widths are those of the first row that has a vector."""
        dims = {name: kind.list_size for name in names if pa.types.is_fixed_size_list(kind := self._table.types[name])}
        n_rows = 0
        for batch in self._table.batches(names):
            n_rows += len(batch.rows)
            for name in names:
                lengths = pc.list_value_length(batch.columns[name]).drop_null()
                if name not in dims and len(lengths):
                    dims[name] = lengths[0].as_py()
            if len(dims) == len(names) and n_rows:
                break
        if not n_rows:
            raise self.wrong("has no rows; there is nothing to import")
        for name in names:
            if not dims.get(name):
                raise self.wrong(f"column {name!r} has no values; there is nothing to import")
        layers = {name: int(found[1]) if (found := _LAYER.fullmatch(name)) else 0 for name in names}
        return tuple(FeatureColumn(name, (layers[name],), str(Combine.NONE), dims[name]) for name in names)

    def scan(self) -> Iterator[Unit]:
        """Check all values, and yield some rows at a time."""
        for batch in self._table.batches([feature.name for feature in self.features]):
            self._stored(batch)
            yield Unit(len(batch.rows))

    def read(self, piece: FileSlice, given: Sequence[Words | None]) -> Block:  # noqa: ARG002
        """Return some rows."""
        return Block.of([self._stored(batch) for batch in self._cursor.take(piece.offset, piece.n_rows)])

    def _stored(self, batch: Batch) -> Stored:
        values = {feature.name: self._matrix(batch, feature) for feature in self.features}
        return self.stored(values, lambda row: ("", batch.rows[row]))

    def _matrix(self, batch: Batch, feature: FeatureColumn) -> npt.NDArray[Any]:
        """Return the vectors of a column, float (n_rows, dim); those that are null are NaN."""
        column = batch.columns[feature.name]
        valid = _numpy(column.is_valid())
        rows = np.flatnonzero(valid)
        lengths = _numpy(pc.list_value_length(column).drop_null())
        if len(wrong := np.flatnonzero(lengths != feature.dim)):
            reason = f"{feature.name} has {lengths[wrong[0]]} values, rows before have {feature.dim}"
            raise self.wrong(f"{reason}; write vectors of one width", batch.rows[rows[wrong[0]]])
        flat = column.flatten()
        if flat.null_count:
            first = np.flatnonzero(_numpy(flat.is_null()))[0]
            reason = f"{feature.name} holds a null; write numbers, or make the whole vector null"
            raise self.wrong(reason, batch.rows[rows[first // feature.dim]])
        values = _numpy(flat).reshape(-1, feature.dim)
        if valid.all():
            return values
        found = np.full((len(column), feature.dim), np.nan, values.dtype)
        found[valid] = values
        return found

    def close(self) -> None:
        """Close the file."""
        self._cursor.close()


def _numpy(array: Any) -> npt.NDArray[Any]:
    """Return an Arrow array without nulls; its own `to_numpy` imports pandas."""
    return cast("pl.Series", pl.from_arrow(array)).to_numpy()


def _is_vector(kind: Any) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_floating(kind.value_type))
