"""Queries as vectors: texts, or marked words (`on the [bank] of the river`), encoded as the rows of a store were."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertfeat.choices import Combine, Level, Pooling
from bertfeat.corpus.formats import has_words
from bertfeat.encoder.sentence_model import Prompts
from bertfeat.errors import UserError
from bertfeat.extraction.documents import documents_of
from bertfeat.levels import LEVELS, WORDS, pooling_of
from bertfeat.ragged import begins_run
from bertfeat.records import Document, Int32Array, IntArray, LevelTable, SpanRows
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store

if TYPE_CHECKING:
    from bertfeat.extraction.flow import Flow

# Texts whose rows are in memory at once.
_ENCODED_AT_ONCE = 1024
_SPAN = ("char_start", "char_end")
# A backslash with the sign that it makes ordinary, or a bracket.
_SIGN = re.compile(r"\\([\[\]\\])|([\[\]])")


@dataclass(frozen=True, slots=True, eq=False)
class EncodedTokens:
    """The tokens of a query, in order, without special ones: their vectors, and the words that they are of."""

    vectors: npt.NDArray[Any]  # (n_tokens, dim) of the stored type
    surfaces: list[str]  # (n_tokens,)
    numbers: IntArray  # (n_tokens,), of the word of each token
    words: list[str]  # (n_tokens,), that word


@dataclass(frozen=True, slots=True, eq=False)
class EncodedQueries:
    """Queries as vectors, float (n_queries, dim) of the stored type, and the word or token that each marks.

    `tokens` are those of each query, if the index reranks by them.
    """

    vectors: npt.NDArray[Any]
    surfaces: tuple[str | None, ...]
    tokens: tuple[EncodedTokens, ...] | None = None


Queries = str | Sequence[str] | npt.NDArray[Any] | EncodedQueries


def gives_words(store: Store) -> bool:
    """Return whether a store's corpus consists of words."""
    formats = {file.format for file in store.manifest.inputs}
    return bool(store.metadata["is_split_into_words"]) or any(map(has_words, formats))


def find_query_prompt(store: Store, level: Level, name: str | None) -> str | None:
    """Return the text before each query of an index (see `build_index`); None for that of the store's rows."""
    if level in WORDS:
        if name is not None:
            raise UserError(f"`query_prompt_name` {name!r} is for whole texts, and the index is of {level} rows")
        return None
    prompts: Mapping[str, str] = store.metadata.get("prompts", {})
    if name is None:
        prompt = store.metadata.get("prompt")
        if prompt and prompt == Prompts(prompts).document:
            return prompts.get("query", "")
        if pooling_of(level, store.metadata) == Pooling.MODEL:
            return prompts.get("query")
        # sentence-transformers writes an empty prompt for models without one.
        return prompts.get("query") or None if prompt else None
    if name and name not in prompts:
        there = f"choose one of {', '.join(sorted(prompts))}" if prompts else "it names no prompts"
        raise UserError(f"`query_prompt_name` {name!r}: the model of {store.path} has no prompt of that name; {there}")
    return prompts[name] if name else ""


