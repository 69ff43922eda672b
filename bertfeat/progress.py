"""Progress reports of long calls, and the bar of tqdm that shows them."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from bertfeat.display import printable
from bertfeat.errors import ConfigError
from bertfeat.records import Plan, Receipt

#: Takes how far the encoder is in a shard: documents and tokens encoded so far, and all tokens of the shard.
Report = Callable[[int, int, int], object]

#: Seconds between two reports of a worker, and between two drawings.
INTERVAL_S = 0.2
# The same of lines in a file.
_LOG_INTERVAL_S = 60


class Progress:
    """Receiver of the reports of a long call: pass `progress=True` for a bar, or an instance of a subclass.

    Each method does nothing unless it is overridden, and may be called from several threads.
    """

    def stage(self, text: str, n_done: int = 0, n_total: int | None = None) -> None:
        """Report the current stage, such as `loading the model`, and how much of it is done, if that is counted."""

    def start(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        """Report that the shards of an extraction begin; `receipts` are those of earlier runs."""

    def encoded(self, shard: int, n_documents: int, n_tokens: int, n_tokens_in_shard: int) -> None:
        """Report how many documents and tokens of a shard are encoded, and how many tokens it has.

        The first report of a shard has zeros. Shards in worker processes and on Ray send no such reports.
        """

    def committed(self, receipt: Receipt) -> None:
        """Report that a shard is safely on disk."""


def unreported(n_documents: int, n_tokens: int, n_tokens_in_shard: int) -> None:
    """Ignore the reports of a shard."""


class Bar(Progress):
    """Progress as a line on standard error or a widget in a notebook, drawn by tqdm.

    An extraction is counted in tokens and not in documents, because a shard encodes its longest documents first. The
    tokens of a shard are known when its encoding begins; until then they are estimated from its documents. Without a
    terminal, a line is written for each stage and each minute; with `draws=None` only from the first minute on.
    """

    def __init__(self, *, draws: bool | None = True) -> None:
        self._lock = threading.Lock()
        self._draws = draws is not False
        self._delay_s = _LOG_INTERVAL_S if draws is None and not is_watched() else 0
        self._bar: Any = None
        # The stage that is shown: its text and its total.
        self._stage: tuple[str, int | None] | None = None
        # Of an extraction: the documents of each shard; documents, tokens and bytes of those on disk; and of the others
        # that have begun, documents and tokens that are encoded, and all tokens.
        self._rows_of: dict[int, int] = {}
        self._n_rows = self._n_documents = self._n_tokens = self._n_bytes = 0
        self._begun: dict[int, tuple[int, int, int]] = {}

    def stage(self, text: str, n_done: int = 0, n_total: int | None = None) -> None:
        """Show the name of a stage, with a bar if it is counted."""
        text = printable(text)
        with self._lock:
            if self._rows_of:
                self._restart()
                if self._bar is not None:
                    self._bar.set_description_str(text, refresh=not self._delay_s)
                return
            if self._stage != (text, n_total) or (self._bar is not None and n_done < self._bar.n):
                self._stage = (text, n_total)
                counted = {"initial": n_done, "total": n_total} if n_total else {"bar_format": "{desc} ..."}
                self._open(desc=text, **counted)
            if self._bar is not None:
                self._bar.update(n_done - self._bar.n)

    def start(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        """Start the bar that counts tokens, with those of earlier runs."""
        with self._lock:
            self._rows_of = {shard.index: shard.n_rows for shard in plan.shards}
            self._n_rows, self._begun = sum(self._rows_of.values()), {}
            self._n_documents = self._n_tokens = self._n_bytes = 0
            for receipt in receipts:
                self._commit(receipt)
            # The average speed, since tokens per second hardly change.
            self._open(initial=self._n_tokens, unit=" tokens", unit_scale=True, smoothing=0, leave=True)
            self._draw()

    def encoded(self, shard: int, n_documents: int, n_tokens: int, n_tokens_in_shard: int) -> None:
        """Count documents and tokens."""
        with self._lock:
            if not n_tokens:
                self._restart()
            self._begun[shard] = (n_documents, n_tokens, n_tokens_in_shard)
            self._draw()

    def committed(self, receipt: Receipt) -> None:
        """Count the documents, tokens and bytes of a shard."""
        with self._lock:
            self._commit(receipt)
            self._draw()

    def clear(self) -> None:
        """Clear the line, so that other output can be written there."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Draw the bar for the last time, or remove it."""
        if self._bar is not None:
            if not self._bar.leave:
                # tqdm keeps an unfinished widget, in red.
                self._bar.total = None
            self._bar.close()
            self._bar = None

    def _commit(self, receipt: Receipt) -> None:
        self._begun.pop(receipt.shard, None)
        if receipt.shard in self._rows_of:
            self._n_documents += self._rows_of[receipt.shard]
            self._n_tokens += receipt.counts.get("n_encoded_tokens", 0)
            self._n_bytes += sum(part.n_bytes for part in receipt.parts)

    def _restart(self) -> None:
        """Begin the time that counts for the speed, unless something has been encoded."""
        if self._bar is not None and self._bar.n == self._bar.initial:
            self._bar.unpause()

    def _draw(self) -> None:
        if self._bar is None:
            return
        n_documents, n_tokens, n_known, n_rows = self._n_documents, self._n_tokens, self._n_tokens, self._n_documents
        for shard, (documents, tokens, tokens_in_shard) in self._begun.items():
            n_documents, n_tokens = n_documents + documents, n_tokens + tokens
            n_known, n_rows = n_known + tokens_in_shard, n_rows + self._rows_of[shard]
        size = f", {self._bar.format_sizeof(self._n_bytes, 'B')}" if self._n_bytes else ""
        self._bar.total = round(n_known * self._n_rows / n_rows) if n_rows else None
        self._bar.set_description_str("", refresh=False)
        self._bar.set_postfix_str(f"{n_documents:,}/{self._n_rows:,} documents{size}", refresh=False)
        self._bar.update(n_tokens - self._bar.n)

    def _open(self, *, leave: bool = False, **options: Any) -> None:
        """Begin a bar in the place of the last one."""
        self.close()
        if self._draws:
            if not is_watched():
                options |= {"mininterval": _LOG_INTERVAL_S, "file": _Lines(), "delay": self._delay_s}
            # tqdm draws nothing on a terminal that reports no size.
            options |= {"ncols": 79, "nrows": 24} if _has_no_size() else {"dynamic_ncols": True}
            bar = _tqdm()(**{"leave": leave, "miniters": 0, "mininterval": INTERVAL_S, **options})
            # TQDM_DISABLE is set.
            self._bar = None if bar.disable else bar


