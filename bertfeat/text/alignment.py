"""Alignment: the rows of a level, and the positions of windows that each row is pooled from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np

from bertfeat.ragged import ragged_arange, run_of, starts_of, word_bounds
from bertfeat.records import BoolArray, Document, Float32Array, Float64Array, Int32Array, IntArray
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.tokens import Tokens
from bertfeat.text.windows import Windows


class Takes(StrEnum):
    """The positions of a row that make its vector: all that count, the first of them, the last, the classification
    token, or the window as a whole.
    """

    ALL = "all"
    FIRST = "first"
    LAST = "last"
    CLS = "cls"
    WINDOW = "window"


@dataclass(frozen=True, slots=True)
class Units:
    """The origin of the rows of a level: segments, each a set of positions in one window that belongs to one row.

    Segments are in the order of their windows. `row` (n_segments,) is the row of a segment; `window_starts`
    (n_windows + 1,) is where each window's segments start; `starts` (n_segments + 1,) is where each segment's positions
    start in `positions`, which count from the start of the window. A row without a segment has no vector; a row with
    several is reduced over all of them. `weights` (n_positions,) are the weights of the positions; None if all are 1.
    """

    n_rows: int
    row: IntArray
    window_starts: IntArray
    starts: IntArray
    positions: IntArray
    weights: Float32Array | None = None

    @classmethod
    def build(
        cls,
        windows: Windows,
        n_rows: int,
        row: IntArray,
        window: IntArray,
        n: IntArray,
        positions: IntArray,
        weights: Float32Array | None = None,
    ) -> Units:
        """Build from the row, the window and the number `n` of positions of each segment, in the order of windows."""
        window_starts = np.searchsorted(window, np.arange(len(windows) + 1))
        return cls(n_rows, row, window_starts, starts_of(n), positions, weights)

    @property
    def n_segments(self) -> IntArray:
        """Segments of each row: int64 (n_rows,)."""
        return np.bincount(self.row, minlength=self.n_rows)

    @property
    def row_weights(self) -> Float64Array:
        """The sum of the weights of each row: float64 (n_rows,)."""
        before = np.arange(len(self.positions) + 1.0)
        if self.weights is not None:
            np.cumsum(self.weights, dtype=np.float64, out=before[1:])
        sums = before[self.starts[1:]] - before[self.starts[:-1]]
        return np.bincount(self.row, weights=sums, minlength=self.n_rows).astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True)
class WordRows:
    """The rows of the word level: arrays (n_rows,).

    `first_token` and `last_token` bound the word's tokens in the shard (half-open); `n_tokens` counts the kept ones,
    0 for a word that the tokenizer or truncation removed.
    """

    document: IntArray
    word: IntArray
    char_start: Int32Array
    char_end: Int32Array
    first_token: IntArray
    last_token: IntArray
    n_tokens: IntArray


def documents_at(flat: IntArray, tokens: Tokens, windows: Windows) -> IntArray:
    """Return the document of each place in the windows; for a special token, the first one of its window."""
    source = windows.source[flat]
    document = windows.spans.document[run_of(windows.lengths)[flat]]
    document[source >= 0] = tokens.document[source[source >= 0]]
    return document


def kept_tokens(tokens: Tokens, windows: Windows) -> BoolArray:
    """Return which tokens are kept from some window, and not lost by truncation: bool (n_tokens,)."""
    mask = np.zeros(len(tokens.ids), dtype=np.bool_)
    mask[windows.source[windows.kept & (windows.source >= 0)]] = True
    return mask


def word_rows(tokens: Tokens, windows: Windows, documents: Sequence[Document], *, given_words: bool) -> WordRows:
    """Return the words of all documents in order.

    Every given word has a row. The words of raw text are those of the pre-tokenizer, from the first character of their
    tokens to the last.
    """
    if given_words:
        n_words, start, end = word_bounds([document.words or () for document in documents])
        document, word = run_of(n_words), ragged_arange(np.zeros_like(n_words), n_words)
        number = starts_of(n_words)[tokens.document] + tokens.word
        first = np.searchsorted(number, np.arange(len(word)), side="left")
        last = np.searchsorted(number, np.arange(len(word)), side="right")
    else:
        is_first = np.ones(len(tokens.ids), dtype=np.bool_)
        is_first[1:] = (np.diff(tokens.document) != 0) | (np.diff(tokens.word) != 0)
        first = np.flatnonzero(is_first)
        last = np.append(first[1:], len(tokens.ids))[: len(first)]
        document, word = tokens.document[first], tokens.word[first].astype(np.int64)
        start, end = _extent(tokens, first, last)
    kept = starts_of(kept_tokens(tokens, windows).astype(np.int64))
    return WordRows(document, word, start.astype(np.int32), end.astype(np.int32), first, last, kept[last] - kept[first])


def _extent(tokens: Tokens, first: IntArray, last: IntArray) -> tuple[IntArray, IntArray]:
    """Return the least start and the greatest end of each word's tokens, without whitespace tokens if it has others."""
    if not len(first):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    # `reduceat` makes a run of each word, and one of what lies between two words, which is dropped.
    bounds = np.stack([first, last], axis=1).reshape(-1)
    far = np.iinfo(np.int32).max
    inked_start = np.minimum.reduceat(np.append(np.where(tokens.is_blank, far, tokens.char_start), far), bounds)[::2]
    inked_end = np.maximum.reduceat(np.append(np.where(tokens.is_blank, -1, tokens.char_end), -1), bounds)[::2]
    start = np.where(inked_end < 0, tokens.char_start[first], inked_start)
    return start, np.where(inked_end < 0, tokens.char_end[last - 1], inked_end)


