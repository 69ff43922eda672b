"""Document context: sentences encoded with their neighbours, as in section 5.4 of Devlin et al. 2019.

A window is a run of whole sentences of one document. Each sentence is kept from one window. Special tokens are not
kept, since they do not belong to one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertfeat.records import Document, IntArray
from bertfeat.text.spans import Row, Spans, WindowLimits, check_overlong, merge_spans, overlong_spans, whole_spans
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.tokens import Tokens


def context_spans(tokens: Tokens, tokenizer: Tokenizer, limits: WindowLimits, documents: Sequence[Document]) -> Spans:
    """Make windows of whole sentences, so that each sentence is encoded with its neighbours in its document.

    A group that fits is one window. A longer one is divided into runs of sentences, which are kept, of at most
    `max_length - stride` tokens. Each run is widened on both sides by as many whole neighbouring sentences as fit. A
    sentence that is longer than a window is windowed as a document of its own, or cut, as `limits.on_overlong` says.

    Neighbouring `documents` of equal `group` belong together.

    Raises:
        InputError: A sentence alone is too long and `limits.on_overlong` is `error`.
    """
    capacity = limits.max_length - tokenizer.single.n_specials
    check_overlong(tokens.n_texts.sum(axis=1) + tokenizer.single.n_specials, limits, documents)
    rows: list[Row] = []
    start = 0
    for end in range(1, len(documents) + 1):
        if end == len(documents) or documents[end].group != documents[start].group:
            rows += _group_spans(tokens, start, end, capacity, limits)
            start = end
    return merge_spans(whole_spans(tokens, np.zeros(0, dtype=np.int64)), rows)


def _group_spans(tokens: Tokens, start: int, end: int, capacity: int, limits: WindowLimits) -> list[Row]:
    starts = tokens.starts
    rows: list[Row] = []
    sentence = start
    while sentence < end:
        if starts[sentence + 1] - starts[sentence] > capacity:
            rows += [(*row[:9], 0, 0) for row in overlong_spans(tokens, sentence, capacity, limits)]
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
