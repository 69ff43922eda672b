"""Searches of the page: their parameters in a URL, and their answers as JSON objects and as pieces of text to show."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
import polars as pl

from bertfeat.choices import Level
from bertfeat.devices import n_cpus
from bertfeat.display import printable
from bertfeat.errors import UserError, did_you_mean
from bertfeat.levels import LEVELS
from bertfeat.search.hits import Context, Piece, hit_object, met_places, passage
from bertfeat.search.index import ROW, Index
from bertfeat.search.query_vectors import EncodedQueries
from bertfeat.store.reader import Store, row_columns

MAX_QUERY, MAX_VALUE, MAX_HITS = 2000, 200, 100
WORDS = {"": "all words", "same": "only the same word", "other": "only other words"}
_DEFAULT_HITS = 10
_MAX_SEARCHES = 4
_FACET = "f."
_NAMES = ("q", "like", "k", "words")
# A column with more values gets a box to write into.
_MAX_CHOICES = 50
# Every number of a column; NaN and infinity are not compared.
_MOST = {True: 2**63 - 1, False: 1.7976931348623157e308}
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


@dataclass(frozen=True, slots=True)
class Facet:
    """A column of texts, numbers or booleans that hits can be filtered by; `choices` are its texts, if they are few."""

    name: str
    dtype: pl.DataType
    choices: tuple[str, ...]

    def condition(self, value: str) -> str:
        """Return the SQL condition that a row has a value, or a number in a range such as `3..9` or `3..`."""
        column = '"' + self.name.replace('"', '""') + '"'
        if self.dtype.is_numeric():
            most = _MOST[self.dtype.is_integer()]
            first, dots, last = value.partition("..")
            low = self._number(first) if first.strip() or not dots else -most
            high = self._number(last) if last.strip() else most if dots else low
            return f"{column} BETWEEN {low} AND {high}"
        if self.dtype == pl.Boolean and value not in ("true", "false"):
            raise UserError(f"filter {self.name}: {value!r:.60} is not true or false")
        literal = value if self.dtype == pl.Boolean else "'" + value.replace("'", "''") + "'"
        return f"{column} = {literal}"

    def _number(self, text: str) -> int | float:
        # As the column has it: the float32 that is nearest to 0.1 is another number than 0.1.
        number = pl.Series([text.strip()]).cast(self.dtype, strict=False)[0]
        if number is None or not math.isfinite(number):
            raise UserError(f"filter {self.name}: {text!r:.60} is not a number of the column; write 3, 3..9 or 3..")
        return number  # type: ignore[no-any-return]


def find_facets(store: Store, level: Level) -> dict[str, Facet]:
    """Return the facets of a level by name: its columns, and those of its documents, that came from the corpus."""
    made = {column.name for known in (level, Level.SENTENCE) for column in LEVELS[known].columns}
    own, others = row_columns(store, level)
    facets = {}
    for place, names in ((level, own), (Level.SENTENCE, others)):
        for name in (name for name in names if name not in made):
            values = store.polars(place, [name])[name]
            if values.dtype in (pl.String, pl.Boolean) or values.dtype.is_numeric():
                facets[name] = Facet(name, values.dtype, _choices(values))
    return facets


def _choices(values: pl.Series) -> tuple[str, ...]:
    if values.dtype == pl.Boolean:
        return ("false", "true")
    texts = () if values.dtype.is_numeric() else tuple(values.drop_nulls().unique().sort())
    # An empty choice is that of no filter, and a form changes the ends of lines.
    is_short = all(0 < len(text) <= MAX_VALUE and not {"\n", "\r"} & set(text) for text in texts)
    return texts if is_short and len(texts) <= _MAX_CHOICES else ()


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A search for the text `q`, or for what is most similar to the row `like`; `filters` are values of facets."""

    q: str = ""
    like: int | None = None
    k: int = _DEFAULT_HITS
    words: str = ""
    filters: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, pairs: Iterable[tuple[str, str]], facets: Mapping[str, Facet]) -> PageQuery:
        """Read the parameters of a URL; empty ones count as not given."""
        given: dict[str, str] = {}
        known = [*_NAMES, *(_FACET + name for name in facets)]
        for name, value in pairs:
            if name not in known:
                hint = did_you_mean(name[:MAX_VALUE], known) or f"parameters are {', '.join(known)}"
                raise UserError(f"no parameter {name!r:.60}; {hint}")
            if name in given:
                raise UserError(f"parameter {name} is given twice; write it once")
            given[name] = value.strip() if name == "q" else value
            limit = MAX_QUERY if name == "q" else MAX_VALUE
            if len(given[name]) > limit:
                raise UserError(f"{name} has {len(given[name]):,} characters; write {limit:,} or fewer")
        given = {name: value for name, value in given.items() if value}
        if given.get("words", "") not in WORDS:
            raise UserError(f"words {given['words']!r:.60} is not same or other")
        return cls(
            q=given.get("q", ""),
            # The form of a page of neighbors has both when a text is written into its box.
            like=_number("like", given["like"], 0, 2**62) if "like" in given and "q" not in given else None,
            k=_number("k", given.get("k", str(_DEFAULT_HITS)), 1, MAX_HITS),
            words=given.get("words", ""),
            filters={name.removeprefix(_FACET): value for name, value in given.items() if name.startswith(_FACET)},
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing is searched for."""
        return not self.q and self.like is None

    def like_row(self, row: int) -> str:
        """Return the link to what is most similar to a row, with the same filters."""
        kept = {_FACET + name: value for name, value in self.filters.items()} | {"words": self.words}
        kept |= {"k": str(self.k) if self.k != _DEFAULT_HITS else ""}
        return "/?" + urlencode({"like": row, **{name: value for name, value in kept.items() if value}})


def _number(name: str, value: str, lowest: int, highest: int) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 20 and lowest <= int(value) <= highest):
        what = f"a whole number from {lowest} to {highest}" if name == "k" else "the number of a row"
        raise UserError(f"{name} {value!r:.60} is not {what}")
    return int(value)


class Answers:
    """Search of an index for the page; threads may share it. A UserError says that its rows have no text to show."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._surface = LEVELS[index.level].surface
        column = self._surface or "text"
        shards = (index.store.shard(entry.shard) for entry in index.store.manifest.shards)
        if all(shard.polars(index.level, [column])[column].is_null().all() for shard in shards):
            reason = f"its store has no {column} to show; import the vectors with a table of ids that has them"
            raise UserError(f"{index.path}: {reason}")
        self.facets = find_facets(index.store, index.level)
        self._matches = index.origin.rerank is not None
        own = _OWN_NAMES | ({"dense_score", "matches"} if self._matches else set())
        self._columns = [name for name in self.facets if name not in own]
        # More searches at once than processors would only take turns; the others wait.
        self._turns = threading.Semaphore(max(2, min(_MAX_SEARCHES, n_cpus())))
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
            pieces = _of_context(contexts[number]) if contexts else self._passage(hit, query)
            values = {name: _line(hit[name]) for name in self._columns if hit[name] is not None}
            fixed = {"score": f"{hit['score']:.4f}", "row": hit[ROW], "doc_id": _line(hit["doc_id"])}
            shown.append({**fixed, "pieces": pieces, "columns": values})
        source: list[Piece] = []
        if query.like is not None and self.index.has_contexts:
            source = _of_context(self.index.contexts([query.like], _CONTEXT_WIDTH)[0])
        elif query.like is not None:
            source = passage(self._column(query.like, "text") or "", [], _WIDTH, _BEFORE)
        return {"hits": shown, "source": source, "seconds": time.monotonic() - started}

    def _passage(self, hit: Mapping[str, Any], query: PageQuery) -> list[Piece]:
        """Return the passage of a text with the words that a query met, or has itself if the index does not rerank."""
        text = hit["text"] or ""
        places = met_places(hit["matches"]) if self._matches and query.q else _places(text, query.q)
        return passage(text, places, _WIDTH, _BEFORE)

    def _search(self, query: PageQuery) -> tuple[list[dict[str, Any]], list[Context] | None]:
        """Return the hits, and the context of each where they are words or tokens."""
        conditions = [self.facets[name].condition(value) for name, value in query.filters.items()]
        with self._turns:
            frame = self.index.search(
                query.q if query.like is None else self._vector(query.like),
                query.k + (query.like is not None),
                where=" AND ".join(conditions) or None,
                same_word=query.words == "same",
                exclude_same_word=query.words == "other",
                columns=[*LEVELS[self.index.level].shown, *self._columns, ROW],
                matches=self._matches and query.like is None,
            )
            if query.like is not None:
                # A row is most similar to itself.
                frame = frame.filter(pl.col(ROW) != query.like).head(query.k)
                frame = frame.with_columns(pl.int_range(1, pl.len() + 1).alias("rank"))
            contexts = self.index.contexts(frame[ROW].to_list(), _CONTEXT_WIDTH) if self.index.has_contexts else None
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


def _places(text: str, query: str) -> list[tuple[int, int]]:
    """Return where the words of a query are in a text, (start, end) each."""
    wanted = {word.casefold() for word in _WORD.findall(query) if len(word) >= _MIN_WORD}
    seen = _WORD.finditer(text, 0, _MAX_SEEN if wanted else 0)
    matches = (found.span() for found in seen if found[0].casefold() in wanted)
    return list(itertools.islice(matches, _MAX_MATCHES))


def _of_context(context: Context) -> list[Piece]:
    return [Piece(context.left), Piece(context.word, True), Piece(context.right)]


def _line(value: object) -> str:
    return printable(_cut(str(value), MAX_VALUE))


def _cut(value: Any, limit: int) -> Any:
    return f"{value[:limit]}…" if isinstance(value, str) and len(value) > limit else value
