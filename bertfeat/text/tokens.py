"""Tokens of a run of documents as flat arrays, made from the encodings of the tokenizers library."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding

from bertfeat.ragged import run_of, starts_of, word_bounds
from bertfeat.records import BoolArray, Document, Int32Array, IntArray
from bertfeat.text.pieces import Piece
from bertfeat.text.surface import find_spaces, find_surface


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a run of documents, without special tokens, laid end to end.

    Arrays over tokens, (n_tokens,): `ids`; `char_start` and `char_end`, in characters of the document's text (or
    second text), without whitespace around the token; `word`, the word's number in its document (a second text
    continues the count); `is_blank`, whether the token is whitespace only. Arrays over documents: `starts`
    (n_documents + 1,), where a document's tokens start; `pair_starts` (n_documents,), where those of its second text
    start (the document's end if it has none); `is_pair` (n_documents,); `n_cut` (n_documents, 2), the tokens of its
    first and of its second text that were counted and not kept. The tokens of the prompts are apart: `prompt_ids`
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
        """The tokens of each document's first and second text, those not kept included: int64 (n_documents, 2)."""
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


class Sizes:
    """Numbers of the tokens of each document's first and second text, kept or not: int64 (n_documents, 2).

    `n_words_cut` (n_documents,) counts the words of first texts that were not kept and are followed by a second text.
    """

    def __init__(self, documents: Sequence[Document], max_tokens: int | None) -> None:
        self._is_pair = [document.text_pair is not None for document in documents]
        self._max_tokens = max_tokens
        self.n_kept, self.n_cut = np.zeros((2, len(documents), 2), dtype=np.int64)
        self.n_words_cut = np.zeros(len(documents), dtype=np.int64)

    def take(self, batch: list[Piece], encodings: list[Encoded]) -> tuple[list[Piece], list[Encoded]]:
        """Count a batch; return the kept part of it."""
        if self._max_tokens is None or not any(piece.start for piece in batch):
            places = [piece.document for piece in batch], [piece.text_number for piece in batch]
            np.add.at(self.n_kept, places, list(map(len, encodings)))
            return batch, encodings
        kept = []
        for piece, encoding in zip(batch, encodings, strict=True):
            place = piece.document, piece.text_number
            if self.n_kept[place] < self._max_tokens and not piece.is_cut:
                self.n_kept[place] += len(encoding)
                kept.append((piece, encoding))
                continue
            self.n_cut[place] += len(encoding)
            if piece.text_number == 0 and self._is_pair[piece.document] and len(encoding):
                self.n_words_cut[piece.document] += 1 + np.count_nonzero(np.diff(np.array(encoding.word_ids, np.int32)))
        return [piece for piece, _ in kept], [encoding for _, encoding in kept]


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
        word += np.array([piece.first_word for piece in pieces], dtype=np.int32)[number]
    else:
        is_first = np.ones(n, dtype=np.bool_)
        is_first[1:] = (np.diff(word) != 0) | (np.diff(number) != 0)
        word = is_first.astype(np.int32)
    is_prefix = is_blank_piece[ids]
    texts = [piece.text for piece in pieces]
    is_blank = find_surface(texts, number, start, end, is_prefix=is_prefix, merges=merges)
    if not given_words and not has_words:
        word = _spaced_words(texts, number, start, is_blank=is_blank, is_prefix=is_prefix)
    shift = np.array([piece.start for piece in pieces], dtype=np.int32)[number]
    return Columns(ids, start + shift, end + shift, word, is_blank)


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
    sizes: Sizes,
    documents: Sequence[Document],
    prompts: Sequence[Sequence[int]],
    *,
    given_words: bool,
) -> Tokens:
    """Lay the arrays of the batches end to end, and number the words of a document over both its texts."""
    columns = [list(column) for column in zip(*parts, strict=True)]
    # The arrays of the batches are deleted one after the other, so that memory does not hold all of them twice.
    parts.clear()
    ids, char_start, char_end, word, is_blank = (np.concatenate(columns.pop(0)) for _ in Columns._fields)
    starts = starts_of(sizes.n_kept.sum(axis=1))
    if not given_words and len(word):
        before = np.zeros(len(word) + 1, dtype=np.int32)
        np.cumsum(word, out=before[1:])
        word = before[1:] - 1 - np.repeat(before[starts[:-1]], np.diff(starts))
    tokens = Tokens(
        ids=ids,
        char_start=char_start,
        char_end=char_end,
        word=word,
        is_blank=is_blank,
        starts=starts,
        pair_starts=starts[:-1] + sizes.n_kept[:, 0],
        is_pair=np.array([document.text_pair is not None for document in documents], dtype=np.bool_),
        n_cut=sizes.n_cut,
        prompt_ids=np.fromiter(itertools.chain.from_iterable(prompts), np.int64),
        prompt_starts=starts_of(np.array([*map(len, prompts)] or [0] * len(documents), dtype=np.int64)),
    )
    if sizes.n_words_cut.any():
        second = np.flatnonzero(np.arange(len(ids)) >= tokens.pair_starts[tokens.document])
        tokens.word[second] += sizes.n_words_cut[tokens.document[second]].astype(np.int32)
    return tokens
