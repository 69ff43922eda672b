"""Repetition and definition levels of a page: whether they say that every row has a whole vector.

Levels stand in Parquet's hybrid of runs and packed bits:
https://parquet.apache.org/docs/file-format/data-pages/encodings/#RLE
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Far more than a page of vectors has: levels that take longer are not worth reading here.
_MAX_RUNS = 10_000

Bytes = npt.NDArray[np.uint8]


def are_all(data: bytes, n_levels: int, level: int) -> bool:
    """Say whether levels, of which `level` is the highest there can be, are all that.

    Args:
        data: The levels in their coding, no byte more.
        n_levels: How many there are.
        level: 1 or more.
    """
    runs = _Runs(data, level.bit_length())
    n_done = 0
    while n_done < n_levels:
        run = runs.next(n_levels - n_done)
        if run is None or (run[1] != level).any():
            return False
        n_done += run[0]
    return runs.position == len(data)


def are_rows(data: bytes, n_levels: int, first: int, dim: int) -> bool:
    """Say whether repetition levels begin a list every `dim` values, and at no other.

    The runs of a row are mostly those of the row before, byte for byte: these are compared at once.

    Args:
        data: The levels in their coding, no byte more.
        n_levels: How many there are.
        first: The number of the first value, counted from one at which a list begins.
        dim: Values of a list.
    """
    runs = _Runs(data, 1)
    n_done = 0
    start: tuple[int, int] | None = None
    while n_done < n_levels:
        place = (first + n_done) % dim
        if place == 0:
            if start is not None:
                n_bytes, n_values = runs.position - start[0], n_done - start[1]
                n_repeats = min(runs.n_repeats(n_bytes), (n_levels - n_done) // n_values)
                runs.position += n_repeats * n_bytes
                n_done += n_repeats * n_values
            start = (runs.position, n_done)
            if n_done == n_levels:
                break
        run = runs.next(n_levels - n_done)
        if run is None or not _fits(run[0], run[1], place, dim):
            return False
        n_done += run[0]
    return runs.position == len(data)


def _fits(count: int, levels: Bytes, place: int, dim: int) -> bool:
    """Say whether levels, one for all of a run or one each, are right from a place in a row on."""
    if len(levels) == 1 and count > 1:
        return dim == 1 if levels[0] == 0 else bool(levels[0] == 1) and 0 < place <= dim - count
    return bool((levels == (np.arange(place, place + count) % dim != 0)).all())


class _Runs:
    """The runs of levels in bytes, one after the other."""

    def __init__(self, data: bytes, bit_width: int) -> None:
        self._data = data
        self._bit_width = bit_width
        self._n_left = _MAX_RUNS
        self.position = 0

    def next(self, n_wanted: int) -> tuple[int, Bytes] | None:
        """Return the count of the next run and its levels, or one for all of them; None if there is none such."""
        self._n_left -= 1
        head = self._head()
        if head is None or self._n_left < 0:
            return None
        count = head >> 1
        if head & 1:
            return self._packed(count, n_wanted)
        if not 0 < count <= n_wanted or self.position >= len(self._data):
            return None
        self.position += 1
        return count, np.frombuffer(self._data, np.uint8, 1, self.position - 1)

    def n_repeats(self, n_bytes: int) -> int:
        """Return how often the last `n_bytes` are repeated from here on."""
        here, data = self.position, self._data
        if data[here : here + n_bytes] != data[here - n_bytes : here]:
            return 0
        bytes_ = np.frombuffer(data, np.uint8)
        differs = bytes_[here:] != bytes_[here - n_bytes : -n_bytes]
        n_same = int(differs.argmax()) if differs.any() else len(differs)
        return n_same // n_bytes

    def _head(self) -> int | None:
        value = 0
        for shift in range(0, 35, 7):
            if self.position >= len(self._data):
                return None
            byte = self._data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        return None

    def _packed(self, n_groups: int, n_wanted: int) -> tuple[int, Bytes] | None:
        n_bytes = n_groups * self._bit_width
        # Only the last group may be filled up.
        if not 0 < 8 * n_groups < n_wanted + 8 or n_bytes > len(self._data) - self.position:
            return None
        packed = np.frombuffer(self._data, np.uint8, n_bytes, self.position)
        self.position += n_bytes
        bits = np.unpackbits(packed, bitorder="little").reshape(-1, self._bit_width)
        levels = (bits << np.arange(self._bit_width, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)
        return min(8 * n_groups, n_wanted), levels[:n_wanted]
