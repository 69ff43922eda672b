"""Rows of a store that were found: their columns, those of their documents, and words in context (KWIC)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.choices import Level
from bertfeat.display import display_width, first_columns, last_columns, printable
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS, WORDS
from bertfeat.records import IntArray
from bertfeat.store.reader import Store, as_store, row_columns

_MAX_HIT_COLUMNS = 80
# Words that are less similar than this part of the best pair are not marked: mostly articles and prepositions.
_LEAST_SIMILAR = 0.7
_COMPUTED = ("score", "dense_score", "similarity")


@dataclass(frozen=True, slots=True)
class Context:
    """A hit with the text left and right of it, all of it printable."""

    left: str
    word: str
    right: str

    def marked(self) -> str:
        """Return one line of text with the hit in brackets."""
        return f"{self.left}[{self.word}]{self.right}"

    def aligned(self, width: int) -> str:
        """Return one line in which the hit starts in column `width + 1`, unless the left context is wider."""
        return " " * max(0, width - display_width(self.left)) + self.marked()


def context_of(text: str, start: int, end: int, width: int = 40) -> Context:
    """Cut a hit, characters `start` to `end - 1`, and its context out of a text.

    On either side there are `width` columns of context; where text is cut off, the last of them is `…`.

    Examples:
        >>> context_of("He sat on the bank of the river", 14, 18, width=8).marked()
        '…on the [bank] of the…'
    """
    # Most characters take a column, combining marks none: this is enough for all but texts of marks.
    reach = 8 * width + 64
    left = printable(text[max(0, start - reach) : start])
    right = printable(text[end : end + reach])
    return Context(
        last_columns(left, width, is_whole=start <= reach),
        first_columns(printable(text[start:end]), _MAX_HIT_COLUMNS),
        first_columns(right, width, is_whole=len(text) - end <= reach),
    )


class Piece(NamedTuple):
    """A stretch of a text on one line, and whether it is marked."""

    text: str
    is_marked: bool = False


def met_places(matches: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return where a text has the words that a query met (see `Index.search`): (start, end) each, ascending.

    Words that are much less similar than the best are left out, as are those that a sign of the query met.
    """
    least = _LEAST_SIMILAR * max((match["similarity"] for match in matches), default=0)
    return sorted(
        {
            (match["char_start"], match["char_end"])
            for match in matches
            if match["similarity"] >= least and any(map(str.isalnum, match["query_word"])) and not match.get("segment")
            if match["char_start"] is not None
        }
    )


def passage(text: str, places: Sequence[tuple[int, int]], width: int, before: int) -> list[Piece]:
    """Return the passage of `width` characters that has most distinct words of some places, which are marked.

    Without places it is the beginning; else `before` characters come before the first of them.
    """
    start = 0 if len(text) <= width else _passage_start(text, places, width - before, before)
    end = len(text) if len(text) - start <= width else _space_before(text, start + width)
    pieces, at = [Piece("…" if start else "")], start
    for first, last in places:
        if at <= first and last <= end:
            pieces += [Piece(text[at:first]), Piece(text[first:last], True)]
            at = last
    pieces += [Piece(text[at:end]), Piece("…" if end < len(text) else "")]
    return [Piece(printable(piece.text), piece.is_marked) for piece in pieces if piece.text]


def _passage_start(text: str, places: Sequence[tuple[int, int]], reach: int, before: int) -> int:
    """Return where the best passage begins: in the first place where most words follow."""

    def n_words(number: int) -> int:
        limit = places[number][0] + reach
        near = itertools.takewhile(lambda place: place[1] <= limit, places[number:])
        return len({text[slice(*place)].casefold() for place in near})

    # The first of equals.
    at = places[max(range(len(places)), key=n_words)][0] - before if places else 0
    return _space_before(text, at) if at > 0 else 0


def _space_before(text: str, at: int) -> int:
    """Return the place after the last space before `at`, or `at` itself inside a very long word."""
    return text.rfind(" ", max(0, at - 40), at) + 1 or at


