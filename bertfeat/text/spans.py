"""Spans: the tokens of a document in each window, and those that are kept from it.

A document that fits is one window. A longer one has several, which overlap by `stride` tokens, as those of
`return_overflowing_tokens` in the Hugging Face tokenizers. Each token is kept once, from the window with most context.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from bertfeat.choices import Level, OnOverlong
from bertfeat.records import BoolArray, Document, IntArray
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.tokens import Tokens, document_error


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """The length of a window (special tokens included), the overlap of windows, and what to do with overlong text."""

    max_length: int
    stride: int
    on_overlong: OnOverlong = OnOverlong.WINDOW

    def max_tokens(self, levels: Collection[Level]) -> int | None:
        """Return how many tokens of a text are needed at most, None for all: words keep their rows without tokens."""
        return self.max_length if self.on_overlong is OnOverlong.TRUNCATE and Level.WORD not in levels else None


@dataclass(frozen=True, slots=True)
class Spans:
    """The windows of a shard as ranges of its flat tokens: int64 (n_windows, ...), half-open.

    `first` and `second` (n_windows, 2) are the tokens of the first and the second text in the window; `keep_first`
    and `keep_second` are the kept part of them. `document` (n_windows,) is the window's (first) document. `is_start`
    and `is_end` mark the first and the last window of a document: the special tokens before the texts are kept from
    the first, those after from the last. With document context no special token is kept.
    """

    document: IntArray
    first: IntArray
    second: IntArray
    keep_first: IntArray
    keep_second: IntArray
    is_start: BoolArray
    is_end: BoolArray

    def __len__(self) -> int:
        return len(self.document)


Row = tuple[int, ...]


def document_spans(tokens: Tokens, tokenizer: Tokenizer, limits: WindowLimits, documents: Sequence[Document]) -> Spans:
    """Cut each document into windows.

    One text: windows of the full capacity with `stride` tokens of overlap; the last one may be shorter. Two texts: all
    of the first one is in every window and the second one is windowed; if the first leaves less than half of the
    capacity, it is cut to half of it (and `truncated` says so).

    Raises:
        InputError: A document is too long and `limits.on_overlong` is `error`.
    """
    lengths = tokens.n_texts.sum(axis=1)
    specials = np.where(tokens.is_pair, tokenizer.pair.n_specials, tokenizer.single.n_specials) + tokens.n_prompt
    overlong = lengths + specials > limits.max_length
    check_overlong(lengths + specials, limits, documents)
    if len(tokens.prompt_ids):
        _check_prompts(specials + 1 + tokens.is_pair, limits, documents)
    rows: list[Row] = []
    for number in np.flatnonzero(overlong).tolist():
        capacity = limits.max_length - int(specials[number])
        rows += overlong_spans(tokens, number, capacity, limits)
    return merge_spans(whole_spans(tokens, np.flatnonzero(~overlong)), rows)


def check_lengths(documents: Sequence[Document], tokenizer: Tokenizer, limits: WindowLimits) -> None:
    """Tokenize documents only to check their lengths.

    Raises:
        InputError: A document is too long and `limits.on_overlong` is `error`.
    """
    is_pair = np.array([document.text_pair is not None for document in documents], dtype=np.bool_)
    specials = np.where(is_pair, tokenizer.pair.n_specials, tokenizer.single.n_specials)
    check_overlong(tokenizer.count(documents) + specials, limits, documents)


def check_overlong(lengths: IntArray, limits: WindowLimits, documents: Sequence[Document]) -> None:
    """Refuse a document whose length in tokens is over the limit, if overlong documents are an error."""
    if limits.on_overlong is not OnOverlong.ERROR or not (lengths > limits.max_length).any():
        return
    number = int(np.argmax(lengths > limits.max_length))
    reason = f"has {lengths[number]} tokens, more than `max_length={limits.max_length}`"
    raise document_error(documents[number], f"{reason}; pass `on_overlong` window or truncate")


def _check_prompts(least: IntArray, limits: WindowLimits, documents: Sequence[Document]) -> None:
    """Refuse a document whose prompt leaves no room: a prompt has other tokens where no space separates it from it."""
    if (least > limits.max_length).any():
        number = int(np.argmax(least > limits.max_length))
        reason = f"has no room in `max_length={limits.max_length}` beside the tokens of its prompt"
        raise document_error(documents[number], f"{reason}; pass a shorter prompt, or one that ends with a space")


def whole_spans(tokens: Tokens, numbers: IntArray) -> Spans:
    """Return one window for each of the documents `numbers`, all of which fit."""
    first = np.stack([tokens.starts[numbers], tokens.pair_starts[numbers]], axis=1)
    second = np.stack([tokens.pair_starts[numbers], tokens.starts[numbers + 1]], axis=1)
    yes = np.ones(len(numbers), dtype=np.bool_)
    return Spans(numbers, first, second, first, second, yes, yes)


def overlong_spans(tokens: Tokens, number: int, capacity: int, limits: WindowLimits) -> list[Row]:
    """Return a document's windows as rows: its number, the bounds of first, second, keep_first, keep_second, flags."""
    start, pair, end = int(tokens.starts[number]), int(tokens.pair_starts[number]), int(tokens.starts[number + 1])
    if limits.on_overlong is OnOverlong.TRUNCATE:
        n_first, n_second = longest_first(pair - start, end - pair, capacity)
        first, second = (start, start + n_first), (pair, pair + n_second)
        return [(number, *first, *second, *first, *second, 1, 1)]
    if not tokens.is_pair[number]:
        windows = lay_windows(end - start, capacity, limits.stride)
        return [
            (number, start + a, start + b, end, end, start + k, start + m, end, end, *_flags(i, windows))
            for i, (a, b, k, m) in enumerate(windows)
        ]
    n_first = min(pair - start, max(capacity - (end - pair), capacity - capacity // 2))
    # If the second text has no tokens, the first may take all room.
    room = max(capacity - n_first, 1)
    windows = lay_windows(end - pair, room, min(limits.stride, room // 2))
    rows: list[Row] = []
    for i, (a, b, k, m) in enumerate(windows):
        kept = (start, start + n_first if i == 0 else start, pair + k, pair + m)
        rows.append((number, start, start + n_first, pair + a, pair + b, *kept, *_flags(i, windows)))
    return rows


def _flags(number: int, windows: Sequence[object]) -> tuple[int, int]:
    return int(number == 0), int(number == len(windows) - 1)


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


def merge_spans(whole: Spans, rows: list[Row]) -> Spans:
    """Join the spans of documents that fit with rows of the others, in the order of the documents."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 11)
    document = np.concatenate([whole.document, table[:, 0]])
    order = np.argsort(document, kind="stable")
    joined = [
        np.concatenate([old, table[:, low : low + 2]])[order]
        for old, low in ((whole.first, 1), (whole.second, 3), (whole.keep_first, 5), (whole.keep_second, 7))
    ]
    flags = [
        np.concatenate([old, table[:, i].astype(np.bool_)])[order]
        for old, i in ((whole.is_start, 9), (whole.is_end, 10))
    ]
    return Spans(document[order], *joined, *flags)
