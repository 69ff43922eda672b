"""Whole tables of any format as frames, such as tables of labels."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from itertools import islice
from typing import Any, cast

import polars as pl
import pyarrow as pa

from bertfeat.choices import CorpusFormat
from bertfeat.corpus.content import BEGIN, RowError, clean
from bertfeat.corpus.corpus import local_file
from bertfeat.corpus.formats import READERS, open_file
from bertfeat.corpus.parquet import ParquetReader
from bertfeat.errors import InputError
from bertfeat.records import InputFile

_ROWS_AT_ONCE = 65_536


def read_table(path: str, needed: Collection[str] | None = None) -> pl.DataFrame:
    """Return a table; values of .csv and .tsv are texts.

    By default all columns are `needed`, with values of one type; other columns of texts and JSON are null.
    """
    file = local_file(path)
    with closing(open_file(file)) as reader:
        if not reader.has_columns:
            known = ", ".join(ending for kind in READERS if kind.has_columns for ending in kind.endings)
            raise InputError(f"is {file.format}, which has no columns; pass one of {known}", path=path)
        reader.check_names(reader.columns)
        if isinstance(reader, ParquetReader):
            batches = (batch for _, batch in reader.batches(reader.columns))
            return cast("pl.DataFrame", pl.from_arrow(pa.Table.from_batches(batches, reader.schema)))
        rows = (values for _, values in reader.good_rows())
        pieces: list[pl.DataFrame] = []
        # Rows take several times the memory of a table.
        while (batch := [*islice(rows, _ROWS_AT_ONCE)]) or not pieces:
            names = reader.columns if reader.types is not None else dict.fromkeys(name for row in batch for name in row)
            taken = {name for name in names if needed is None or name in needed}
            values = {name: [row.get(name) if name in taken else None for row in batch] for name in names}
            pieces.append(pl.DataFrame([_series(file, *column) for column in values.items()]))
        for name in dict.fromkeys(name for piece in pieces for name in piece.columns):
            # Values of one type in each piece may be of several types in all.
            _series(file, name, [piece[name].drop_nulls().first() for piece in pieces if name in piece.columns])
        return pl.concat(pieces, how="diagonal_relaxed")


def columns_of(file: InputFile) -> list[str]:
    """Return the columns of a table; for JSON, those of its first row, none if that cannot be read."""
    with closing(open_file(file)) as reader:
        if reader.types is not None:
            return [*reader.columns]
        first = next(iter(reader.rows(BEGIN)), None)
        return [] if first is None or isinstance(first.values, RowError) else [*first.values]


def _series(file: InputFile, name: str, values: list[Any]) -> pl.Series:
    kind: type[pl.DataType] | None = pl.String if file.format in (CorpusFormat.CSV, CorpusFormat.TSV) else None
    # JSON writes whole numbers without a point; polars takes the type of the first one.
    if {*map(type, values)} - {type(None)} == {int, float}:
        kind = pl.Float64
    try:
        return pl.Series(name, [clean(value) if isinstance(value, str) else value for value in values], kind)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        reason = f"column {name!r} holds values of several types ({error}); write one type"
        raise InputError(" ".join(reason.split()), path=file.path) from None
