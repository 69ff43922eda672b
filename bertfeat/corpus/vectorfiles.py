"""Files of vectors from elsewhere, .npy and .parquet: their columns, the checks of their values, and their rows."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from bertfeat.choices import Combine, StoreDtype
from bertfeat.corpus.inputs import endings_of, local_file
from bertfeat.corpus.parquet import ParquetReader
from bertfeat.errors import InputError, did_you_mean
from bertfeat.levels import EMBEDDING
from bertfeat.records import BoolArray, FeatureColumn, InputFile
from bertfeat.vectors.finite import first_not_finite

# Vectors of the stored type, (n_rows, dim), and which rows have one; None if all have.
Stored = tuple[dict[str, npt.NDArray[Any]], BoolArray | None]

_CHECKED_BYTES = 16 << 20
_RECIPE = "a recipe makes a .parquet of it: python -m bertfeat.pipelines."
_INSTEAD = dict.fromkeys((".hdf5", ".h5"), f"{_RECIPE}elmo_vectors")
_INSTEAD |= dict.fromkeys((".jsonl", ".json"), f"{_RECIPE}google_vectors")
_INSTEAD |= {".npz": "save one array with numpy.save"}
_LAYER = re.compile(r"layer_(\d{2,3})", re.ASCII)


class VectorFile(ABC):
    """A file with one row per vector, open for reading.

    Attributes:
        columns: The names of its columns.
        features: The vector columns.
    """

    columns: Sequence[str] = ()
    features: tuple[FeatureColumn, ...]

    def __init__(self, file: InputFile, dtype: StoreDtype) -> None:
        self.file = file
        self.dtype = np.dtype(str(dtype))

    @abstractmethod
    def check(self) -> int:
        """Check all values, and return the number of rows.

        Raises:
            InputError: A value cannot be used.
        """

    @abstractmethod
    def read(self, start: int, n_rows: int) -> Stored:
        """Return the vectors of some rows."""

    def close(self) -> None:  # noqa: B027
        """Close the file, if it is open between two reads."""

    def wrong(self, reason: str, row: int | None = None) -> InputError:
        """Return the error for something in the file."""
        return InputError(reason, path=self.file.path, row=row)

    def stored(self, values: Mapping[str, npt.NDArray[Any]], place: Callable[[int], tuple[str, int | None]]) -> Stored:
        """Convert vectors to the stored type; a row that is NaN in all values of all columns has no vector.

        Args:
            values: float (n_rows, dim) for each column.
            place: Returns how messages begin that name a row, and its number in the file if that is a line or a row.

        Raises:
            InputError: A row holds NaN or infinity, or a value that the stored type does not hold.
        """
        # A row can be all NaN only if it begins with NaN.
        valid = ~np.isnan(np.stack([array[:, 0] for array in values.values()])).all(axis=0)
        for row in np.flatnonzero(~valid).tolist():
            valid[row] = not all(np.isnan(array[row]).all() for array in values.values())
        found = {}
        for name, array in values.items():
            with np.errstate(over="ignore", invalid="ignore"):
                cast = np.ascontiguousarray(array, self.dtype)
            bad = first_not_finite(cast, valid)
            if bad is not None:
                where, number = place(bad)
                reason = self._not_finite(array[bad][~np.isfinite(cast[bad])][0])
                raise self.wrong(f"{where}{name} holds {reason}", number)
            found[name] = cast
        return found, None if valid.all() else valid

    def _not_finite(self, value: np.floating[Any]) -> str:
        if not np.isfinite(value):
            return f"{value}; a row without a vector is NaN in all its values"
        remedy = "pass `store_dtype='float32'`" if self.dtype == np.float16 else "scale the vectors"
        return f"{value:g}, which {self.dtype} does not hold; {remedy}"


class NpyVectors(VectorFile):
    """Reads .npy, mapped into memory: (n_rows, dim), or (n_rows, n_layers, dim)."""

    def __init__(self, file: InputFile, dtype: StoreDtype) -> None:
        super().__init__(file, dtype)
        found = self._opened()
        if found.ndim not in (2, 3):
            raise self.wrong(f"has shape {found.shape}, not (rows, values) or (rows, layers, values)")
        if found.dtype.kind != "f" or found.dtype.itemsize > 8:
            raise self.wrong(f"its values are {found.dtype}; write float16, float32 or float64")
        if not found.size:
            raise self.wrong(f"has no rows or no values, shape {found.shape}; there is nothing to import")
        self._n_rows, self._row_bytes = len(found), found[0].nbytes
        names = [f"layer_{layer:02d}" for layer in range(found.shape[1])] if found.ndim == 3 else [EMBEDDING]
        self.features = tuple(_feature(name, found.shape[-1]) for name in names)

    def _opened(self) -> npt.NDArray[Any]:
        """Map the file; pages that were read leave the memory with the last reference to the array."""
        try:
            found = np.load(self.file.path, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # a damaged header is Python that NumPy parses, with any of Python's errors
            reason = f"cannot be read as .npy ({' '.join(str(error).split())[:120]}); write it with numpy.save"
            raise self.wrong(reason) from error
        if not isinstance(found, np.ndarray):
            found.close()
            raise self.wrong("is an archive of arrays (.npz); save one array with numpy.save")
        return found

    def check(self) -> int:
        """Check all values, and return the number of rows."""
        step = max(1, _CHECKED_BYTES // self._row_bytes)
        for start in range(0, self._n_rows, step):
            self.read(start, step)
        return self._n_rows

    def read(self, start: int, n_rows: int) -> Stored:
        """Return the vectors of some rows."""
        rows = self._opened()[start : start + n_rows]
        arrays = [rows] if rows.ndim == 2 else [rows[:, layer] for layer in range(rows.shape[1])]
        values = {feature.name: array for feature, array in zip(self.features, arrays, strict=True)}
        return self.stored(values, lambda row: (f"row {start + row}, counted from 0: ", None))


class ParquetVectors(VectorFile):
    """Reads .parquet: columns of lists of floats are vectors, by default all of them."""

    def __init__(self, file: InputFile, dtype: StoreDtype, vector_columns: Sequence[str] = ()) -> None:
        super().__init__(file, dtype)
        self._reader = ParquetReader(file)
        self.columns = self._reader.columns
        self._names = self._chosen(vector_columns)
        self.features = self._described()
        self._next = -1
        self._batches: Iterator[tuple[int, pa.RecordBatch]] = iter(())

    def _chosen(self, wanted: Sequence[str]) -> list[str]:
        types = self._reader.types or {}
        self._reader.check_names(wanted or self.columns)
        for name in wanted:
            if name not in types:
                there = did_you_mean(name, types) or f"columns are {', '.join(types)}"
                raise self.wrong(f"no column {name!r} for `vector_columns`; {there}")
            if not _is_vector(types[name]):
                raise self.wrong(f"column {name!r} is {types[name]}; vectors are lists of float16, float32 or float64")
        names = list(wanted) or [name for name, kind in types.items() if name and _is_vector(kind)]
        if not names:
            shown = ", ".join(f"{name} ({kind})" for name, kind in types.items()) or "none"
            raise self.wrong(f"no column with a name holds lists of float16, float32 or float64; columns are {shown}")
        return names

    def _described(self) -> tuple[FeatureColumn, ...]:
        """Return the vector columns, whose widths are those of the first row that has a vector."""
        dims: dict[str, int] = {}
        for _, batch in self._reader.batches(self._names):
            for name in self._names:
                lengths = pc.list_value_length(batch.column(name)).drop_null()
                if name not in dims and len(lengths):
                    dims[name] = lengths[0].as_py()
            if len(dims) == len(self._names):
                break
        for name in self._names:
            if not dims.get(name):
                raise self.wrong(f"has no rows, or column {name!r} no values; there is nothing to import")
        return tuple(_feature(name, dims[name]) for name in self._names)

    def check(self) -> int:
        """Check all values, and return the number of rows."""
        n_rows = 0
        for first, batch in self._reader.batches(self._names):
            self._stored(first, batch)
            n_rows += batch.num_rows
        return n_rows

    def read(self, start: int, n_rows: int) -> Stored:
        """Return the vectors of some rows; directly after the last ones, nothing is decoded again."""
        parts = [self._stored(first, batch) for first, batch in self._taken(start, n_rows)]
        flags = [np.ones(len(next(iter(found.values()))), np.bool_) if flag is None else flag for found, flag in parts]
        valid = np.concatenate(flags)
        vectors = {name: np.concatenate([found[name] for found, _ in parts]) for name in self._names}
        return vectors, None if valid.all() else valid

    def _taken(self, start: int, n_rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        if start != self._next:
            self._batches = self._reader.batches(self._names, start)
        end, self._next = start + n_rows, start
        for first, batch in self._batches:
            yield first, batch.slice(0, end - first)
            self._next = min(first + batch.num_rows, end)
            if first + batch.num_rows > end:
                rest = (end, batch.slice(end - first))
                self._batches = itertools.chain([rest], self._batches)
            if self._next == end:
                return
        raise self.wrong("has fewer rows than it had; was it changed?")

    def _stored(self, first: int, batch: pa.RecordBatch) -> Stored:
        values = {feature.name: self._matrix(first, batch.column(feature.name), feature) for feature in self.features}
        return self.stored(values, lambda row: ("", first + row + 1))

    def _matrix(self, first: int, column: Any, feature: FeatureColumn) -> npt.NDArray[Any]:
        """Return the vectors of a column, float (n_rows, dim); those that are null are NaN."""
        valid = _numpy(column.is_valid())
        rows = np.flatnonzero(valid)
        lengths = _numpy(pc.list_value_length(column).drop_null())
        if len(wrong := np.flatnonzero(lengths != feature.dim)):
            reason = f"{feature.name} has {lengths[wrong[0]]} values, rows before have {feature.dim}"
            raise self.wrong(f"{reason}; write vectors of one width", first + int(rows[wrong[0]]) + 1)
        flat = column.flatten()
        if flat.null_count:
            at = rows[np.flatnonzero(_numpy(flat.is_null()))[0] // feature.dim]
            reason = f"{feature.name} holds a null; write numbers, or make the whole vector null"
            raise self.wrong(reason, first + int(at) + 1)
        values = _numpy(flat).reshape(-1, feature.dim)
        if valid.all():
            return values
        found = np.full((len(column), feature.dim), np.nan, values.dtype)
        found[valid] = values
        return found

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


def _feature(name: str, dim: int) -> FeatureColumn:
    layer = _LAYER.fullmatch(name)
    return FeatureColumn(name, (int(layer[1]) if layer else 0,), str(Combine.NONE), dim)


def _numpy(array: Any) -> npt.NDArray[Any]:
    """Return an Arrow array without nulls; its own `to_numpy` imports pandas."""
    return cast("pl.Series", pl.from_arrow(array)).to_numpy()


def _is_vector(kind: Any) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_floating(kind.value_type))


def vector_file(path: str) -> InputFile:
    """Describe a file of vectors.

    Raises:
        InputError: The file does not exist or has no bytes, or its ending names no format.
    """

    def choose(path: str) -> tuple[str, str | None]:
        ending, compression = endings_of(path)
        if ending not in (".npy", ".parquet"):
            hint = _INSTEAD.get(ending, "rename the file, or convert it")
            raise InputError(f"ending {ending!r} must be one of .npy, .parquet; {hint}", path=path)
        if compression is not None:
            raise InputError(f"{ending} is not read from .gz or .zst; decompress it", path=path)
        return ending[1:], None

    return local_file(path, choose)


def open_vectors(file: InputFile, dtype: StoreDtype, vector_columns: Sequence[str] = ()) -> VectorFile:
    """Open a file that `vector_file` described; `vector_columns` are for Parquet.

    Raises:
        InputError: The file cannot be read, or holds no vectors.
    """
    if file.format == "parquet":
        return ParquetVectors(file, dtype, vector_columns)
    return NpyVectors(file, dtype)
