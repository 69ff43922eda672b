"""Tokens of a run of documents as flat arrays, made from the encodings of the tokenizers library."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding

from bertfeat.errors import InputError
from bertfeat.ragged import run_of, starts_of, word_bounds
from bertfeat.records import BoolArray, Document, Int32Array, IntArray
from bertfeat.text.surface import find_spaces, find_surface


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


class Prompted:
    """The encoding of a text that follows a prompt, without the prompt's tokens, which are in `prompt_ids`.

    A token that has characters of both belongs to the text. `n_words` is the prompt's number of words if words are
    given: offsets count in the word then.
    """

    def __init__(self, encoding: Encoding, n_chars: int, n_words: int | None) -> None:
        words = np.array(encoding.word_ids, dtype=np.int64)
        ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[:, 1]
        is_text = ends > n_chars if n_words is None else words >= n_words
        n = int(np.argmax(is_text)) if is_text.any() else len(is_text)
        shift = n_chars if n_words is None else 0
        self.prompt_ids = encoding.ids[:n]
        self.ids = encoding.ids[n:]
        self.offsets = [(max(start - shift, 0), end - shift) for start, end in encoding.offsets[n:]]
        self.word_ids = (words[n:] - (n_words or 0)).tolist()

    def __len__(self) -> int:
        return len(self.ids)


Encoded = Encoding | Prompted


class Piece(NamedTuple):
    """A text to tokenize: its document's number, 0 for the first text or 1 for the second, and its words if given."""

    document: int
    number: int
    text: str
    words: list[str] | None = None


class Columns(NamedTuple):
    """The arrays of `Tokens` for some pieces.

    `word` is the word's number in the document if words are given, else 1 for the first token of a word and 0 for the
    others.
    """

    ids: IntArray
    char_start: Int32Array
    char_end: Int32Array
    word: Int32Array
    is_blank: BoolArray


def columns_of(
    pieces: Sequence[Piece],
    sequences: Sequence[Encoded],
    *,
    given_words: bool,
    has_words: bool,
    is_blank_piece: BoolArray,
    merges: Callable[[str], bool],
) -> Columns:
    """Return the arrays of a batch, which take much less memory than the encodings.

    `has_words` tells that the tokenizer splits a text into words; where it does not, words begin after whitespace.
    """
    chain = itertools.chain.from_iterable
    lengths = np.array(list(map(len, sequences)), dtype=np.int64)
    n = int(lengths.sum())
    number = run_of(lengths)
    ids = np.fromiter(chain(e.ids for e in sequences), np.int64, n)
    offsets = np.fromiter(chain(chain(e.offsets for e in sequences)), np.int32, 2 * n).reshape(-1, 2)
    word = np.fromiter(chain(e.word_ids for e in sequences), np.int32, n)
    start, end = offsets[:, 0].copy(), offsets[:, 1].copy()
    if given_words:
        # Offsets count in the word; the text is the words joined by one space.
        n_words, word_start, _ = word_bounds([piece.words or () for piece in pieces])
        shift = word_start[starts_of(n_words)[number] + word].astype(np.int32)
        start, end = start + shift, end + shift
    else:
        is_first = np.ones(n, dtype=np.bool_)
        is_first[1:] = (np.diff(word) != 0) | (np.diff(number) != 0)
        word = is_first.astype(np.int32)
    is_prefix = is_blank_piece[ids]
    texts = [piece.text for piece in pieces]
    is_blank = find_surface(texts, number, start, end, is_prefix=is_prefix, merges=merges)
    if not given_words and not has_words:
        word = _spaced_words(texts, number, start, is_blank=is_blank, is_prefix=is_prefix)
    return Columns(ids, start, end, word, is_blank)


def _spaced_words(
    texts: Sequence[str], number: IntArray, start: Int32Array, *, is_blank: BoolArray, is_prefix: BoolArray
) -> Int32Array:
    """Return 1 for each token that begins a word, and 0 for the others.

    A word begins after whitespace; a token that is only the character for a space is part of the word after it.
    """
    is_space = np.append(find_spaces("".join(texts)), False)
    at = start + starts_of(np.array([len(text) for text in texts], dtype=np.int64))[:-1][number]
    is_first = np.ones(len(start), dtype=np.bool_)
    begins = (is_space[at[1:] - 1] | is_blank[1:]) & (np.diff(start) != 0) & ~is_prefix[:-1]
    is_first[1:] = begins | (np.diff(number) != 0)
    return is_first.astype(np.int32)


def join_columns(
    parts: list[Columns],
    n_tokens: IntArray,
    n_cut: IntArray,
    documents: Sequence[Document],
    prompts: Sequence[Sequence[int]],
    *,
    given_words: bool,
) -> Tokens:
    """Lay the arrays of the batches end to end, and number the words of a document over both its texts.

    `n_tokens` and `n_cut` are int64 (n_documents, 2), for the first and second texts.
    """
    columns = [list(column) for column in zip(*parts, strict=True)]
    # The arrays of the batches are deleted one after the other, so that memory does not hold all of them twice.
    parts.clear()
    ids, char_start, char_end, word, is_blank = (np.concatenate(columns.pop(0)) for _ in Columns._fields)
    starts = starts_of(n_tokens.sum(axis=1))
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
        pair_starts=starts[:-1] + n_tokens[:, 0],
        is_pair=np.array([document.text_pair is not None for document in documents], dtype=np.bool_),
        n_cut=n_cut,
        prompt_ids=np.fromiter(itertools.chain.from_iterable(prompts), np.int64),
        prompt_starts=starts_of(np.array([*map(len, prompts)] or [0] * len(documents), dtype=np.int64)),
    )


def document_error(document: Document, reason: str, kind: type[InputError] = InputError) -> InputError:
    """Return the error of a document, with its id and place."""
    return kind(f"document {document.doc_id!r} {reason}", path=document.path or None, row=document.row or None)