def token_units(windows: Windows) -> Units:
    """Return the units of the token level: one position per row."""
    flat = np.flatnonzero(windows.kept)
    window = run_of(windows.lengths)[flat]
    n = np.ones(len(flat), dtype=np.int64)
    return Units.build(windows, len(flat), np.arange(len(flat)), window, n, flat - windows.starts[window])


def word_units(words: WordRows, tokens: Tokens, windows: Windows, takes: Takes) -> Units:
    """Return the units of the word level.

    A word is pooled from the window that keeps its first token, if all of the word is in it, else from the window with
    all of the word and most context. A word that is whole in no window is pooled over its kept tokens in all windows.
    """
    row, window, first, last = _word_segments(words, tokens, windows)
    n = last - first
    if takes is not Takes.ALL:
        # Of a word with several segments, only the one with its first (last) token is used.
        keep = np.ones(len(row), dtype=np.bool_)
        if takes is Takes.FIRST:
            keep[1:] = np.diff(row) != 0
        else:
            keep[:-1] = np.diff(row) != 0
            first = last - 1
        row, window, first, n = row[keep], window[keep], first[keep], np.ones(int(keep.sum()), dtype=np.int64)
    order = np.argsort(window, kind="stable")
    row, window, first, n = row[order], window[order], first[order], n[order]
    return Units.build(windows, len(words.word), row, window, n, ragged_arange(first, n))


