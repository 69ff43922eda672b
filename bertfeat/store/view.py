"""View of a level: stored columns and features as a stream of Arrow batches, for every library that takes Arrow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from bertfeat.choices import StoreDtype, VectorEncoding
from bertfeat.durable.records import encode
from bertfeat.errors import UserError, no_column
from bertfeat.forks import check_polars
from bertfeat.store import layout
from bertfeat.store.offsets import Rows
from bertfeat.store.part_reader import PartReader, opened
from bertfeat.store.parts import vector_array
from bertfeat.store.schema import field_metadata, row_group_rows
from bertfeat.store.vector_layout import VectorLayout
from bertfeat.store.vectors import VectorSource, opened_part

if TYPE_CHECKING:
    from bertfeat.store.reader import Store

# A row of a block while a filter is applied.
_ROW = "_bertfeat_row"


class LevelView:
    """Columns of a level, at first all that are stored; made by `store[level]`.

    Every library that takes Arrow takes a view: polars, pandas, pyarrow, DuckDB, datasets, narwhals. It is read block
    by block, in memory that does not grow, and only its columns are read. Vectors are fixed-size lists; a row
    without a vector is null. `len(view)` is the number of rows.
    """

    def __init__(
        self, store: Store, level: str, columns: Sequence[str | int] | None = None, dtype: StoreDtype | None = None
    ) -> None:
        there = store.columns(level)
        # Each once: layers by their numbers and by their names may be the same.
        self.columns = tuple(there if columns is None else dict.fromkeys(map(store.name, columns)))
        self._store, self._level = store, store.schema(level).level
        plain = {column.name for column in store.schema(level).columns}
        self._sources: dict[str, VectorSource] = {}
        for name in (name for name in self.columns if name not in plain):
            try:
                self._sources[name] = store.source(level, name)
            except UserError:
                raise UserError(f"{store.path}: {no_column(name, there, f' at level {level}')}") from None
        self._layout = VectorLayout(dtype or store.manifest.vectors.dtype, VectorEncoding.ARRAY)

    def select(self, *columns: str | int, dtype: npt.DTypeLike | None = None) -> LevelView:
        """Return a view of other columns of the level.

        Args:
            *columns: Stored columns, and features as for `Store.numpy`; without any, the columns stay.
            dtype: The type of the vectors, float32 or the stored one, which is the default.

        Raises:
            UserError: There is no such column or feature, or vectors have no such type.
        """
        kind = self._layout.dtype if dtype is None else np.dtype(dtype).name
        if kind not in (stored := self._store.manifest.vectors.dtype, StoreDtype.FLOAT32):
            raise UserError(f"dtype {kind} must be float32, or {stored} as stored")
        return LevelView(self._store, self._level, columns or self.columns, StoreDtype(kind))

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema. The fields of vectors say in their metadata of what model, layers and pooling they are."""
        metadata = self._store.metadata
        with opened_part(self._store.stored_parts(self._level)[0]) as file:
            fields = {field.name: field.remove_metadata() for field in file.schema_arrow}
        for name in self._sources:
            feature = self._store.feature(self._level, name)
            about = field_metadata(feature, self._level, metadata)
            fields[name] = pa.field(name, self._layout.arrow(feature.dim), metadata=about)
        return pa.schema([fields[name] for name in self.columns], {layout.METADATA_KEY: encode(metadata)})

    def __len__(self) -> int:
        return self._store.n_rows(self._level)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order as record batches of some MB."""
        for table in self._blocks(lambda file, rows: self._table(file, rows, self.columns), self.columns):
            yield from table.to_batches()

    def scan(self) -> pl.LazyFrame:
        """Return a lazy polars frame; columns, filters and the number of rows decide what is read."""
        from polars.io.plugins import register_io_source

        check_polars()
        return register_io_source(self._frames, schema=pl.DataFrame(self.schema.empty_table()).schema, is_pure=True)

    def _frames(
        self, columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        """Yield frames for polars: `columns` of the first `n_rows` rows, of which `predicate` keeps some."""
        names = self.columns if columns is None else columns
        asked = () if predicate is None else predicate.meta.root_names()
        # Vectors that decide nothing are read for the rows that stay.
        first = [name for name in self.columns if name in asked or (name in names and name not in self._sources)]
        first = first or [*self.columns[:1]]
        later = [name for name in names if name not in first]

        def read(file: PartReader, rows: Rows) -> pl.DataFrame:
            frame = cast("pl.DataFrame", pl.from_arrow(self._table(file, rows, first), rechunk=False))
            if predicate is not None:
                frame = frame.with_row_index(_ROW, rows[0]).filter(predicate)
                rows = frame[_ROW].to_numpy().astype(np.int64)
            vectors = {name: self._vectors(file, rows, self._sources[name]) for name in later}
            return frame.with_columns(pl.Series(name, found) for name, found in vectors.items()).select(names)

        return self._blocks(read, {*names, *asked}, n_rows)

    def _blocks(self, read: Callable[..., Any], names: Collection[str], n_rows: int | None = None) -> Iterator[Any]:
        """Yield what is read of each block of the first `n_rows` rows; a block is about a row group."""
        features = tuple(self._store.feature(self._level, name) for name in self._sources if name in names)
        step, left = row_group_rows(features, self._layout), len(self) if n_rows is None else n_rows
        for part in self._store.stored_parts(self._level):
            stop = min(part.info.n_rows, left)
            left -= stop
            with opened(part, self._store.kept) as file:
                for start in range(0, stop, step):
                    yield read(file, range(start, min(stop, start + step)))

    def _table(self, file: PartReader, rows: Any, names: Sequence[str]) -> pa.Table:
        """Return columns of a range of rows of a part."""
        plain = [name for name in names if name not in self._sources]
        table = file.table(rows, plain) if plain else {}
        columns = [
            self._vectors(file, rows, self._sources[name]) if name in self._sources else table[name] for name in names
        ]
        return pa.table(columns, pa.schema([self.schema.field(name) for name in names], self.schema.metadata))

    def _vectors(self, file: PartReader, rows: Rows, source: VectorSource) -> pa.Array:
        values: npt.NDArray[Any] = np.empty((len(rows), source.dim), self._store.manifest.vectors.numpy)
        if len(rows):
            file.read(source, rows, values)
        # Stored values are finite.
        valid = ~np.isnan(values[:, 0])
        return vector_array(values.astype(self._layout.numpy, copy=False), None if valid.all() else valid, self._layout)
