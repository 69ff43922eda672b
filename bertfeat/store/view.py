"""View of a level: stored columns and features as a stream of Arrow batches, for every library that takes Arrow."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from bertfeat.choices import StoreDtype, VectorEncoding
from bertfeat.durable.records import encode
from bertfeat.errors import UserError, no_column
from bertfeat.forks import check_polars
from bertfeat.process_end import called_by_polars
from bertfeat.storage import ObjectPath
from bertfeat.store import layout
from bertfeat.store.part_reader import PartReader, opened
from bertfeat.store.parts import vector_array
from bertfeat.store.schema import field_metadata, row_group_rows
from bertfeat.store.selection import starts_of, take_vectors
from bertfeat.store.vector_layout import VectorLayout
from bertfeat.store.vectors import VectorSource, opened_part

if TYPE_CHECKING:
    from bertfeat.store.reader import Store

# Of no column of a corpus.
_ROW = "row number of the level"
_POLARS = {StoreDtype.FLOAT16: pl.Float16, StoreDtype.FLOAT32: pl.Float32}


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
        """Yield the rows in order as record batches, each of about a row group."""
        features = tuple(self._store.feature(self._level, name) for name in self._sources)
        step = row_group_rows(features, self._layout)
        for part in self._store.stored_parts(self._level):
            with opened(part, self._store.kept) as file:
                for start in range(0, part.info.n_rows, step):
                    yield from self._table(file, range(start, min(part.info.n_rows, start + step))).to_batches()

    def scan(self) -> pl.LazyFrame:
        """Return a lazy polars frame; columns, filters and the number of rows decide what is read.

        Vectors are read as `Store.take` reads them, of the rows that are left by filters on other columns. polars reads
        these, and compares nothing with the manifest.
        """
        check_polars()
        paths = [part.path for part in self._store.stored_parts(self._level)]
        options = paths[0].scan_options() if isinstance(paths[0], ObjectPath) else {}
        frame = pl.scan_parquet([str(path) for path in paths], glob=False, row_index_name=_ROW, **options)
        return frame.select(self._vectors_of_rows(name) if name in self._sources else name for name in self.columns)

    def _vectors_of_rows(self, name: str) -> pl.Expr:
        """Return the vectors of a feature as a function of the row numbers that polars wants."""
        source, starts = self._sources[name], starts_of(self._store.stored_parts(self._level))

        def read(rows: pl.Series) -> pl.Series:
            with called_by_polars():
                numbers = rows.cast(pl.Int64).to_numpy()
                # Of the many parts that there may be, polars asks at once for rows of one or a few.
                ends = [numbers.min(), numbers.max()] if len(numbers) else [0, 0]
                first, last = starts.searchsorted(ends, side="right") - 1
                parts = self._store.stored_parts(self._level)[first : last + 1]
                vectors = take_vectors(parts, numbers - starts[first], source, self._store.kept)
                return cast("pl.Series", pl.from_arrow(self._array(vectors)))

        kind = pl.Array(_POLARS[self._layout.dtype], source.dim)
        return pl.col(_ROW).map_batches(read, kind, is_elementwise=True).alias(name)

    def _table(self, file: PartReader, rows: range) -> pa.Table:
        """Return the columns of a range of rows of a part."""
        plain = [name for name in self.columns if name not in self._sources]
        table = file.table(rows, plain) if plain else {}
        columns = [
            self._vectors(file, rows, self._sources[name]) if name in self._sources else table[name]
            for name in self.columns
        ]
        return pa.table(columns, self.schema)

    def _vectors(self, file: PartReader, rows: range, source: VectorSource) -> pa.Array:
        values: npt.NDArray[Any] = np.empty((len(rows), source.dim), self._store.manifest.vectors.numpy)
        if len(rows):
            file.read(source, rows, values)
        return self._array(values)

    def _array(self, values: npt.NDArray[Any]) -> pa.Array:
        """Return vectors (n_rows, dim) in Arrow; stored values are finite, so that NaN stands for null."""
        valid = ~np.isnan(values[:, 0])
        return vector_array(values.astype(self._layout.numpy, copy=False), None if valid.all() else valid, self._layout)