@dataclass(eq=False, kw_only=True)
class QueryEncoder:
    """Encoder of queries for a feature, loaded on first use."""

    # At word and token level, the vector is that of the first word or token in the brackets of a text.
    spec: FeatureSpec
    given_words: bool
    name: str  # for messages
    prompt: str | None = None  # put before each query; None for that of the store's rows
    token_spec: FeatureSpec | None = None  # of the tokens of queries, which the same run of the model gives

    def encode(self, queries: Queries, names: Sequence[str] | None = None) -> EncodedQueries:
        """Return queries as vectors; see `Index.encode`."""
        if isinstance(queries, EncodedQueries):
            return queries
        if isinstance(queries, np.ndarray):
            vectors = np.atleast_2d(queries)
            return EncodedQueries(vectors, (None,) * len(vectors))
        texts = [queries] if isinstance(queries, str) else queries
        if names is None:
            names = [f"query {number}" for number in range(len(texts))] if len(texts) > 1 else ["query"]
        parts = [EncodedQueries(np.zeros((0, self.spec.dim), self.spec.store_dtype), ())]
        for start in range(0, len(texts), _ENCODED_AT_ONCE):
            step = slice(start, start + _ENCODED_AT_ONCE)
            parts.append(self._encode(documents_of(texts[step], what="queries"), names[step]))
        vectors = np.concatenate([part.vectors for part in parts])
        tokens = None if self.token_spec is None else tuple(one for part in parts for one in part.tokens or ())
        return EncodedQueries(vectors, tuple(word for part in parts for word in part.surfaces), tokens)

    def load(self) -> None:
        """Load the model; raise a UserError if it is not the one that the store was made with."""
        self._flows[0].network.load()

    @functools.cached_property
    def _flows(self) -> list[Flow]:
        """The flow of the feature, and that of the tokens if they are wanted, of one network."""
        # Imported here, because building and searching by vectors need no torch.
        from bertfeat.extraction.flow import Flow

        prompt = self.spec.prompt if self.prompt is None else self.prompt
        settings: dict[str, Any] = {"prompt": prompt, "is_split_into_words": self.given_words}
        if prompt != self.spec.prompt:
            # A longer prompt may leave no room for the stride of the rows.
            settings["stride"] = None
        if self.token_spec is None:
            return [Flow.of_feature(self.spec, mine=self.name, **settings)]
        layers = ",".join(map(str, sorted({*self.spec.layers, *self.token_spec.layers})))
        both = {
            "levels": (self.token_spec.level, self.spec.level_of_texts),
            "layers": layers,
            "combine": (Combine.NONE,),
        }
        flow = Flow.of_feature(self.spec, mine=self.name, **settings, **both)
        return [flow.under(spec.extract_config(**settings)) for spec in (self.spec, self.token_spec)]

    def _encode(self, documents: Sequence[Document], names: Sequence[str]) -> EncodedQueries:
        level = self.spec.level
        chosen, surfaces = np.arange(len(documents)), [None] * len(documents)
        tokens = None
        if level not in WORDS:
            from bertfeat.extraction.flow import run_together

            spans, texts = None, [document.text for document in documents]
            if level is Level.SPAN and not self.spec.is_alone:
                marked = [self._marked(text, name) for text, name in zip(texts, names, strict=True)]
                starts, ends = (np.array([getattr(each, at) for each in marked], np.int32) for at in ("start", "end"))
                spans, texts = SpanRows(chosen, starts, ends), [each.text for each in marked]
            documents = [self._document(number, text) for number, text in enumerate(texts)]
            tables = run_together(self._flows, documents, spans)
            (table,) = tables[0].values()
            if self.token_spec is not None:
                tokens = _tokens_in(tables[1][self.token_spec.level], self.token_spec, documents)
        else:
            queries = [parse_marked(document.text, name) for document, name in zip(documents, names, strict=True)]
            if self.given_words:
                queries = [query.collapsed() for query in queries]
            plain = [self._document(number, query.text) for number, query in enumerate(queries)]
            table = self._flows[0].run(plain)[level]
            chosen = _covered_rows(table, queries, names)
            surfaces = np.asarray(table.columns[LEVELS[level].surface], object)[chosen].tolist()
        valid = np.ones(table.n_rows, np.bool_) if table.valid is None else table.valid
        for number in np.flatnonzero(~valid[chosen]).tolist():
            query = f"{names[number]} {documents[number].text!r:.60}"
            if level not in WORDS:
                raise UserError(f"{query}: has no token with a vector; write another text")
            raise UserError(
                f"{query}: {level} {surfaces[number]!r} has no vector, because the model does not see it; shorten the "
                "text, or mark another one"
            )
        return EncodedQueries(self.spec.vectors_in(table)[chosen], tuple(surfaces), tokens)

    def _marked(self, text: str, name: str) -> MarkedText:
        """Return a query of spans: the characters between brackets, or without these all."""
        marked = parse_marked(text, name, needs_mark=False)
        return marked.collapsed() if self.given_words else marked

    def _document(self, number: int, text: str) -> Document:
        """Return a query as a document like those of the store: of words, if these are."""
        if not self.given_words:
            return Document(number, number, text)
        words = tuple(text.split())
        return Document(number, number, " ".join(words), words=words)


