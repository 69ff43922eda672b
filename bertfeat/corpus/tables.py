"""Whole tables of any format as frames, such as tables of labels."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
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
        rows = [values for _, values in reader.good_rows()]
        names = reader.columns if reader.types is not None else dict.fromkeys(name for row in rows for name in row)
        values = {name: [row.get(name) if needed is None or name in needed else None for row in rows] for name in names}
        return pl.DataFrame([_series(file, name, values[name]) for name in names])


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
