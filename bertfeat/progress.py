"""Progress reports of long calls, and a stopwatch for their stages."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeVar

from bertfeat.records import Plan, Receipt

ItemT = TypeVar("ItemT")

_COUNTED = "{desc}: {percentage:3.0f}%|{bar}| {n:,}/{total:,} [{elapsed}<{remaining}]"
_DOCUMENTS = "{desc}{percentage:3.0f}%|{bar}| {n:,}/{total:,} documents [{elapsed}<{remaining}{postfix}]"


class Progress:
    """Receiver of the reports of a long call: pass `progress=True` for a bar, or an instance of a subclass.

    Each method does nothing unless it is overridden, and may be called from several threads.
    """

    def stage(self, text: str, n_done: int = 0, n_total: int | None = None) -> None:
        """Report the current stage, such as `loading the model`, and how much of it is done, if that is counted."""

    def start(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        """Report that the shards of an extraction begin; `receipts` are those of earlier runs."""

    def encoded(self, n_tokens: int) -> None:
        """Report that the encoder has processed a pack."""

    def committed(self, receipt: Receipt) -> None:
        """Report that a shard is safely on disk."""


class Silent(Progress):
    """A progress that shows nothing."""


class Bar(Progress):
    """Progress as a line on standard error or a widget in a notebook, drawn by tqdm.

    The line of an extraction stays on the screen; that of another call is removed at its end.
    """

    def __init__(self, *, draws: bool = True) -> None:
        from tqdm.auto import tqdm

        self._lock = threading.Lock()
        self._rows_of: dict[int, int] = {}
        self._n_tokens = self._n_bytes = 0
        self._counted: tuple[str, int | None] = ("", None)
        # With a height, tqdm also draws on terminals that report none.
        settings = {"leave": False, "miniters": 0, "smoothing": 0, "nrows": 24}
        self._bar = tqdm(bar_format="{desc}", disable=not draws, file=sys.stderr, **settings)

    def stage(self, text: str, n_done: int = 0, n_total: int | None = None) -> None:
        """Show the name of a stage, with a bar if it is counted."""
        with self._lock:
            if self._bar.leave:
                # The bar already counts the documents of an extraction.
                self._bar.set_description_str(f"{text}: ")
            elif n_total is None:
                self._begin(f"{text} ...", "{desc}", 0, None)
            elif self._counted == (text, n_total) and n_done >= self._bar.n:
                self._bar.update(n_done - self._bar.n)
            else:
                self._begin(text, _COUNTED, n_done, n_total)

    def start(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        """Start the bar that counts documents."""
        self._rows_of = {shard.index: shard.n_rows for shard in plan.shards}
        with self._lock:
            n_before = sum(self._rows_of.get(receipt.shard, 0) for receipt in receipts)
            self._begin("", _DOCUMENTS, n_before, plan.n_rows)
            self._bar.leave = True

    def encoded(self, n_tokens: int) -> None:
        """Count tokens."""
        self._add(n_tokens=n_tokens)

    def committed(self, receipt: Receipt) -> None:
        """Count the documents and bytes of a shard."""
        self._add(n_rows=self._rows_of.get(receipt.shard, 0), n_bytes=sum(part.n_bytes for part in receipt.parts))

    def clear(self) -> None:
        """Clear the line, so that other output can be written there."""
        self._bar.clear()

    def close(self) -> None:
        """Draw the bar for the last time."""
        self._bar.close()

    def _begin(self, text: str, bar_format: str, n_done: int, n_total: int | None) -> None:
        bar, self._counted = self._bar, (text, n_total)
        bar.bar_format, bar.total = bar_format, n_total
        bar.set_description_str(text, refresh=False)
        bar.reset(n_total)
        bar.initial = bar.n = n_done
        bar.refresh()

    def _add(self, *, n_rows: int = 0, n_tokens: int = 0, n_bytes: int = 0) -> None:
        with self._lock:
            self._n_tokens += n_tokens
            self._n_bytes += n_bytes
            bar = self._bar
            rate = self._n_tokens / (bar.format_dict["elapsed"] or 1e-9)
            bar.set_description_str("", refresh=False)
            bar.set_postfix_str(f"{rate:,.0f} tokens/s, {bar.format_sizeof(self._n_bytes, 'B')}", refresh=False)
            bar.update(n_rows)


@contextmanager
def reporting(progress: bool | Progress) -> Iterator[Progress]:
    """Yield the receiver of a call's reports: a bar for True, closed at the end, and a silent one for False."""
    if progress is True:
        with closing(Bar()) as bar:
            yield bar
    else:
        yield progress or Silent()


class Stopwatch:
    """Adds up the seconds of named stages."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the wall-clock seconds of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start

    def each(self, stage: str, items: Iterable[ItemT]) -> Iterator[ItemT]:
        """Yield items, and add the time of waiting for them to a stage."""
        following = iter(items)
        while True:
            with self.time(stage):
                try:
                    item = next(following)
                except StopIteration:
                    return
            yield item
            # Free it before the next one is made: on a GPU, hidden states take most of the memory.
            del item
