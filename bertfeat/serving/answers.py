"""Answers of the search page: hits of a text or of a row, as JSON objects and as pieces of text to show."""

from __future__ import annotations

import itertools
import re
import time
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from bertfeat.display import printable
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS
from bertfeat.search.hitrows import Context, hit_object
from bertfeat.search.index import ROW, Index
from bertfeat.search.queryvectors import EncodedQueries
from bertfeat.serving.pagequery import MAX_VALUE, PageQuery, find_facets

# Columns of text on either side of a word.
_CONTEXT_WIDTH = 90
# Characters of a text in an answer; a document may have millions.
_MAX_TEXT = 10_000
# What a hit has itself: columns of the corpus of the same name are not shown.
_OWN_NAMES = {"query", "rank", "score", "context", "n_hits", ROW}
# Characters of a passage, and of them those before its first match.
_WIDTH, _BEFORE = 480, 80
_MIN_WORD = 3
_MAX_MATCHES = 200
# Characters of a text that are looked at.
_MAX_SEEN = 200_000
_WORD = re.compile(r"\w+")


class Answers:
    """Search of an index for the page; threads may share it. A UserError says that its rows have no text to show."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._surface = LEVELS[index.level].surface
        _check_texts(index, self._surface or "text")
        self.facets = find_facets(index.store, index.level)
        self._columns = [name for name in self.facets if name not in _OWN_NAMES]
        # What the first search would read otherwise.
        index.search(np.zeros((0, index.spec.dim), index.spec.store_dtype), 1)

    def objects(self, query: PageQuery) -> list[dict[str, Any]]:
        """Return hits with the fields of `bertfeat search --json`, and `row`; long texts are cut."""
        hits, contexts = self._search(query)
        found = [hit_object(hit, contexts[n] if contexts else None, len(hits)) for n, hit in enumerate(hits)]
        return [{name: _cut(value, _MAX_TEXT) for name, value in hit.items()} for hit in found]

    def shown(self, query: PageQuery) -> dict[str, Any]:
        """Return what the page shows, each text on one line: hits, the text of the row searched from, and seconds."""
        started = time.monotonic()
        hits, contexts = self._search(query)
        shown = []
        for number, hit in enumerate(hits):
            pieces = _of_context(contexts[number]) if contexts else passage(hit["text"] or "", query.q)
            values = {name: _line(hit[name]) for name in self._columns if hit[name] is not None}
            fixed = {"score": f"{hit['score']:.4f}", "row": hit[ROW], "doc_id": _line(hit["doc_id"])}
            shown.append({**fixed, "pieces": pieces, "columns": values})
        source: list[Piece] = []
        if query.like is not None and self._surface:
            source = _of_context(self.index.contexts([query.like], _CONTEXT_WIDTH)[0])
        elif query.like is not None:
            source = passage(self._column(query.like, "text") or "", "")
        return {"hits": shown, "source": source, "seconds": time.monotonic() - started}

    def _search(self, query: PageQuery) -> tuple[list[dict[str, Any]], list[Context] | None]:
        """Return the hits, and the context of each where they are words or tokens."""
        frame = self.index.search(
            query.q if query.like is None else self._vector(query.like),
            query.k + (query.like is not None),
            where=query.condition(self.facets),
            same_word=query.words == "same",
            exclude_same_word=query.words == "other",
            columns=[*LEVELS[self.index.level].shown, *self._columns, ROW],
        )
        if query.like is not None:
            # A row is most similar to itself.
            frame = frame.filter(pl.col(ROW) != query.like).head(query.k)
            frame = frame.with_columns(pl.int_range(1, pl.len() + 1).alias("rank"))
        contexts = self.index.contexts(frame[ROW].to_list(), _CONTEXT_WIDTH) if self._surface else None
        return list(frame.drop("query").iter_rows(named=True)), contexts

    def _vector(self, row: int) -> EncodedQueries:
        """Return the vector of a row of the level, with its word."""
        rows = self.index.rows
        position = int(np.searchsorted(rows, row))
        if position == len(rows) or rows[position] != row:
            raise UserError(f"like {row}: the index has no vector of this row; follow a link of a hit")
        surface = self._column(row, self._surface) if self._surface else None
        return EncodedQueries(self.index.vectors([position]), (surface,))

    def _column(self, row: int, name: str) -> Any:
        return self.index.store.rows(self.index.level, [row], [name])[name][0]


class Piece(NamedTuple):
    """A stretch of a text on one line, and whether it is marked."""

    text: str
    is_marked: bool = False


def passage(text: str, query: str) -> list[Piece]:
    """Return the passage of a text that has most distinct words of a query; its beginning if it has none.

    Examples:
        >>> [piece.text for piece in passage("He sat on the bank.", "Which bank?")]
        ['He sat on the ', 'bank', '.']
    """
    wanted = {word.casefold() for word in _WORD.findall(query) if len(word) >= _MIN_WORD}
    seen = _WORD.finditer(text, 0, _MAX_SEEN if wanted else 0)
    matches = list(itertools.islice((found for found in seen if found[0].casefold() in wanted), _MAX_MATCHES))
    start = _start(text, matches)
    end = len(text) if len(text) - start <= _WIDTH else _space_before(text, start + _WIDTH)
    pieces, at = [Piece("…" if start else "")], start
    for match in matches:
        if at <= match.start() and match.end() <= end:
            pieces += [Piece(text[at : match.start()]), Piece(match[0], True)]
            at = match.end()
    pieces += [Piece(text[at:end]), Piece("…" if end < len(text) else "")]
    return [Piece(printable(piece.text), piece.is_marked) for piece in pieces if piece.text]


def _start(text: str, matches: list[re.Match[str]]) -> int:
    """Return where the best passage begins: in the first place where most words follow."""
    if len(text) <= _WIDTH or not matches:
        return 0

    def n_words(first: int) -> int:
        limit = matches[first].start() + _WIDTH - _BEFORE
        near = itertools.takewhile(lambda match: match.end() <= limit, matches[first:])
        return len({match[0].casefold() for match in near})

    # The first of equals.
    at = matches[max(range(len(matches)), key=n_words)].start() - _BEFORE
    return _space_before(text, at) if at > 0 else 0


def _space_before(text: str, at: int) -> int:
    """Return the place after the last space before `at`, or `at` itself inside a very long word."""
    return text.rfind(" ", max(0, at - 40), at) + 1 or at


def _of_context(context: Context) -> list[Piece]:
    return [Piece(context.left), Piece(context.word, True), Piece(context.right)]


def _check_texts(index: Index, column: str) -> None:
    """Raise a UserError if the store has no text in a column; it is read no further than to the first text."""
    store, level = index.store, index.level
    if column in [known.name for known in store.schema(level).columns]:
        shards = (store.shard(entry.shard) for entry in store.manifest.shards)
        if any(not shard.polars(level, [column])[column].is_null().all() for shard in shards):
            return
    raise UserError(
        f"{index.path}: its store has no column {column!r} with texts, so there is nothing to show; "
        "import the vectors with a table of ids that has one"
    )


def _line(value: object) -> str:
    return printable(_cut(str(value), MAX_VALUE))


def _cut(value: Any, limit: int) -> Any:
    return f"{value[:limit]}…" if isinstance(value, str) and len(value) > limit else value