def _word_segments(words: WordRows, tokens: Tokens, windows: Windows) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return row, window, and first and last position (half-open) of each segment, in the order of the words."""
    window_of = np.full(len(tokens.ids) + 1, -1, dtype=np.int64)
    flat = np.flatnonzero(windows.kept & (windows.source >= 0))
    window_of[windows.source[flat]] = run_of(windows.lengths)[flat]
    place_of = np.zeros(len(tokens.ids) + 1, dtype=np.int64)
    place_of[windows.source[flat]] = flat
    rows = np.flatnonzero(words.n_tokens > 0)
    # Truncation removes tokens at the end only, so the kept ones are the first `n_tokens`.
    begin = words.first_token[rows]
    end = begin + words.n_tokens[rows]
    window = window_of[begin]
    first = place_of[begin] - windows.starts[window]
    in_pair = begin >= tokens.pair_starts[tokens.document[begin]]
    split = end > np.where(in_pair, windows.spans.second[window, 1], windows.spans.first[window, 1])
    if not split.any():
        return rows, window, first, first + (end - begin)
    segments = [
        (int(r), int(w), int(f), int(f + n))
        for r, w, f, n in zip(rows[~split], window[~split], first[~split], (end - begin)[~split], strict=True)
    ]
    for i in np.flatnonzero(split):
        segments += _split_word(int(rows[i]), int(begin[i]), int(end[i]), windows, window_of, place_of)
    table = np.array(sorted(segments), dtype=np.int64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _split_word(
    row: int, begin: int, end: int, windows: Windows, window_of: IntArray, place_of: IntArray
) -> list[tuple[int, int, int, int]]:
    whole: list[tuple[int, int]] = []
    for window in range(int(window_of[begin]), int(window_of[end - 1]) + 1):
        for low, high in (windows.spans.first[window], windows.spans.second[window]):
            if low <= begin and end <= high:
                whole.append((min(begin - int(low), int(high) - end), window))
    if whole:
        window = max(whole, key=lambda choice: (choice[0], -choice[1]))[1]
        lengths = slice(windows.starts[window], windows.starts[window + 1])
        first = int(np.flatnonzero(windows.source[lengths] == begin)[0])
        return [(row, window, first, first + end - begin)]
    segments = []
    for window in np.unique(window_of[begin:end]).tolist():
        places = place_of[begin:end][window_of[begin:end] == window] - windows.starts[window]
        segments.append((row, window, int(places[0]), int(places[-1]) + 1))
    return segments


class Counts(StrEnum):
    """The tokens of a document that count in its vector: those of the text, or also special tokens and the prompt's; or
    all but those up to the end of the prompt, if there is a prompt.
    """

    TEXT = "text"
    ALL = "all"
    AFTER_PROMPT = "after_prompt"


def sentence_units(
    tokens: Tokens, windows: Windows, tokenizer: Tokenizer, takes: Takes, counts: Counts, *, weighted: bool = False
) -> Units:
    """Return the units of the sentence level: each kept token once, over all windows of a document.

    The classification token, and the window as a whole, are those of a document's first window. Weights are the places
    of the tokens in their document, from 1 on: in the text, or in all with special tokens and the prompt.
    """
    if takes in (Takes.CLS, Takes.WINDOW):
        # A window without tokens is in no pack and has no vector.
        window = np.flatnonzero(windows.spans.is_start & (windows.lengths > 0))
        n = np.ones(len(window), dtype=np.int64)
        positions = _cls_positions(windows, window, tokens, tokenizer) if takes is Takes.CLS else np.zeros_like(n)
        return Units.build(windows, tokens.n_documents, windows.spans.document[window], window, n, positions)
    if counts is Counts.TEXT:
        chosen = windows.kept & (windows.source >= 0)
    else:
        chosen = windows.kept | _prompt_positions(tokens, windows, tokenizer, with_specials=False)
    flat = np.flatnonzero(chosen)
    document = documents_at(flat, tokens, windows)
    places = np.arange(1, len(flat) + 1) - np.searchsorted(document, document)
    if counts is Counts.AFTER_PROMPT:
        counted = ~_prompt_positions(tokens, windows, tokenizer, with_specials=True)[flat]
        flat, document, places = flat[counted], document[counted], places[counted]
    if takes is not Takes.ALL:
        side: Literal["left", "right"] = "left" if takes is Takes.FIRST else "right"
        ends = np.unique(np.searchsorted(document, document, side=side)) - (takes is Takes.LAST)
        flat, document, places = flat[ends], document[ends], places[ends]
    window = run_of(windows.lengths)[flat]
    is_first = np.ones(len(flat), dtype=np.bool_)
    is_first[1:] = (np.diff(window) != 0) | (np.diff(document) != 0)
    first = np.flatnonzero(is_first)
    n, positions = np.diff(np.append(first, len(flat))), flat - windows.starts[window]
    weights = places.astype(np.float32) if weighted else None
    return Units.build(windows, tokens.n_documents, document[first], window[first], n, positions, weights)


def _prompt_positions(tokens: Tokens, windows: Windows, tokenizer: Tokenizer, *, with_specials: bool) -> BoolArray:
    """Return where the prompts are in the first windows of documents, or all up to the end of them: bool (n,)."""
    found = np.zeros(len(windows.kept), dtype=np.bool_)
    window = np.flatnonzero(windows.spans.is_start)
    document = windows.spans.document[window]
    n_before = np.where(tokens.is_pair[document], len(tokenizer.pair.prefix), len(tokenizer.single.prefix))
    n, start = tokens.n_prompt[document], windows.starts[window]
    if with_specials:
        found[ragged_arange(start, np.where(n > 0, n_before + n, 0))] = True
    else:
        found[ragged_arange(start + n_before, n)] = True
    return found


def _cls_positions(windows: Windows, window: IntArray, tokens: Tokens, tokenizer: Tokenizer) -> IntArray:
    """Return the position of the classification token, which is BERT's first and XLNet's last token."""
    is_pair = tokens.is_pair[windows.spans.document[window]]
    positions = np.zeros(len(window), dtype=np.int64)
    for pair in (False, True):
        template = tokenizer.template(pair=pair)
        before = np.flatnonzero(template.prefix.ids == tokenizer.cls_id)
        after = np.flatnonzero(template.suffix.ids == tokenizer.cls_id)
        chosen = is_pair == pair
        if len(before):
            positions[chosen] = before[0]
        elif len(after):
            positions[chosen] = windows.lengths[window[chosen]] - len(template.suffix) + after[0]
    return positions


def without_unknown(units: Units, windows: Windows, unknown_id: int) -> Units:
    """Return units without the positions of words unknown to static vectors; a row that has no others has no vector."""
    window = run_of(np.diff(units.window_starts))
    n = np.diff(units.starts)
    known = windows.input_ids[units.positions + np.repeat(windows.starts[window], n)] != unknown_id
    if known.all():
        return units
    n_known = np.bincount(run_of(n)[known], minlength=len(n))
    keep = n_known > 0
    weights = None if units.weights is None else units.weights[known]
    return Units.build(
        windows, units.n_rows, units.row[keep], window[keep], n_known[keep], units.positions[known], weights
    )
