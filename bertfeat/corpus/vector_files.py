"""Files of vectors from elsewhere, .npy and .parquet, and files that say what their rows stand for."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from bertfeat.choices import Combine, CorpusFormat, Level, StoreDtype
from bertfeat.corpus.columns import encoded_types
from bertfeat.corpus.content import Reader, clean
from bertfeat.corpus.corpus import local_file
from bertfeat.corpus.formats import open_file
from bertfeat.corpus.line_streams import first_line
from bertfeat.corpus.parquet import ParquetReader, is_text
from bertfeat.errors import InputError
from bertfeat.finite import first_not_finite
from bertfeat.levels import EMBEDDING, LEVELS
from bertfeat.records import BoolArray, FeatureColumn, InputFile, IntArray

# The number of a row, counted from 0, and the vectors of this one and some after it: float (n_rows, sum of the widths
# of all features), NaN in a row without a vector.
Block = tuple[int, npt.NDArray[Any]]
# Arrow arrays, by name.
Columns = dict[str, Any]

_BLOCK_VALUES = 2 << 20
_DOC_ID, _WORD = "doc_id", "word"
_CHUNK_ROWS = 4096
_LAYER = re.compile(r"layer_(\d{2,3})", re.ASCII)


class VectorFile(ABC):
    """A file with one row per vector, open for reading; `features` are its vector columns."""

    n_rows: int
    features: tuple[FeatureColumn, ...]

    def __init__(self, file: InputFile, dtype: StoreDtype) -> None:
        self.file = file
        self._dtype = np.dtype(str(dtype))
        # The row after the last read, the rest of its block, and the blocks after it.
        self._next = -1
        self._rest: list[Block] = []
        self._following: Iterator[Block] = iter(())

    @abstractmethod
    def _blocks(self, start: int) -> Iterator[Block]: ...

    def check(self) -> None:
        """Check all values."""
        for first, values in self._blocks(0):
            self._stored(first, values)

    def read(self, start: int, n_rows: int) -> tuple[dict[str, npt.NDArray[Any]], BoolArray | None]:
        """Return the vectors of some rows; directly after the last ones, nothing is decoded again.

        Returns:
            For each feature the vectors in the stored type, (n_rows, dim), and which rows have one; None if all have.
        """
        if start != self._next:
            self._rest, self._following = [], self._blocks(start)
        end = self._next = start + n_rows
        found = np.empty((n_rows, sum(feature.dim for feature in self.features)), self._dtype)
        valid = np.empty(n_rows, np.bool_)
        for first, values in chain(self._rest, self._following):
            rows = slice(first - start, min(first + len(values), end) - start)
            found[rows], valid[rows] = self._stored(first, values[: end - first])
            if rows.stop == n_rows:
                self._rest = [(end, values[end - first :])]
                vectors = np.split(found, self._borders, axis=1)
                names = [feature.name for feature in self.features]
                return dict(zip(names, vectors, strict=True)), None if valid.all() else valid
        raise self._wrong("has fewer rows than it had; was it changed?")

    @property
    def _borders(self) -> IntArray:
        """Where the values of each feature but the first begin in a row."""
        return np.cumsum([feature.dim for feature in self.features])[:-1]

    def _wrong(self, reason: str, row: int | None = None) -> InputError:
        return InputError(reason, path=self.file.path, row=row)

    def _stored(self, first: int, values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], BoolArray]:
        """Convert the rows of a block to the stored type; one that is NaN in all values has no vector."""
        # A row can be all NaN only if it begins with NaN.
        valid = ~np.isnan(values[:, 0])
        for row in np.flatnonzero(~valid).tolist():
            valid[row] = not np.isnan(values[row]).all()
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.ascontiguousarray(values, self._dtype)
        if (bad := first_not_finite(found, valid)) is not None:
            place = np.flatnonzero(~np.isfinite(found[bad]))[0]
            name, value = self.features[np.searchsorted(self._borders, place, "right")].name, values[bad, place]
            reason = f"{value:g}, which {self._dtype} does not hold; pass `store_dtype='float32'` or scale the vectors"
            if not np.isfinite(value):
                reason = f"{value}; a row without a vector is NaN in all its values"
            raise self._wrong(f"{name} holds {reason}", first + bad + 1)
        return found, valid


class NpyVectors(VectorFile):
    """Reads .npy, mapped into memory: (n_rows, dim), or (n_rows, n_layers, dim)."""

    def __init__(self, file: InputFile, dtype: StoreDtype) -> None:
        super().__init__(file, dtype)
        found = self._opened()
        if found.ndim not in (2, 3) or not found.size:
            must = "(rows, values) or (rows, layers, values), with at least one value"
            raise self._wrong(f"has shape {found.shape}; it must be {must}")
        if found.dtype.kind != "f" or found.dtype.itemsize > 8:
            raise self._wrong(f"its values are {found.dtype}; write float16, float32 or float64")
        self.n_rows = len(found)
        names = [f"layer_{layer:02d}" for layer in range(found.shape[1])] if found.ndim == 3 else [EMBEDDING]
        self.features = tuple(_feature(name, found.shape[-1]) for name in names)

    def _opened(self) -> npt.NDArray[Any]:
        """Map the file; pages that were read leave the memory with the last reference to the array."""
        try:
            return np.lib.format.open_memmap(self.file.path, mode="r")
        except Exception as error:  # a damaged header is Python that NumPy parses, with any of Python's errors
            reason = f"cannot be read as .npy ({first_line(error)}); write it with numpy.save"
            raise self._wrong(reason) from error

    def _blocks(self, start: int) -> Iterator[Block]:
        step = max(1, _BLOCK_VALUES // sum(feature.dim for feature in self.features))
        while len(rows := self._opened()[start : start + step]):
            yield start, rows.reshape(len(rows), -1)
            start += len(rows)


class ParquetVectors(VectorFile):
    """Reads .parquet: columns of lists of floats are vectors, by default all; `columns` has all names."""

    def __init__(self, file: InputFile, dtype: StoreDtype, vector_columns: Sequence[str] = ()) -> None:
        super().__init__(file, dtype)
        self._reader = ParquetReader(file)
        self.columns, self.n_rows = self._reader.columns, self._reader.n_rows
        self._reader.check_names(vector_columns or self.columns)
        types = self._reader.types
        found = [name for name, kind in types.items() if name and _is_vector(kind)]
        missing = [name for name in vector_columns if name not in found]
        if missing or not found:
            shown = ", ".join(f"{name} ({kind})" for name, kind in types.items()) or "none"
            which = f"column {missing[0]!r}" if missing else "column"
            raise self._wrong(f"no {which} with lists of float16, float32 or float64; columns are {shown}")
        self.features = tuple(_feature(name, self._width(name)) for name in vector_columns or found)

    def _width(self, name: str) -> int:
        """Return the number of values in the first row of a column that has a vector."""
        for _, batch in self._reader.batches([name]):
            for length in pc.list_value_length(batch.column(name)).drop_null()[:1].to_pylist():
                if length:
                    return int(length)
        raise self._wrong(f"has no rows, or column {name!r} no values; there is nothing to import")

    def _blocks(self, start: int) -> Iterator[Block]:
        for first, batch in self._reader.batches([feature.name for feature in self.features], start):
            yield first, np.hstack([self._matrix(first, batch.column(f.name), f) for f in self.features])

    def _matrix(self, first: int, column: Any, feature: FeatureColumn) -> npt.NDArray[Any]:
        """Return the vectors of a column, float (n_rows, dim); nulls are NaN."""
        series = cast("pl.Series", pl.from_arrow(column))
        if isinstance(series.dtype, pl.List):
            lengths = series.list.len()
            for row in (lengths != feature.dim).arg_true():
                reason = f"{feature.name} has {lengths[row]} values, rows before have {feature.dim}"
                raise self._wrong(f"{reason}; write vectors of one width", first + row + 1)
            series = series.list.to_array(feature.dim)
        return series.to_numpy()


def _feature(name: str, dim: int) -> FeatureColumn:
    layer = _LAYER.fullmatch(name)
    return FeatureColumn(name, (int(layer[1]) if layer else 0,), str(Combine.NONE), dim)


def _is_vector(kind: Any) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_floating(kind.value_type))


def vector_file(path: str) -> InputFile:
    """Describe a file of vectors, whose ending names its format."""
    return local_file(path, _format)


def _format(path: str) -> tuple[str, str | None]:
    ending = PurePosixPath(path).suffix.lower()
    if ending not in (".npy", ".parquet"):
        recipes = "recipes make a .parquet of ELMo's .hdf5 and of google's .jsonl: python -m bertfeat.pipelines"
        raise InputError(f"ending {ending!r} must be one of .npy, .parquet; convert the file ({recipes})", path=path)
    return ending[1:], None


class VectorRows:
    """The columns of a store beside its vectors, all of them in `table`.

    At sentence level each row is a document. At word level, rows with one `doc_id` after the other are its words.
    `columns` are those of the file, which may lack `doc_id`, and `words` the words if they are not a column; `rows` are
    their numbers, for messages. `starts` and `lengths` are the rows of each document: int64 (n_documents,).
    """

    def __init__(
        self, path: str, level: Level, columns: Mapping[str, Any], rows: Sequence[int], words: Any = None
    ) -> None:
        self.path, self._rows = path, rows
        self.given = [name for name in columns if name != _DOC_ID]
        found = {_DOC_ID: pl.int_range(len(rows), eager=True).to_arrow(), **columns}
        found |= {} if words is None else {_WORD: words}
        # A column with the name of one that bertfeat writes has the type of that one.
        types = {column.name: pa.type_for_alias(column.type) for column in LEVELS[level].columns}
        if is_text(kind := found[_DOC_ID].type):
            types[_DOC_ID] = pa.string()
        elif not pa.types.is_integer(kind):
            raise self._wrong(f"column 'doc_id' is {kind}; write whole numbers or texts")
        own = {name: self._fitted(name, found[name], kind) for name, kind in types.items() if name in found}
        own.setdefault(LEVELS[level].surface or "text", pa.nulls(len(rows), pa.string()))
        ids = _series(own[_DOC_ID])
        is_first = ids.ne_missing(ids.shift()) if level is Level.WORD else pl.repeat(True, len(ids), eager=True)
        self.starts = is_first.arg_true().cast(pl.Int64).to_numpy()
        self.lengths = np.diff(self.starts, append=len(rows))
        self._check_ids(ids)
        if level is Level.WORD:
            own = _places(_series(own[_WORD]), is_first.cum_sum()) | own
            self._check_order(ids, _series(own["word_index"]))
        others = {name: column for name, column in columns.items() if name not in types}
        self.table = _table({name: own[name] for name in types if name in own} | others)
        self.kept_arrow = encoded_types([self.table.field(name) for name in others])

    def costs(self, n_bytes: int) -> list[int]:
        """Return about the bytes of each document, from those of a row without the texts of the file."""
        sizes = np.zeros(len(self._rows), np.int64)
        for name in self.given:
            if is_text(self.table.field(name).type):
                sizes += _series(self.table[name].cast(pa.string())).str.len_chars().fill_null(0).to_numpy()
        costs: list[int] = np.add.reduceat(sizes + n_bytes, self.starts).tolist()
        return costs

    def _fitted(self, name: str, column: Any, kind: Any) -> Any:
        """Return a column with the type that bertfeat writes; a file of texts has numbers as texts."""
        try:
            return column.cast(kind)
        except pa.ArrowException as error:
            reason = f"column {name!r} is not {kind} ({first_line(error)})"
            raise self._wrong(f"{reason}; bertfeat has a column of that name, so rename yours") from None

    def _check_ids(self, ids: pl.Series) -> None:
        for row in ids.is_null().arg_true():
            raise self._wrong("doc_id is null; give each row one", row)
        documents = ids.gather(self.starts)
        for second in documents.is_first_distinct().not_().arg_true():
            first = self._rows[int(self.starts[documents.index_of(documents[second])])]
            reason = f"id {documents[second]!r} appears twice, first at row {first}; make ids unique"
            raise self._wrong(f"{reason}, and keep rows of one together", int(self.starts[second]))

    def _check_order(self, ids: pl.Series, word_index: pl.Series) -> None:
        index = word_index.fill_null(-1).to_numpy()
        before = np.roll(index, 1)
        before[self.starts] = -1
        for row in np.flatnonzero(index <= before).tolist():
            reason = f"word_index {word_index[row]} of document {ids[row]!r} must be above {before[row]}"
            raise self._wrong(reason, row)

    def _wrong(self, reason: str, row: int | None = None) -> InputError:
        return InputError(reason, path=self.path, row=None if row is None else self._rows[row])


def read_rows(file: InputFile, level: Level, left_out: Sequence[str] = ()) -> VectorRows:
    """Read a file whose rows are those of the vectors, without the columns in `left_out`."""
    with closing(open_file(file)) as reader:
        if reader.has_words and level is not Level.WORD:
            raise InputError(f"{file.format} has words, and the vectors are of sentences; pass a table", path=file.path)
        if "" in reader.columns:
            raise InputError("a column has no name; name it, or leave out the index of a data frame", path=file.path)
        reader.check_names(reader.columns)
        reader.select([name for name in reader.columns if name not in left_out])
        # The values of formats without columns of their own tell the types.
        types = {name: kind for name, kind in (reader.types or {}).items() if name in {*reader.columns} - {*left_out}}
        rows = _words(reader) if reader.has_words else reader.good_rows()
        numbers = array("q")
        tables = [_table({name: pa.nulls(0, kind) for name, kind in types.items()})]
        try:
            while chunk := [*islice(rows, _CHUNK_ROWS)]:
                numbers.extend(number for number, _ in chunk)
                tables.append(_table(_columns([values for _, values in chunk], types)))
            table = pa.concat_tables(tables, promote_options="permissive")
        except pa.ArrowException as error:
            reason = f"a column holds values of several types ({first_line(error)}); write one type"
            raise InputError(reason, path=file.path) from None
    columns = {name: table[name] for name in table.column_names}
    for name in () if types else table.column_names:
        if pa.types.is_nested(columns[name].type):
            raise InputError(f"column {name!r} holds lists or objects; keep plain values only", path=file.path)
        if pa.types.is_null(columns[name].type):
            columns[name] = columns[name].cast(pa.string())
    if file.format == CorpusFormat.TXT:
        columns = {_DOC_ID: columns["text"]}
    if level is Level.WORD and _DOC_ID not in columns:
        there = ", ".join(columns) or "none"
        reason = f"no column 'doc_id', which tells the words of one text from the next; columns are {there}"
        raise InputError(reason, path=file.path)
    words = columns.pop(_WORD) if reader.has_words else None
    return VectorRows(file.path, level, columns, numbers, words)


def _words(reader: Reader) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the words of a CoNLL file like the rows of a table, with the number of their sentence."""
    for number, (row, values) in enumerate(reader.good_rows()):
        columns = {_DOC_ID: [number] * len(values["words"]), _WORD: values["words"], **values["columns"]}
        for fields in zip(*columns.values(), strict=True):
            yield row, dict(zip(columns, fields, strict=True))