def _tokens_in(table: LevelTable, spec: FeatureSpec, documents: Sequence[Document]) -> tuple[EncodedTokens, ...]:
    """Return the tokens of each query that have a vector and are not special."""
    kept = np.ones(table.n_rows, np.bool_) if table.valid is None else table.valid
    if spec.level is Level.TOKEN:
        kept = kept & ~np.asarray(table.columns["is_special"], np.bool_)
    rows = np.flatnonzero(kept)
    query, vectors = np.asarray(table.columns["doc_id"], np.int64)[rows], spec.vectors_in(table)[rows]
    surfaces = np.asarray(table.columns[LEVELS[spec.level].surface], object)[rows]
    numbers, starts, ends = (np.ma.filled(table.columns[name], -1)[rows] for name in ("word_index", *_SPAN))
    # A token outside of all words is a word of its own.
    numbers = np.where(numbers < 0, -1 - rows, numbers)
    borders = np.searchsorted(query, np.arange(len(documents) + 1))
    found = []
    for document, own in zip(documents, map(slice, borders, borders[1:]), strict=True):
        first = np.flatnonzero(begins_run(numbers[own]))
        n_tokens = np.diff(first, append=len(numbers[own]))
        places = zip(starts[own][first].tolist(), ends[own][first + n_tokens - 1].tolist(), n_tokens, strict=True)
        words = [document.text[start:end] for start, end, n in places for _ in range(n)]
        found.append(EncodedTokens(vectors[own], surfaces[own].tolist(), numbers[own], words))
    return tuple(found)


def _covered_rows(table: LevelTable, queries: Sequence[MarkedText], names: Sequence[str]) -> IntArray:
    """Return the row that each query marks, int64 (n_queries,)."""
    first = np.searchsorted(np.asarray(table.columns["doc_id"], np.int64), np.arange(len(queries) + 1))
    # Special tokens cover no characters: both are 0.
    starts, ends = (np.ma.getdata(table.columns[side]) for side in _SPAN)
    rows = [
        own.start + covered_row(query, starts[own], ends[own], name=name, what=str(table.level))
        for query, name, own in zip(queries, names, map(slice, first, first[1:]), strict=True)
    ]
    return np.array(rows, np.int64)


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A text without its brackets, and the characters `start` to `end - 1` that were between them."""

    text: str
    start: int
    end: int

    @property
    def marked(self) -> str:
        """The text between the brackets."""
        return self.text[self.start : self.end]

    @property
    def bracketed(self) -> str:
        """The text with its brackets."""
        return f"{self.text[: self.start]}[{self.marked}]{self.text[self.end :]}"

    def collapsed(self) -> MarkedText:
        """Return the same with single spaces between words and none around, as in a corpus of words."""
        start, end = (len(re.sub(r"\s+", " ", self.text[:at].lstrip())) for at in (self.start, self.end))
        return MarkedText(" ".join(self.text.split()), start, end)


def parse_marked(text: str, name: str = "query", *, needs_mark: bool = True) -> MarkedText:
    r"""Read a text in which square brackets mark one word; a text of one word needs none.

    A backslash before a bracket or a backslash makes it an ordinary character. `name` is for messages. Without
    `needs_mark`, brackets may mark any characters, and a text without them is marked as a whole.

    Examples:
        >>> parse_marked("on the [bank] of the river")
        MarkedText(text='on the bank of the river', start=7, end=11)
        >>> parse_marked(r"see \[1\], [bank]").text
        'see [1], bank'
    """
    plain, kinds, at = "", "", 0
    places = []
    for sign in _SIGN.finditer(text):
        plain += text[at : sign.start()] + (sign[1] or "")
        if sign[2]:
            kinds += sign[2]
            places.append(len(plain))
        at = sign.end()
    plain += text[at:]
    if kinds == "[]":
        return MarkedText(plain, *places)
    if kinds:
        what = "mark one [word], and write \\[ or \\] for a bracket of the text"
        raise UserError(f"{name} {text!r:.60}: the brackets do not mark one word; {what}")
    if needs_mark and len(plain.split()) != 1:
        what = "put brackets around one, as in 'the [bank] of the river'"
        raise UserError(f"{name} {text!r:.60}: no word is marked; {what}")
    return MarkedText(plain, 0, len(plain))


def covered_row(query: MarkedText, starts: Int32Array, ends: Int32Array, *, name: str, what: str) -> int:
    """Return the first word that the brackets cover; `starts` and `ends`, int32 (n_words,), bound the words."""
    covered = np.flatnonzero((query.start < query.end) & (starts < query.end) & (query.start < ends))
    if not len(covered) or len(query.marked.split()) > 1:
        count = "several words" if len(covered) else f"no {what}"
        raise UserError(f"{name} {query.bracketed!r:.60}: the brackets cover {count}; put them around one")
    return int(covered[0])
