"""Ranges: the tokens of a document in each window, and those that are kept from it.

A document that fits is one window. A longer one has several, which overlap by `stride` tokens, as those of
`return_overflowing_tokens` in the Hugging Face tokenizers. Each token is kept once, from the window with most context.
With document context, sentences are encoded with their neighbours, as in section 5.4 of Devlin et al. 2019: a window is
a run of whole sentences of one document, and each sentence is kept from one window.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from bertfeat.choices import Level, OnOverlong
from bertfeat.records import BoolArray, Document, IntArray
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.tokens import Tokens, document_error, text_starts


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """The length of a window (special tokens included), the overlap of windows, and what to do with overlong text."""

    max_length: int
    stride: int
    on_overlong: OnOverlong = OnOverlong.WINDOW

    def max_tokens(self, levels: Collection[Level]) -> int | None:
        """Return how many tokens of a text are needed at most, None for all: words and spans may have no token."""
        needs_all = self.on_overlong is not OnOverlong.TRUNCATE or not {Level.WORD, Level.SPAN}.isdisjoint(levels)
        return None if needs_all else self.max_length


@dataclass(frozen=True, slots=True)
class Ranges:
    """The windows of a shard as ranges of its flat tokens: int64 (n_windows, ...), half-open.

    `first` and `second` (n_windows, 2) are the tokens of the first and the second text in the window; `keep_first`
    and `keep_second` are the kept part of them. `document` (n_windows,) is the window's (first) document. `is_start`
    and `is_end` mark the first and the last window of a document: the special tokens before the texts are kept from
    the first, those after from the last. With document context no special token is kept, since it does not belong to
    one sentence.
    """

    document: IntArray
    first: IntArray
    second: IntArray
    keep_first: IntArray
    keep_second: IntArray
    is_start: BoolArray
    is_end: BoolArray


# A window: its document, the bounds of `first`, `second`, `keep_first` and `keep_second`, `is_start` and `is_end`.
Row = tuple[int, ...]


def document_ranges(
    tokens: Tokens, tokenizer: Tokenizer, limits: WindowLimits, documents: Sequence[Document]
) -> Ranges:
    """Cut each document into windows.

    One text: windows of the full capacity with `stride` tokens of overlap; the last one may be shorter. Two texts: all
    of the first one is in every window and the second one is windowed; if the first leaves less than half of the
    capacity, it is cut to half of it (and `truncated` says so).

    Raises:
        InputError: A document is too long and `limits.on_overlong` is `error`.
    """
    specials = np.where(tokens.is_pair, tokenizer.pair.n_specials, tokenizer.single.n_specials) + tokens.n_prompt
    lengths = tokens.n_texts.sum(axis=1) + specials
    _check_overlong(lengths, limits, documents)
    least = specials + 1 + tokens.is_pair
    # A prompt has other tokens than alone where no space separates it from the text.
    if len(tokens.prompt_ids) and (least > limits.max_length).any():
        reason = f"has no room in `max_length={limits.max_length}` beside the tokens of its prompt"
        document = documents[int(np.argmax(least > limits.max_length))]
        raise document_error(document, f"{reason}; pass a shorter prompt, or one that ends with a space")
    whole = np.flatnonzero(lengths <= limits.max_length)
    start, pair, end = tokens.starts[whole], tokens.pair_starts[whole], tokens.starts[whole + 1]
    yes = np.ones_like(whole)
    rows: list[Row] = []
    for number in np.flatnonzero(lengths > limits.max_length).tolist():
        rows += _overlong_rows(tokens, number, limits.max_length - int(specials[number]), limits)
    return _as_ranges(np.stack([whole, start, pair, pair, end, start, pair, pair, end, yes, yes], axis=1), rows)


def _as_ranges(whole: IntArray, rows: list[Row]) -> Ranges:
    """Join windows, int64 (n, 11) and a list, in the order of the documents."""
    table = np.concatenate([whole, np.array(rows, dtype=np.int64).reshape(-1, 11)])
    table = table[np.argsort(table[:, 0], kind="stable")]
    flags = table[:, 9:].astype(np.bool_)
    return Ranges(table[:, 0], table[:, 1:3], table[:, 3:5], table[:, 5:7], table[:, 7:9], flags[:, 0], flags[:, 1])


def check_lengths(documents: Sequence[Document], tokenizer: Tokenizer, limits: WindowLimits) -> None:
    """Tokenize documents only to check their lengths.

    Raises:
        InputError: A document is too long and `limits.on_overlong` is `error`.
    """
    is_pair = np.diff(text_starts(documents)) > 1
    specials = np.where(is_pair, tokenizer.pair.n_specials, tokenizer.single.n_specials)
    _check_overlong(tokenizer.count(documents) + specials, limits, documents)


def _check_overlong(lengths: IntArray, limits: WindowLimits, documents: Sequence[Document]) -> None:
    if limits.on_overlong is OnOverlong.ERROR and (lengths > limits.max_length).any():
        number = int(np.argmax(lengths > limits.max_length))
        reason = f"has {lengths[number]} tokens, more than `max_length={limits.max_length}`"
        raise document_error(documents[number], f"{reason}; pass `on_overlong` window or truncate")


def _overlong_rows(tokens: Tokens, number: int, capacity: int, limits: WindowLimits) -> list[Row]:
    start, pair, end = int(tokens.starts[number]), int(tokens.pair_starts[number]), int(tokens.starts[number + 1])
    if limits.on_overlong is OnOverlong.TRUNCATE:
        n_first, n_second = longest_first(pair - start, end - pair, capacity)
        first, second = (start, start + n_first), (pair, pair + n_second)
        return [(number, *first, *second, *first, *second, 1, 1)]
    is_pair = bool(tokens.is_pair[number])
    n_first = min(pair - start, max(capacity - (end - pair), capacity - capacity // 2)) if is_pair else 0
    # If the second text has no tokens, the first may take all room.
    room = max(capacity - n_first, 1)
    base, stride = (pair, min(limits.stride, room // 2)) if is_pair else (start, min(limits.stride, room - 1))
    windows = lay_windows(end - base, room, stride)
    rows: list[Row] = []
    for i, (low, high, keep, stop) in enumerate(windows):
        inside, kept = (base + low, base + high), (base + keep, base + stop)
        if is_pair:
            bounds = (start, start + n_first, *inside, start, start + n_first * (i == 0), *kept)
        else:
            bounds = (*inside, end, end, *kept, end, end)
        rows.append((number, *bounds, i == 0, i == len(windows) - 1))
    return rows


def longest_first(n_first: int, n_second: int, capacity: int) -> tuple[int, int]:
    """Return how many tokens of two texts remain when tokens are removed from the longer one until both fit.

    The rule of `truncation="longest_first"` in the tokenizers library: the longer text keeps the odd token, and on a
    tie the second.

    Examples:
        >>> longest_first(10, 3, 8), longest_first(10, 9, 9), longest_first(9, 0, 4)
        ((5, 3), (5, 4), (4, 0))
    """
    if n_first + n_second <= capacity:
        return n_first, n_second
    shorter = min(n_first, n_second, capacity // 2)
    longer = capacity - shorter
    return (longer, shorter) if n_first > n_second else (shorter, longer)


def lay_windows(n_tokens: int, capacity: int, stride: int) -> list[tuple[int, int, int, int]]:
    """Divide a text into overlapping windows.

    Returns:
        For each window its start and end, and the start and end of the tokens that are kept from it. The border of two
        neighbours is the middle of their overlap, where the smaller context of a token, left or right, is largest; on a
        tie the earlier window keeps the token.

    Examples:
        >>> lay_windows(10, 6, 2)
        [(0, 6, 0, 5), (4, 10, 5, 10)]
    """
    step = capacity - stride
    n_windows = 1 + max(0, -(-(n_tokens - capacity) // step))
    bounds = [(i * step, min(i * step + capacity, n_tokens)) for i in range(n_windows)]
    borders = [(end - 1 + bounds[i + 1][0]) // 2 + 1 for i, (_, end) in enumerate(bounds[:-1])]
    return [(*bound, k, m) for bound, k, m in zip(bounds, [0, *borders], [*borders, n_tokens], strict=True)]


def context_ranges(tokens: Tokens, tokenizer: Tokenizer, limits: WindowLimits, documents: Sequence[Document]) -> Ranges:
    """Make windows of whole sentences, so that each sentence is encoded with its neighbours in its document.

    A group that fits is one window. A longer one is divided into runs of sentences, which are kept, of at most
    `max_length - stride` tokens. Each run is widened on both sides by as many whole neighbouring sentences as fit. A
    sentence that is longer than a window is windowed as a document of its own, or cut, as `limits.on_overlong` says.

    Neighbouring `documents` of equal `group` belong together.

    Raises:
        InputError: A sentence alone is too long and `limits.on_overlong` is `error`.
    """
    capacity = limits.max_length - tokenizer.single.n_specials
    _check_overlong(tokens.n_texts.sum(axis=1) + tokenizer.single.n_specials, limits, documents)
    rows: list[Row] = []
    start = 0
    for end in range(1, len(documents) + 1):
        if end == len(documents) or documents[end].group != documents[start].group:
            rows += _group_ranges(tokens, start, end, capacity, limits)
            start = end
    return _as_ranges(np.zeros((0, 11), dtype=np.int64), rows)


def _group_ranges(tokens: Tokens, start: int, end: int, capacity: int, limits: WindowLimits) -> list[Row]:
    starts = tokens.starts
    rows: list[Row] = []
    sentence = start
    while sentence < end:
        if starts[sentence + 1] - starts[sentence] > capacity:
            rows += [(*row[:9], 0, 0) for row in _overlong_rows(tokens, sentence, capacity, limits)]
            sentence += 1
            continue
        run_end = _run_end(starts, sentence, start, end, capacity, limits.stride)
        low, high = _widen(starts, sentence, run_end, start, end, capacity)
        first, at = int(starts[low]), int(starts[high])
        keep_first = int(starts[sentence])
        if rows and rows[-1][1:3] == (first, at):
            # The previous window has the same sentences: it keeps this run too.
            sentence, keep_first = rows[-1][0], rows.pop()[5]
        rows.append((sentence, first, at, at, at, keep_first, int(starts[run_end]), at, at, 0, 0))
        sentence = run_end
    return rows


def _run_end(starts: IntArray, sentence: int, start: int, end: int, capacity: int, stride: int) -> int:
    """Return the end of the run of sentences from `sentence` on that one window keeps."""
    if sentence == start and starts[end] - starts[start] <= capacity:
        return end
    room = max(capacity - stride, int(starts[sentence + 1] - starts[sentence]))
    return min(end, int(np.searchsorted(starts, starts[sentence] + room, side="right")) - 1)


def _widen(starts: IntArray, low: int, high: int, start: int, end: int, capacity: int) -> tuple[int, int]:
    """Widen a run by whole neighbouring sentences while they fit, always on the side with less context."""
    n_left = n_right = 0
    while True:
        room = capacity - int(starts[high] - starts[low])
        left = int(starts[low] - starts[low - 1]) if low > start else room + 1
        right = int(starts[high + 1] - starts[high]) if high < end else room + 1
        if left <= room and (n_left <= n_right or right > room):
            low, n_left = low - 1, n_left + left
        elif right <= room:
            high, n_right = high + 1, n_right + right
        else:
            return low, high