def _columns(rows: Sequence[Mapping[str, Any]], types: Mapping[str, Any]) -> Columns:
    """Return some rows as columns of the given types, or without them of the types of their values."""
    columns = {}
    for name in types or dict.fromkeys(name for values in rows for name in values):
        values = [clean(value) if isinstance(value := row.get(name), str) else value for row in rows]
        try:
            if types.get(name) == pa.string():
                # The first `pa.array` of a process imports pandas.
                columns[name] = pl.Series(values, dtype=pl.String).to_arrow().cast(pa.string())
            else:
                columns[name] = pa.array(values, types.get(name))
        except (pa.ArrowException, OverflowError) as error:
            raise pa.ArrowInvalid(f"{name}: {first_line(error)}") from None
    return columns


def _table(columns: Columns) -> pa.Table:
    # `pa.table` imports pandas.
    return pa.Table.from_arrays([*columns.values()], [*columns])


def _series(column: Any) -> pl.Series:
    return cast("pl.Series", pl.from_arrow(column))


def _places(words: pl.Series, document: pl.Series) -> dict[str, Any]:
    """Return `word_index` and, in documents whose words are known, where words are in the text, joined by spaces."""
    length = pl.col("word").str.len_chars().cast(pl.Int64)
    end = (length + 1).cum_sum().over("document") - 1
    is_known = pl.col("word").is_not_null().all().over("document")
    places = pl.DataFrame({"word": words, "document": document}).select(
        word_index=pl.int_range(pl.len()).over("document"),
        char_start=pl.when(is_known).then(end - length),
        char_end=pl.when(is_known).then(end),
    )
    return {series.name: series.to_arrow() for series in places.cast(pl.Int32)}