class _Lines:
    """Standard error, where each drawing of a bar is a line."""

    def write(self, text: str) -> None:
        """Write a drawing, unless it removes the last one."""
        if line := text.strip():
            print(line, file=sys.stderr)

    def flush(self) -> None:
        """Write what is kept."""
        sys.stderr.flush()


def _tqdm() -> Any:
    if not _in_notebook():
        from tqdm import tqdm

        return tqdm
    with warnings.catch_warnings(action="ignore"):
        # Without ipywidgets, tqdm draws a line of text in a notebook, and warns.
        from tqdm.auto import tqdm
    return tqdm


def _has_no_size() -> bool:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns == 0
    except (OSError, ValueError):
        return False


def _in_notebook() -> bool:
    """Return whether this is a kernel of Jupyter, whose cells show output."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


def is_watched() -> bool:
    """Return whether a user sees a bar: standard error is a terminal, or this is a notebook."""
    try:
        return sys.stderr.isatty() or _in_notebook()
    except (AttributeError, ValueError):  # a program without standard error
        return False


@contextmanager
def reporting(progress: bool | Progress | None) -> Iterator[Progress]:
    """Yield a bar, closed at the end, a silent receiver, or the one given; None draws where a user sees it."""
    if isinstance(progress, Progress):
        yield progress
    elif progress is not None and not isinstance(progress, bool):
        raise ConfigError(f"progress {progress!r} is not True, False, None or an instance of bertfeat.Progress")
    elif is_watched() if progress is None else progress:
        with closing(Bar()) as bar:
            yield bar
    else:
        yield Progress()
