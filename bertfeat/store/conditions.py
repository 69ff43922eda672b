"""SQL conditions on the columns of a level: the rows for which they are true, in a store and in tables to be stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import polars as pl
import pyarrow as pa

from bertfeat.choices import Level
from bertfeat.errors import UserError, no_column
from bertfeat.records import BoolArray, Column, IntArray, LevelSchema
from bertfeat.store.schema import arrow_array

_DOCUMENT = "_document"


def rows_where(
    where: str, setting: str, known: Sequence[str], read: Callable[[list[str]], pl.DataFrame], at: str = ""
) -> BoolArray:
    """Return for which rows an SQL condition on known columns is true, bool (n_rows,).

    `read` returns the columns that the condition names. Messages name the `setting`, and the columns' place `at`.
    """

    def wrong(reason: str) -> UserError:
        return UserError(f"`{setting}` {where!r:.120}: {reason}")

    try:
        condition = pl.sql_expr(where)
        named = list(dict.fromkeys(condition.meta.root_names()))
        for name in named:
            if name not in known:
                quotes = "texts take single quotes, as in doc_id = 'a'"
                raise wrong(f"{no_column(name, known, at)}; {quotes}")
        if not named:
            raise wrong(f"names no column; columns are {', '.join(known)}")
        frame = read(named)
        if _DOCUMENT in frame.columns:
            condition = condition.over(_DOCUMENT)
        # A new column must have a value for each row, or one for all.
        mask = frame.lazy().with_columns(condition.alias("_condition")).select("_condition").collect()["_condition"]
    except pl.exceptions.PolarsError as error:
        first_line = str(error).strip().partition("\n")[0]
        raise wrong(f"not an SQL condition on these columns: {first_line}") from error
    if mask.dtype != pl.Boolean:
        raise wrong(f"gives {mask.dtype}, where a condition is true or false")
    flags: BoolArray = mask.fill_null(False).to_numpy()
    return flags


def table_rows_where(
    where: str,
    level: Level,
    schemas: Mapping[Level, LevelSchema],
    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]],
    document: IntArray,
) -> BoolArray:
    """Return for which rows of a level that is to be stored `rows` is true, bool (n_rows,).

    `columns` are those of the level and, if these are stored too, of its documents. `document`, int64 (n_rows,), is the
    number of each row's document: MAX and other functions of several rows are of the rows of one document.
    """
    own = {column.name: column for column in schemas[level].columns}
    of_documents = schemas[Level.SENTENCE].columns if Level.SENTENCE in schemas else ()
    known = {**own, **{column.name: column for column in of_documents if column.name not in own}}

    def read(names: list[str]) -> pl.DataFrame:
        return pl.DataFrame([pl.Series(_DOCUMENT, document), *(_series(known[name], columns[name]) for name in names)])

    return rows_where(where, "rows", list(known), read, f" at level {level}")


def _series(column: Column, values: Sequence[Any] | npt.NDArray[Any]) -> pl.Series:
    try:
        kind = pa.type_for_alias(column.type)
    except ValueError:
        # A kept column whose type has no name of its own, such as a decimal.
        return pl.Series(column.name, list(values))
    return pl.Series(column.name, arrow_array(values, kind))
