"""Packs: windows sorted by length and laid end to end, without padding, under a token budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from bertfeat.ragged import ragged_arange, starts_of
from bertfeat.records import BoolArray, IntArray, Pack
from bertfeat.text.windows import Windows


def pack_windows(windows: Windows, max_batch_tokens: int, wanted: BoolArray | None = None) -> Iterator[Pack]:
    """Yield packs of at most `max_batch_tokens` tokens; a longer window is a pack alone, an empty one is in none.

    The longest windows come first: equal lengths are neighbours, so that attention has few groups, and a budget that is
    too large for the device fails early. A window with the same tokens as an earlier one is a copy, which is not
    encoded again. `wanted`, bool (n_windows,), leaves out the other windows.
    """
    if wanted is None:
        wanted = np.ones(len(windows), np.bool_)
    first = _first_equal(windows, wanted)
    is_first = first == np.arange(len(first))
    distinct = np.flatnonzero(is_first & wanted & (windows.lengths > 0))
    order = distinct[np.argsort(-windows.lengths[distinct], kind="stable")]
    repeats = np.flatnonzero(~is_first)
    # Sorted by the windows that they repeat, so that the repeats of one pack are found by bisection.
    place = np.empty(len(first), dtype=np.int64)
    place[order] = np.arange(len(order))
    repeats = repeats[np.argsort(place[first[repeats]], kind="stable")]
    places = place[first[repeats]]
    ends = starts_of(windows.lengths[order])
    start = 0
    while start < len(order):
        end = int(np.searchsorted(ends, ends[start] + max_batch_tokens, side="right")) - 1
        end = max(end, start + 1)
        low, high = np.searchsorted(places, [start, end]).tolist()
        yield make_pack(windows, order[start:end], copies=repeats[low:high], copy_of=places[low:high] - start)
        start = end


def _first_equal(windows: Windows, wanted: BoolArray) -> IntArray:
    """Return for each window the first wanted one with the same tokens and segments, often itself: (n_windows,)."""
    bounds = windows.starts.tolist()
    ids, types = windows.input_ids.tobytes(), windows.type_ids.tobytes()
    width, type_width = windows.input_ids.itemsize, windows.type_ids.itemsize
    seen: dict[tuple[bytes, bytes], int] = {}
    first = np.arange(len(windows), dtype=np.int64)
    for number, (is_wanted, (start, end)) in enumerate(zip(wanted.tolist(), itertools.pairwise(bounds), strict=True)):
        if is_wanted and end > start:
            key = ids[start * width : end * width], types[start * type_width : end * type_width]
            first[number] = seen.setdefault(key, number)
    return first


_NONE = np.zeros(0, np.int64)


def make_pack(windows: Windows, chosen: IntArray, *, copies: IntArray = _NONE, copy_of: IntArray = _NONE) -> Pack:
    """Make a pack of the windows `chosen` (n_windows,); `copies` (n_copies,) repeat those at `copy_of` among them."""
    lengths = windows.lengths[chosen]
    flat = ragged_arange(windows.starts[:-1][chosen], lengths)
    return Pack(
        input_ids=windows.input_ids[flat],
        position_ids=ragged_arange(np.zeros(len(chosen), dtype=np.int64), lengths),
        type_ids=windows.type_ids[flat],
        lengths=lengths,
        windows=chosen,
        copies=copies,
        copy_of=copy_of,
    )
