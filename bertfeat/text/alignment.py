"""Alignment: the rows of a level, and the positions of windows that each row is pooled from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from bertfeat.ragged import begins_run, ragged_arange, run_of, starts_of, word_bounds
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

    def of_rows(self, kept: BoolArray) -> Units:
        """Return the units of the kept rows, bool (n_rows,), which are numbered from 0."""
        chosen, n = kept[self.row], np.diff(self.starts)
        return Units(
            n_rows=int(kept.sum()),
            row=(np.cumsum(kept) - 1)[self.row[chosen]],
            window_starts=starts_of(chosen.astype(np.int64))[self.window_starts],
            starts=starts_of(n[chosen]),
            positions=self.positions[np.repeat(chosen, n)],
            weights=None if self.weights is None else self.weights[np.repeat(chosen, n)],
        )

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
    document = windows.ranges.document[run_of(windows.lengths)[flat]]
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
        first = np.flatnonzero(begins_run(tokens.document, tokens.word))
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
    row, window, first, n = _word_segments(words, tokens, windows)
    if takes is not Takes.ALL:
        # Of a word with several segments, only the one with its first (last) token is used.
        if takes is Takes.LAST:
            first = first + n - 1
        ends = ends_of_runs(row, takes)
        row, window, first, n = row[ends], window[ends], first[ends], np.ones(int(ends.sum()), dtype=np.int64)
    order = np.argsort(window, kind="stable")
    row, window, first, n = row[order], window[order], first[order], n[order]
    return Units.build(windows, len(words.word), row, window, n, ragged_arange(first, n))


def ends_of_runs(keys: IntArray, takes: Takes) -> BoolArray:
    """Return which entries are the first, or the last, of a run of equal keys: bool (n,)."""
    return begins_run(keys) if takes is Takes.FIRST else begins_run(keys[::-1])[::-1]


def _word_segments(words: WordRows, tokens: Tokens, windows: Windows) -> list[IntArray]:
    """Return row, window, first position and number of positions of each segment, in the order of the words."""
    ranges, window_of = windows.ranges, run_of(windows.lengths)
    flat = np.flatnonzero(windows.kept & (windows.source >= 0))
    place_of = np.zeros(len(tokens.ids), dtype=np.int64)
    place_of[windows.source[flat]] = flat
    rows = np.flatnonzero(words.n_tokens > 0)
    # Truncation removes tokens at the end only, so the kept ones are the first `n_tokens`.
    begin, n = words.first_token[rows], words.n_tokens[rows]
    in_pair = begin >= tokens.pair_starts[tokens.document[begin]]
    window = window_of[place_of[begin]]
    split = np.flatnonzero(begin + n > np.where(in_pair, ranges.second[window, 1], ranges.first[window, 1]))
    segments = [rows, window, place_of[begin] - windows.starts[window], n]
    if not len(split):
        return segments
    begin, n, in_pair = begin[split], n[split], in_pair[split, None]
    end = begin + n
    # The windows from that with the first token of a word to that with the last one may have all of it.
    n_choices = window_of[place_of[end - 1]] - window[split] + 1
    word, choice = run_of(n_choices), ragged_arange(window[split], n_choices)
    bounds = np.where(in_pair[word], ranges.second[choice], ranges.first[choice])
    # Negative if the window lacks a token of the word.
    context = np.minimum(begin[word] - bounds[:, 0], bounds[:, 1] - end[word])
    order = np.lexsort((choice, -context, word))
    best = order[begins_run(word[order])]
    window, is_whole = choice[best], context[best] >= 0
    kept = np.where(in_pair, ranges.keep_second[window], ranges.keep_first[window])[:, 0]
    segments[1][split], segments[2][split] = window, place_of[kept] - windows.starts[window] + begin - kept
    # A word that is whole in no window has a segment in each window that keeps some of it.
    row = np.repeat(rows[split[~is_whole]], n[~is_whole])
    place = place_of[ragged_arange(begin[~is_whole], n[~is_whole])]
    first = np.flatnonzero(begins_run(row, window_of[place]))
    window = window_of[place[first]]
    parts = [row[first], window, place[first] - windows.starts[window], np.diff(np.append(first, len(row)))]
    gone = split[~is_whole]
    segments = [np.concatenate([np.delete(whole, gone), part]) for whole, part in zip(segments, parts, strict=True)]
    order = np.argsort(segments[0], kind="stable")
    return [values[order] for values in segments]


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
    is_prompt = _is_prompt(tokens, windows, tokenizer)
    if takes in (Takes.CLS, Takes.WINDOW):
        # A window without tokens is in no pack and has no vector.
        window = np.flatnonzero(windows.ranges.is_start & (windows.lengths > 0))
        positions = np.zeros_like(window)
        if takes is Takes.CLS:
            # It is BERT's first and XLNet's last token.
            found = np.flatnonzero((windows.source < 0) & ~is_prompt & (windows.input_ids == tokenizer.cls_id))
            positions = found[np.searchsorted(found, windows.starts[window])] - windows.starts[window]
        document, n = windows.ranges.document[window], np.ones_like(window)
        return Units.build(windows, tokens.n_documents, document, window, n, positions)
    counted = windows.kept & (windows.source >= 0) if counts is Counts.TEXT else windows.kept | is_prompt
    flat = np.flatnonzero(counted)
    document = documents_at(flat, tokens, windows)
    places = np.arange(1, len(flat) + 1) - np.searchsorted(document, document)
    if counts is Counts.AFTER_PROMPT:
        n_before = np.cumsum(is_prompt[flat])
        after = ~is_prompt[flat] & (n_before == tokens.prompt_starts[document + 1])
        flat, document, places = flat[after], document[after], places[after]
    if takes is not Takes.ALL:
        ends = ends_of_runs(document, takes)
        flat, document, places = flat[ends], document[ends], places[ends]
    window = run_of(windows.lengths)[flat]
    first = np.flatnonzero(begins_run(window, document))
    n, positions = np.diff(np.append(first, len(flat))), flat - windows.starts[window]
    weights = places.astype(np.float32) if weighted else None
    return Units.build(windows, tokens.n_documents, document[first], window[first], n, positions, weights)


def _is_prompt(tokens: Tokens, windows: Windows, tokenizer: Tokenizer) -> BoolArray:
    """Return where the prompts are in the first windows of documents: bool (n,)."""
    found = np.zeros(len(windows.kept), dtype=np.bool_)
    window = np.flatnonzero(windows.ranges.is_start)
    document = windows.ranges.document[window]
    n_before = np.where(tokens.is_pair[document], len(tokenizer.pair.prefix), len(tokenizer.single.prefix))
    found[ragged_arange(windows.starts[window] + n_before, tokens.n_prompt[document])] = True
    return found


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
