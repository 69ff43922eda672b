"""Queries as vectors: texts, words in context and tokens, encoded exactly as the rows of a store were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertfeat.choices import Level, Pooling
from bertfeat.corpus.formats import WORD_FORMATS
from bertfeat.encoder.sentencemodel import Prompts
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS
from bertfeat.records import Document, LevelTable
from bertfeat.search.wordqueries import covered_row, parse_marked
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store

if TYPE_CHECKING:
    from bertfeat.extraction.flow import Flow

# Texts whose rows are in memory at once.
_ENCODED_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, eq=False)
class EncodedQueries:
    """Queries as vectors, float (n_queries, dim) of the stored type, and the word or token that each marks."""

    vectors: npt.NDArray[Any]
    surfaces: tuple[str | None, ...]


def gives_words(store: Store) -> bool:
    """Return whether a store's corpus consists of words."""
    formats = {file.format for file in store.manifest.inputs}
    return bool(store.metadata["is_split_into_words"]) or not formats.isdisjoint(WORD_FORMATS)


def find_query_prompt(store: Store, level: Level, name: str | None) -> str | None:
    """Return the text that is put before each query of an index; None for that of the store's rows.

    By default it is the model's own prompt for queries, if the rows are the model's own sentence embeddings or were
    made with a prompt; no prompt if the rows have the one for documents and the model names none for queries, as in
    `Encoder.encode_query`. An empty name gives no prompt.

    Raises:
        UserError: The model has no prompt of that name, or the level is not `sentence`.
    """
    if level is not Level.SENTENCE:
        if name is not None:
            raise UserError(f"`query_prompt_name` {name!r} is for the sentence level, and the index is of {level} rows")
        return None
    prompts: Mapping[str, str] = store.metadata.get("prompts", {})
    if name is None:
        prompt = store.metadata.get("prompt")
        if prompt and prompt == Prompts(prompts).document:
            return prompts.get("query", "")
        if store.metadata["pooling"] == Pooling.MODEL:
            return prompts.get("query")
        # sentence-transformers writes an empty prompt for models without one.
        return prompts.get("query") or None if prompt else None
    if name and name not in prompts:
        there = f"choose one of {', '.join(sorted(prompts))}" if prompts else "it names no prompts"
        raise UserError(f"`query_prompt_name` {name!r}: the model of {store.path} has no prompt of that name; {there}")
    return prompts[name] if name else ""


class QueryEncoder:
    """Encoder of queries that are to be compared with a feature; the model is loaded on first use.

    At sentence level a query is a text. At word and token level it is a text in which brackets mark a word, as in
    `He sat on the [bank] of the river`; the vector is that of the first word or token in the brackets.

    Args:
        spec: The feature.
        given_words: Whether the store's corpus consists of words: texts are then split at whitespace.
        name: What has the feature, for messages.
        prompt: The text that is put before each query; None for that of the store's rows.
    """

    def __init__(self, spec: FeatureSpec, *, given_words: bool, name: str, prompt: str | None = None) -> None:
        self.spec = spec
        self._prompt = spec.prompt if prompt is None else prompt
        self._given_words = given_words
        self._name = name
        self._flow: Flow | None = None

    def encode(self, texts: Sequence[str], names: Sequence[str] | None = None) -> EncodedQueries:
        """Encode queries.

        Args:
            texts: The queries.
            names: The name of each in messages; by default `query 0`, `query 1`, ..., or `query`.

        Raises:
            UserError: A query is not a text, has no tokens, or marks no word or several; or the model is not the one
                that the store was made with.
        """
        if names is None:
            names = [f"query {number}" for number in range(len(texts))] if len(texts) > 1 else ["query"]
        if not len(texts):
            return EncodedQueries(np.zeros((0, self.spec.dim), self.spec.store_dtype), ())
        encode = self._sentences if self.spec.level is Level.SENTENCE else self._marked
        steps = [slice(start, start + _ENCODED_AT_ONCE) for start in range(0, len(texts), _ENCODED_AT_ONCE)]
        parts = [encode(texts[step], names[step]) for step in steps]
        return EncodedQueries(
            np.concatenate([part.vectors for part in parts]), tuple(word for part in parts for word in part.surfaces)
        )

    def load(self) -> None:
        """Load the model.

        Raises:
            UserError: The model is not the one that the store was made with, or cannot be used.
        """
        self._opened().network.load()

    def _opened(self) -> Flow:
        # Imported here, because building and searching by vectors need no torch.
        from bertfeat.extraction.flow import Flow

        if self._flow is None:
            settings: dict[str, Any] = {"prompt": self._prompt, "is_split_into_words": self._given_words}
            if self._prompt != self.spec.prompt:
                # A longer prompt may leave no room for the stride of the rows.
                settings["stride"] = None
            self._flow = Flow.of_feature(self.spec, mine=self._name, **settings)
        return self._flow

    def _sentences(self, texts: Sequence[str], names: Sequence[str]) -> EncodedQueries:
        rows = self._rows(texts)
        for number in np.flatnonzero(~rows.valid).tolist():
            raise UserError(f"{names[number]} {texts[number]!r:.60}: has no token with a vector; write another text")
        return EncodedQueries(rows.vectors, (None,) * len(texts))

    def _marked(self, texts: Sequence[str], names: Sequence[str]) -> EncodedQueries:
        marked = [parse_marked(text, name) for text, name in zip(texts, names, strict=True)]
        if self._given_words:
            marked = [query.collapsed() for query in marked]
        rows = self._rows([query.text for query in marked])
        what = str(self.spec.level)
        chosen = []
        for number, query in enumerate(marked):
            own = rows.of(number)
            row = int(own[covered_row(query, rows.starts[own], rows.ends[own], name=names[number], what=what)])
            if not rows.valid[row]:
                raise UserError(
                    f"{names[number]} {query.bracketed!r:.60}: {what} {rows.surfaces[row]!r} has no vector, "
                    "because the model does not see it; shorten the text, or mark another one"
                )
            chosen.append(row)
        return EncodedQueries(rows.vectors[chosen], tuple(rows.surfaces[row] for row in chosen))

    def _rows(self, texts: Sequence[str]) -> _Rows:
        from bertfeat.extraction.documents import documents_of

        documents = documents_of(texts, what="queries")
        if self._given_words:
            split = [tuple(document.text.split()) for document in documents]
            documents = [
                Document(document.index, document.doc_id, " ".join(words), words=words)
                for document, words in zip(documents, split, strict=True)
            ]
        level = self.spec.level
        table = self._opened().run(documents)[level]
        return _Rows(table, self.spec.vectors_in(table), LEVELS[level].surface)


class _Rows:
    """The rows of encoded texts, without special tokens, which cover no characters."""

    def __init__(self, table: LevelTable, vectors: npt.NDArray[Any], surface: str) -> None:
        is_text = np.ones(table.n_rows, np.bool_)
        if "is_special" in table.columns:
            is_text = ~np.asarray(table.columns["is_special"], np.bool_)
        self.vectors = vectors[is_text]
        self.valid = is_text[is_text] if table.valid is None else table.valid[is_text]
        self._document = np.asarray(table.columns["doc_id"], np.int64)[is_text]
        if surface:
            self.surfaces: list[str] = np.asarray(table.columns[surface], object)[is_text].tolist()
            self.starts, self.ends = (
                np.ma.getdata(table.columns[name])[is_text] for name in ("char_start", "char_end")
            )

    def of(self, document: int) -> npt.NDArray[np.int64]:
        """Return the numbers of a document's rows."""
        return np.flatnonzero(self._document == document).astype(np.int64)
