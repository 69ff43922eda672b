"""Answers of the search page: hits of a text or of a row, as JSON objects and as pieces of text to show."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS
from bertfeat.search.hitrows import hit_object
from bertfeat.search.index import ROW, Index
from bertfeat.search.kwic import Context
from bertfeat.search.queryvectors import EncodedQueries
from bertfeat.serving.facets import Facet, find_facets
from bertfeat.serving.pagequery import PageQuery
from bertfeat.serving.passages import Piece, passage

# Columns of text on either side of a word.
_CONTEXT_WIDTH = 90
# Characters of a text in an answer; a document may have millions.
_MAX_TEXT = 10_000
_MAX_VALUE = 200


@dataclass(frozen=True, slots=True)
class ShownHit:
    """A hit as the page shows it."""

    rank: int
    score: str
    row: int
    doc_id: str
    pieces: list[Piece]
    values: dict[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """The hits of a search, the text of the row that it started from, if any, and the seconds that it took."""

    hits: list[dict[str, Any]]
    contexts: list[Context] | None
    source: list[Piece]
    seconds: float

    def objects(self) -> list[dict[str, Any]]:
        """Return the hits with the fields of `bertfeat search --json`, and `row`; long texts are cut."""
        each = enumerate(self.hits)
        found = [hit_object(hit, self.contexts[n] if self.contexts else None, len(self.hits)) for n, hit in each]
        return [{name: _cut(value, _MAX_TEXT) for name, value in hit.items()} for hit in found]


class Answers:
    """Search of an index for the page; threads may share it.

    Raises:
        UserError: The store is not there, or its rows have no text to show.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        entry = LEVELS[index.level]
        self._text = entry.surface or "text"
        store = index.store
        if self._text not in [column.name for column in store.schema(index.level).columns] or _is_empty(
            index, self._text
        ):
            raise UserError(
                f"{index.path}: its store has no column {self._text!r} with texts, so there is nothing to show; "
                "import the vectors with a table of ids that has one"
            )
        self.facets: Mapping[str, Facet] = find_facets(store, index.level)
        # What the first search would read otherwise.
        index.search(np.zeros((0, index.spec.dim), index.spec.store_dtype), 1)

    def answer(self, query: PageQuery) -> Answer:
        """Search.

        Raises:
            UserError: The query, its row, a filter or a column cannot be used.
        """
        started = time.monotonic()
        names = [*LEVELS[self.index.level].shown, *self.facets, *query.columns, ROW]
        given: str | EncodedQueries = query.q if query.like is None else self._vector(query.like)
        frame = self.index.search(
            given,
            query.k + (query.like is not None),
            where=query.condition(self.facets),
            same_word=query.words == "same",
            exclude_same_word=query.words == "other",
            columns=list(dict.fromkeys(names)),
        )
        if query.like is not None:
            # A row is most similar to itself.
            frame = frame.filter(pl.col(ROW) != query.like).head(query.k)
            frame = frame.with_columns(pl.int_range(1, pl.len() + 1).alias("rank"))
        hits = list(frame.drop("query").iter_rows(named=True))
        source = [] if query.like is None else self._shown([query.like])[0]
        return Answer(hits, self._contexts(frame[ROW].to_list()), source, time.monotonic() - started)

    def shown(self, answer: Answer, query: PageQuery) -> list[ShownHit]:
        """Return hits as the page shows them."""
        names = list(dict.fromkeys([*self.facets, *query.columns]))
        shown = []
        for number, hit in enumerate(answer.hits):
            pieces = _of_context(answer.contexts[number]) if answer.contexts else _of_text(hit, query.q)
            values = {name: _cut(str(hit[name]), _MAX_VALUE) for name in names if hit[name] is not None}
            doc_id = _cut(str(hit["doc_id"]), _MAX_VALUE)
            shown.append(ShownHit(hit["rank"], f"{hit['score']:.4f}", hit[ROW], doc_id, pieces, values))
        return shown

    def _vector(self, row: int) -> EncodedQueries:
        """Return the vector of a row of the level, with its word."""
        rows = self.index.rows
        position = int(np.searchsorted(rows, row))
        if position == len(rows) or rows[position] != row:
            raise UserError(f"like {row}: the index has no vector of this row; follow a link of a hit")
        surface = None
        if self.index.level is not Level.SENTENCE:
            surface = self.index.store.rows(self.index.level, [row], [self._text])[self._text][0]
        return EncodedQueries(self.index.vectors([position]), (surface,))

    def _contexts(self, rows: list[int]) -> list[Context] | None:
        if self.index.level is Level.SENTENCE:
            return None
        return self.index.contexts(rows, _CONTEXT_WIDTH)

    def _shown(self, rows: list[int]) -> list[list[Piece]]:
        """Return the texts of rows as pieces."""
        contexts = self._contexts(rows)
        if contexts is not None:
            return [_of_context(context) for context in contexts]
        frame = self.index.store.rows(self.index.level, rows, ["text"])
        return [_of_text(hit, "") for hit in frame.iter_rows(named=True)]


def _of_context(context: Context) -> list[Piece]:
    return [Piece(context.left), Piece(context.word, True), Piece(context.right)]


def _of_text(hit: Mapping[str, Any], query: str) -> list[Piece]:
    return passage(hit["text"] or "", query)


def _is_empty(index: Index, column: str) -> bool:
    """Return whether a column is null in the rows that a search could find first."""
    level, n_rows = index.level, min(index.store.n_rows(index.level), 1000)
    return bool(index.store.rows(level, np.arange(n_rows), [column])[column].is_null().all())


def _cut(value: Any, limit: int) -> Any:
    return f"{value[:limit]}…" if isinstance(value, str) and len(value) > limit else value
