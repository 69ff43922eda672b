"""Facets: columns of the corpus whose values the search page offers as filters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS
from bertfeat.store.reader import Store
from bertfeat.store.rowcolumns import read_columns, row_columns

# A column with more values gets a box to write into.
_MAX_CHOICES = 50
_MAX_CHOICE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Facet:
    """A column that hits can be filtered by.

    Attributes:
        name: The column.
        dtype: Its polars type: a string, a number or a boolean.
        choices: Its values as texts, if there are few; else empty.
    """

    name: str
    dtype: pl.DataType
    choices: tuple[str, ...]

    def condition(self, value: str) -> str:
        """Return the SQL condition that a row has a value; raise a UserError if the column cannot hold it."""
        name = '"' + self.name.replace('"', '""') + '"'
        return f"{name} = {self._literal(value)}"

    def _literal(self, value: str) -> str:
        if self.dtype == pl.String:
            return "'" + value.replace("'", "''") + "'"
        if self.dtype == pl.Boolean:
            if value not in ("true", "false"):
                raise UserError(f"filter {self.name}: {value!r:.60} is not true or false")
            return value
        try:
            number = int(value) if self.dtype.is_integer() else float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or abs(number) >= 2**63:
            raise UserError(f"filter {self.name}: {value!r:.60} is not a number that the column can hold")
        return repr(number)


def find_facets(store: Store, level: Level) -> dict[str, Facet]:
    """Return the facets of a level by name: its columns, and those of its documents, that came from the corpus.

    Raises:
        StoreError: A part is missing or damaged.
    """
    own = {column.name for known in (level, Level.SENTENCE) for column in LEVELS[known].columns}
    facets = {}
    for name in (name for names in row_columns(store, level) for name in names if name not in own):
        values = read_columns(store, level, [name])[name]
        if values.dtype in (pl.String, pl.Boolean) or values.dtype.is_numeric():
            facets[name] = Facet(name, values.dtype, _choices(values))
    return facets


def _choices(values: pl.Series) -> tuple[str, ...]:
    distinct = values.drop_nulls().unique()
    if len(distinct) > _MAX_CHOICES:
        return ()
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in distinct.sort().to_list()]
    # An empty choice is that of no filter.
    return tuple(texts) if all(0 < len(text) <= _MAX_CHOICE_CHARS for text in texts) else ()
