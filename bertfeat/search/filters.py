"""Filters of rows that may be found: an SQL condition over a store's columns, or the word of the query."""

from __future__ import annotations

import functools

import polars as pl

from bertfeat.choices import Level
from bertfeat.levels import LEVELS
from bertfeat.records import BoolArray, Int32Array, IntArray
from bertfeat.store.reader import Store, condition_mask


class PositionFilters:
    """Filters of the positions of an index, kept for further batches; `rows`, int64 (n_vectors,), are their rows."""

    def __init__(self, store: Store, level: Level, rows: IntArray) -> None:
        self._store, self._level, self._rows = store, level, rows
        self.condition = functools.lru_cache(maxsize=1)(lambda where: condition_mask(store, level, where)[rows])

    def words_like(self, word: str) -> BoolArray:
        """Return the positions of a word or token, in upper or lower case."""
        codes, numbers = self._words
        alike: BoolArray = codes == numbers.get(word.casefold(), -2)
        return alike

    @functools.cached_property
    def _words(self) -> tuple[Int32Array, dict[str, int]]:
        """The word or token of each position as a number, and the number of each casefolded word."""
        column = LEVELS[self._level].surface
        words = self._store.polars(self._level, [column])[column]
        distinct = [word for word in words.unique().to_list() if word is not None]
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(word.casefold(), len(numbers)) for word in distinct]
        found: Int32Array = words.replace_strict(distinct, codes, default=-1, return_dtype=pl.Int32).to_numpy()
        return found[self._rows], numbers
