"""Columns of the rows of a map: what names a row, its text, kept columns of the corpus, and its neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from bertfeat.choices import Level
from bertfeat.errors import UserError, did_you_mean
from bertfeat.levels import LEVELS, PAIR_COLUMNS
from bertfeat.records import Float32Array, IntArray
from bertfeat.search.hitrows import HitRows
from bertfeat.store.reader import Store
from bertfeat.store.rowcolumns import check_columns, row_columns

_MADE = ("x", "y", "neighbors")
_CONTEXT_COLUMNS = 60
_PAGE_TEXT_COLUMNS = 300


class MapTable:
    """The columns of a map's rows: those that name a row, its text, and the kept columns of the corpus."""

    def __init__(self, store: Store, level: Level, columns: Sequence[str] | None) -> None:
        entry, own = LEVELS[level], row_columns(store, level)
        self._hits, self._level = HitRows(store, level), level
        standard = {column.name for known in LEVELS.values() for column in (*known.columns, *PAIR_COLUMNS)}
        kept = [name for names in own for name in names if name not in standard] if columns is None else list(columns)
        check_columns(store, level, kept)
        self._names = [name for name in entry.names if name in own[0]]
        self._names += [name for name in ("text", "text_pair") if not entry.surface and name in own[0]]
        taken = {*self._names, *_MADE, "text"}
        if clash := [name for name in kept if name in taken]:
            raise UserError(
                f"column {clash[0]!r} of the store has the name of a column of the map; pass other `columns`"
            )
        self._kept = kept

    @property
    def _colours(self) -> list[str]:
        """The columns that a page offers as colours."""
        return [name for name in self._names if name not in ("text", "text_pair")] + self._kept

    def check_color(self, color: str | None, *, has_page: bool) -> None:
        """Raise a UserError if a page cannot be coloured so."""
        if color is None:
            return
        if not has_page:
            raise UserError("`color` is for the page, which is switched off; leave one of them out")
        if color not in self._colours:
            hint = did_you_mean(color, self._colours) or f"columns are {', '.join(self._colours)}"
            raise UserError(f"`color` {color!r}: no such column in the map; {hint}")

    def read(self, rows: IntArray) -> pl.DataFrame:
        """Return the columns of some rows."""
        frame = self._hits.columns(rows, [*self._names, *self._kept])
        if "text" not in self._names:
            texts = [context.marked() for context in self._hits.contexts(rows, _CONTEXT_COLUMNS)]
            frame.insert_column(len(self._names), pl.Series("text", texts, dtype=pl.String))
        return frame

    def page_columns(self, frame: pl.DataFrame) -> tuple[list[str | None], dict[str, list[object]]]:
        """Return the texts of a page, cut, and the values of its other columns."""
        texts = frame["text"].str.slice(0, _PAGE_TEXT_COLUMNS).to_list()
        return texts, {name: frame[name].to_list() for name in self._colours}


def neighbour_structs(ids: IntArray, distances: Float32Array) -> pl.Series:
    """Return neighbours as structs of two lists, without the places where none was found."""
    pairs = [(one[one >= 0].tolist(), far[one >= 0].tolist()) for one, far in zip(ids, distances, strict=True)]
    schema = {"ids": pl.List(pl.Int64), "distances": pl.List(pl.Float32)}
    return pl.DataFrame(pairs, schema=schema, orient="row").to_struct("neighbors")
