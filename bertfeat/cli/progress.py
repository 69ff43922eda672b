"""Progress as one line on standard error: rows, tokens a second, bytes, time left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence

from bertfeat.records import Plan, Receipt

_REDRAW_S = 0.2


class ProgressLine:
    """Redraws one line; a caller asks for it only on a terminal, or when told to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drawn_at = 0.0
        self._started_at = time.monotonic()
        self._n_rows = self._n_rows_before = self._n_rows_done = 0
        self._rows_of: dict[int, int] = {}
        self._n_tokens = self._n_bytes = 0

    def stage(self, text: str) -> None:
        """Name a stage without a measure."""
        self._draw(f"{text} ...", force=True)

    def start(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        """Start to measure."""
        self._rows_of = {shard.index: shard.n_rows for shard in plan.shards}
        self._n_rows = plan.n_rows
        self._n_rows_before = self._n_rows_done = sum(self._rows_of.get(receipt.shard, 0) for receipt in receipts)
        self._started_at = time.monotonic()

    def encoded(self, n_tokens: int) -> None:
        """Count tokens."""
        with self._lock:
            self._n_tokens += n_tokens
        self._draw(self._line())

    def committed(self, receipt: Receipt) -> None:
        """Count a shard."""
        with self._lock:
            self._n_rows_done += self._rows_of.get(receipt.shard, 0)
            self._n_bytes += sum(part.n_bytes for part in receipt.parts)
        self._draw(self._line(), force=True)

    def close(self) -> None:
        """Leave the line standing."""
        if self._drawn_at:
            sys.stderr.write("\n")
            sys.stderr.flush()

    def _line(self) -> str:
        seconds = max(time.monotonic() - self._started_at, 1e-9)
        n_new = self._n_rows_done - self._n_rows_before
        left = seconds / n_new * (self._n_rows - self._n_rows_done) if n_new else None
        return (
            f"{self._n_rows_done:,}/{self._n_rows:,} documents  {self._n_tokens / seconds:,.0f} tokens/s  "
            f"{human_bytes(self._n_bytes)}  {'' if left is None else human_time(left) + ' left'}"
        )

    def _draw(self, text: str, *, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._drawn_at < _REDRAW_S:
            return
        self._drawn_at = now
        sys.stderr.write("\r\x1b[2K" + text)
        sys.stderr.flush()


def human_bytes(n_bytes: float) -> str:
    """Return bytes with a decimal unit.

    Example:
        >>> human_bytes(1234567), human_bytes(17)
        ('1.2 MB', '17 B')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} TB"


def human_time(seconds: float) -> str:
    """Return a duration in its two largest units.

    Example:
        >>> human_time(42), human_time(3725)
        ('42 s', '1 h 2 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
