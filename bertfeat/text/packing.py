"""Packs: windows sorted by length and laid end to end, without padding, under a token budget."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bertfeat.records import IntArray, Pack
from bertfeat.text.ragged import ragged_arange, starts_of
from bertfeat.text.windows import Windows


def pack_windows(windows: Windows, max_batch_tokens: int) -> Iterator[Pack]:
    """Yield packs of at most `max_batch_tokens` tokens; a longer window is a pack alone, an empty one is in none.

    Longest first: equal lengths stand together, so that attention runs over few groups, and a budget too large for
    the device shows at once, not after hours.
    """
    order = np.argsort(-windows.lengths, kind="stable")[: np.count_nonzero(windows.lengths)]
    ends = starts_of(windows.lengths[order])
    start = 0
    while start < len(order):
        end = int(np.searchsorted(ends, ends[start] + max_batch_tokens, side="right")) - 1
        end = max(end, start + 1)
        yield make_pack(windows, order[start:end])
        start = end


def make_pack(windows: Windows, chosen: IntArray) -> Pack:
    """Lay the windows `chosen` (n_windows,) end to end."""
    lengths = windows.lengths[chosen]
    flat = ragged_arange(windows.starts[:-1][chosen], lengths)
    return Pack(
        input_ids=windows.input_ids[flat],
        position_ids=ragged_arange(np.zeros(len(chosen), dtype=np.int64), lengths),
        type_ids=windows.type_ids[flat],
        lengths=lengths,
        windows=chosen,
    )