class HitRows:
    """Reader of rows of a level, with columns of their documents where the sentence level is stored too."""

    def __init__(self, store: Store, level: Level) -> None:
        self.store = store
        self.level = level
        self.own, self._others = row_columns(store, level)

    def columns(self, rows: IntArray, names: Sequence[str]) -> pl.DataFrame:
        """Return columns of rows of the level, in the given order."""
        own = [name for name in names if name in self.own]
        others = [name for name in names if name not in self.own]
        if not others:
            return self.store.rows(self.level, rows, own)
        frame = self.store.rows(self.level, rows, list(dict.fromkeys(["doc_id", *own])))
        return frame.hstack(self._of_documents(frame["doc_id"], others)).select(names)

    def contexts(self, rows: IntArray, width: int = 40) -> list[Context]:
        """Return each row, a word, a token or a span, with `width` columns of its document on either side."""
        if self.level is Level.SENTENCE or (self.level is Level.SPAN and Level.SENTENCE not in self.store.levels):
            raise UserError(f"{self.store.path}: level {self.level} holds whole texts, which have no context")
        find = self._from_texts if Level.SENTENCE in self.store.levels else self._from_neighbors
        return find(rows, width)

    @functools.cached_property
    def has_context(self) -> bool:
        """Whether a row is better read within its document: a word, a token, or a mention whose document is stored."""
        is_mention = self.level is Level.SPAN and Level.SENTENCE in self.store.levels and "spans" in self.store.metadata
        return self.level in WORDS or is_mention

    @functools.cached_property
    def _documents(self) -> pl.DataFrame:
        """The documents by name, and the row of each at sentence level."""
        return self.store.polars(Level.SENTENCE, ["doc_id"]).with_row_index("_row").sort("doc_id")

    def _of_documents(self, doc_ids: pl.Series, names: Sequence[str]) -> pl.DataFrame:
        # A join would look at all documents for each query.
        rows = self._documents["_row"].gather(self._documents["doc_id"].search_sorted(doc_ids))
        return self.store.rows(Level.SENTENCE, rows.to_numpy(), names)

    def _from_texts(self, rows: IntArray, width: int) -> list[Context]:
        # The segment says which text of a pair a word is in.
        of_pairs = ["text_pair", "segment"] if "segment" in self.own else []
        contexts = []
        found = self.columns(rows, ["doc_id", "char_start", "char_end", *of_pairs])
        # A span has a text of its own.
        for row in found.hstack(self._of_documents(found["doc_id"], ["text"])).iter_rows(named=True):
            if row["char_start"] is None:
                raise UserError(f"{self.store.path}: special tokens have no context; leave out their rows")
            text = row["text_pair"] if row.get("segment") else row["text"]
            contexts.append(context_of(text, row["char_start"], row["char_end"], width))
        return contexts

    def _from_neighbors(self, rows: IntArray, width: int) -> list[Context]:
        # A word and its space take two columns or more.
        reach = width // 2 + 1
        wanted = np.unique(np.add.outer(rows, np.arange(-reach, reach + 1)))
        wanted = wanted[(wanted >= 0) & (wanted < self.store.n_rows(self.level))]
        surface = LEVELS[self.level].surface
        names = ["doc_id", LEVELS[self.level].keys[1], surface, *(["is_special"] if self.level is Level.TOKEN else [])]
        frame = self.store.rows(self.level, wanted, names)
        # Imported vectors may come without their words.
        doc_ids, words = frame["doc_id"].to_list(), frame[surface].fill_null("").to_list()
        hidden = frame["is_special"].to_list() if "is_special" in names else [False] * len(words)
        # Rows that are not stored leave gaps.
        joints = [" … " if step > 1 else " " for step in frame[names[1]].diff()[1:]]
        contexts = []
        for at in np.searchsorted(wanted, rows).tolist():
            first, last = np.searchsorted(wanted, [wanted[at] - reach, wanted[at] + reach + 1]).tolist()
            near = [n for n in range(first, last) if doc_ids[n] == doc_ids[at] and not hidden[n]]
            left = "".join(words[n] + joints[n] for n in near if n < at)
            right = "".join(joints[n - 1] + words[n] for n in near if n > at)
            text = left + words[at] + right
            contexts.append(context_of(text, len(left), len(left) + len(words[at]), width))
        return contexts


def words_in_context(
    store: str | Path | Store, rows: npt.ArrayLike, width: int = 40, *, level: str | None = None
) -> list[Context]:
    """Return words of a store, each with `width` columns of its text on either side.

    Args:
        store: The store, or its folder.
        rows: Row numbers of the level, int (n,).
        width: Columns of text on either side, in a terminal.
        level: word or token; by default the only one that is stored.

    Raises:
        UserError: The level is not stored, or holds whole texts.
        StoreError: A part is missing or damaged.

    Examples:
        >>> from bertfeat import extract
        >>> store = extract("examples/data/peps.txt", tmp / "features", levels="word", layers="-1")
        >>> words_in_context(store, [3], width=12)[0].marked()
        '…ment gives [coding] convention…'
    """
    opened = as_store(store)
    return HitRows(opened, opened.choose_level(level, WORDS)).contexts(np.asarray(rows, np.int64), width)


def hit_object(hit: Mapping[str, Any], context: Context | None, n_hits: int) -> dict[str, Any]:
    """Return a hit as a JSON object, with the number of hits; a word has its `context`."""
    beside = {} if context is None else {"context": context.marked()}
    known = {name: _plain(name, value) for name, value in hit.items()}
    if "matches" in hit:
        known["matches"] = [{name: _plain(name, one) for name, one in match.items()} for match in hit["matches"]]
    return {**known, **beside, "n_hits": n_hits}


def _plain(name: str, value: object) -> object:
    if not isinstance(value, float):
        return value
    # A column of the store may hold NaN, which JSON does not have, and a float32 has about 7 digits.
    return None if not math.isfinite(value) else float(f"{value:.7g}") if name in _COMPUTED else value
