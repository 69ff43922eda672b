"""Tokens of a run of documents as flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertfeat.errors import InputError
from bertfeat.ragged import run_of, starts_of
from bertfeat.records import BoolArray, Document, Int32Array, IntArray


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a run of documents, without special tokens, laid end to end.

    Arrays over tokens, (n_tokens,): `ids`; `char_start` and `char_end`, in characters of the document's text (or
    second text), without whitespace around the token; `word`, the word's number in its document (a second text
    continues the count); `is_blank`, whether the token is whitespace only. Arrays over documents: `starts`
    (n_documents + 1,), where a document's tokens start; `pair_starts` (n_documents,), where those of its second text
    start (the document's end if it has none); `is_pair` (n_documents,); `n_cut` (n_documents, 2), 1 for a first or
    second text whose end was cut off before it was tokenized. The tokens of the prompts are apart: `prompt_ids`
    (n_prompt_tokens,), and `prompt_starts` (n_documents + 1,), where those before a document start.
    """

    ids: IntArray
    char_start: Int32Array
    char_end: Int32Array
    word: Int32Array
    is_blank: BoolArray
    starts: IntArray
    pair_starts: IntArray
    is_pair: BoolArray
    n_cut: IntArray
    prompt_ids: IntArray
    prompt_starts: IntArray

    @property
    def n_prompt(self) -> IntArray:
        """The tokens of the prompt before each document: int64 (n_documents,)."""
        return np.diff(self.prompt_starts)

    @property
    def n_texts(self) -> IntArray:
        """The tokens of each document's first and second text, and one for an end cut off: int64 (n_documents, 2)."""
        kept = np.stack([self.pair_starts - self.starts[:-1], self.starts[1:] - self.pair_starts], axis=1)
        return kept + self.n_cut

    @property
    def n_documents(self) -> int:
        """Documents, empty ones included."""
        return len(self.is_pair)

    @property
    def document(self) -> IntArray:
        """The number of each token's document: int64 (n_tokens,)."""
        return run_of(np.diff(self.starts))


class Columns(NamedTuple):
    """The arrays of `Tokens` for some texts, the prompts apart; `n_tokens` and `n_prompt` are (n_texts,).

    `word` is the word's number in the document if words are given, else 1 for the first token of a word and 0 for the
    others.
    """

    n_tokens: IntArray
    n_prompt: IntArray
    prompt_ids: IntArray
    ids: IntArray
    char_start: Int32Array
    char_end: Int32Array
    word: Int32Array
    is_blank: BoolArray


def text_starts(documents: Sequence[Document]) -> IntArray:
    """Return where each document's texts start among those of all: int64 (n_documents + 1,)."""
    return starts_of(np.array([1 + (document.text_pair is not None) for document in documents], dtype=np.int64))


def join_columns(parts: list[Columns], n_cut: IntArray, documents: Sequence[Document], *, given_words: bool) -> Tokens:
    """Lay the arrays of the batches end to end, and number the words of a document over both its texts."""
    columns = [list(column) for column in zip(*parts, strict=True)]
    # The arrays of the batches are deleted one after the other, so that memory does not hold all of them twice.
    parts.clear()
    n_tokens, n_prompt, prompt_ids, ids, char_start, char_end, word, is_blank = (
        np.concatenate(columns.pop(0)) for _ in Columns._fields
    )
    texts, token_starts = text_starts(documents), starts_of(n_tokens)
    starts = token_starts[texts]
    if not given_words and len(word):
        before = np.zeros(len(word) + 1, dtype=np.int32)
        np.cumsum(word, out=before[1:])
        word = before[1:] - 1 - np.repeat(before[starts[:-1]], np.diff(starts))
    return Tokens(
        ids=ids,
        char_start=char_start,
        char_end=char_end,
        word=word,
        is_blank=is_blank,
        starts=starts,
        pair_starts=token_starts[texts[:-1] + 1],
        is_pair=np.diff(texts) > 1,
        n_cut=n_cut,
        prompt_ids=prompt_ids,
        prompt_starts=starts_of(n_prompt)[texts],
    )


def document_error(document: Document, reason: str, kind: type[InputError] = InputError) -> InputError:
    """Return the error of a document, with its id and place."""
    return kind(f"document {document.doc_id!r} {reason}", path=document.path or None, row=document.row or None)
