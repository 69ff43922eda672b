"""Columns of the rows of a map: what names a row, its text, kept columns of the corpus, and its neighbors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from bertfeat.choices import Level
from bertfeat.errors import UserError, did_you_mean
from bertfeat.levels import LEVELS, PAIR_COLUMNS
from bertfeat.records import Float32Array, IntArray
from bertfeat.search.hitrows import HitRows
from bertfeat.store.reader import Store, check_columns, row_columns

_TEXTS = ("text", "text_pair")
_MADE = ("x", "y", "neighbors")
# The columns of a terminal on either side of a word, and the characters of a text on the page.
_CONTEXT_COLUMNS = 60
_PAGE_TEXT = 300


class MapTable:
    """The columns of a map's rows: those that name a row, its text, and the kept columns of the corpus.

    Attributes:
        title: The name of the store.
        colors: The columns that a page offers as colors.
        color: The one that it shows at first, if any.
    """

    def __init__(self, store: Store, level: Level, columns: Sequence[str] | None, color: str | None) -> None:
        entry, own = LEVELS[level], row_columns(store, level)
        standard = {column.name for known in LEVELS.values() for column in (*known.columns, *PAIR_COLUMNS)}
        kept = [name for names in own for name in names if name not in standard] if columns is None else list(columns)
        check_columns(store, level, kept)
        names = [name for name in entry.names if name in own[0]]
        self._texts = [] if entry.surface else [name for name in _TEXTS if name in own[0]]
        for n, name in enumerate(kept):
            if name in {*names, *_TEXTS, *_MADE, *kept[:n]}:
                raise UserError(f"column {name!r}: the map has a column of this name already; pass other `columns`")
        self._hits, self._names, self._kept = HitRows(store, level), names, kept
        self.title = (store.path.resolve() if isinstance(store.path, Path) else store.path).name
        self.colors, self.color = names + kept, color
        if color is not None and color not in self.colors:
            hint = did_you_mean(color, self.colors) or f"columns are {', '.join(self.colors)}"
            raise UserError(f"`color` {color!r}: no such column in the map; {hint}")

    def read(self, rows: IntArray, places: Float32Array) -> pl.DataFrame:
        """Return the columns of some rows, and their coordinates."""
        frame = self._hits.columns(rows, [*self._names, *self._texts, *self._kept])
        if "text" not in self._texts:
            texts = [context.marked() for context in self._hits.contexts(rows, _CONTEXT_COLUMNS)]
            frame.insert_column(len(self._names) + len(self._texts), pl.Series("text", texts, dtype=pl.String))
        return frame.with_columns(pl.Series("x", places[:, 0]), pl.Series("y", places[:, 1]))


def cut_texts(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the texts of all columns cut, as a page holds them."""
    text = pl.col(pl.String)
    cut = pl.when(text.str.len_chars() > _PAGE_TEXT).then(text.str.head(_PAGE_TEXT - 1) + "…").otherwise(text)
    return frame.with_columns(cut)


def page_texts(frame: pl.DataFrame) -> list[str]:
    """Return the texts of rows for a page, with their pairs."""
    names = [name for name in _TEXTS if name in frame.columns]
    return frame.select(pl.concat_str(names, separator="\n", ignore_nulls=True)).to_series().to_list()


def neighbor_structs(ids: IntArray, distances: Float32Array) -> pl.Series:
    """Return neighbors, each (n, k), as structs of two lists: shorter ones where an index found fewer (-1, NaN)."""
    lists = pl.Schema({"ids": pl.List(pl.Int64), "distances": pl.List(pl.Float32)})
    frame = pl.DataFrame({"ids": ids, "distances": distances}).cast(lists)
    if (ids < 0).any():
        found = pl.element().ge(0), pl.element().is_not_nan()
        frame = frame.with_columns(pl.col(name).list.filter(one) for name, one in zip(lists, found, strict=True))
    return frame.to_struct("neighbors")
