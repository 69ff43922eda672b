"""Progress reports of long calls, and the bar that shows them."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from bertfeat.display import first_columns, printable
from bertfeat.errors import ConfigError
from bertfeat.records import Plan, Receipt

#: Takes how far the encoder is in a shard: documents and tokens encoded so far, and all tokens of the shard.
Report = Callable[[int, int, int], object]

_LEAST_BAR = 10  # columns
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

        The first report of a shard has zeros. Shards on Ray send no such reports.
        """

    def committed(self, receipt: Receipt) -> None:
        """Report that a shard is safely on disk."""


class Silent(Progress):
    """A progress that shows nothing."""


def unreported(n_documents: int, n_tokens: int, n_tokens_in_shard: int) -> None:
    """Ignore the reports of a shard."""


class Work:
    """The work of an extraction, done and left, counted in tokens.

    Tokens and not documents: a shard encodes its longest documents first, so that documents per second rise while
    tokens per second hardly change. The tokens of a shard are known when its encoding begins; until then they are
    estimated from its documents.
    """

    def __init__(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        self._rows_of = {shard.index: shard.n_rows for shard in plan.shards}
        # shard -> documents done, tokens done, all tokens
        self._shards: dict[int, tuple[int, int, int]] = {}
        self._on_disk: set[int] = set()
        self.n_documents_in_all = plan.n_rows
        self.n_documents = self.n_tokens = self.n_bytes = 0
        self._n_known_rows = self._n_known_tokens = 0
        for receipt in receipts:
            if receipt.shard in self._rows_of:
                self.commit(receipt)
        self._n_before = self.n_tokens
        self.restart()

    def restart(self) -> None:
        """Begin the time that counts for the speed, unless something has been encoded."""
        if self.n_tokens == self._n_before:
            self._since = time.monotonic()

    def encode(self, shard: int, n_documents: int, n_tokens: int, n_tokens_in_shard: int) -> None:
        """Count what is encoded of a shard."""
        if not n_tokens:
            self.restart()
        before = self._shards.get(shard)
        if before is None:
            before = (0, 0, 0)
            self._n_known_rows += self._rows_of[shard]
        self.n_documents += n_documents - before[0]
        self.n_tokens += n_tokens - before[1]
        self._n_known_tokens += n_tokens_in_shard - before[2]
        self._shards[shard] = (n_documents, n_tokens, n_tokens_in_shard)

    def commit(self, receipt: Receipt) -> None:
        """Count a shard that is on disk."""
        n_tokens = receipt.counts.get("n_encoded_tokens", 0)
        self.encode(receipt.shard, self._rows_of[receipt.shard], n_tokens, n_tokens)
        self._on_disk.add(receipt.shard)
        self.n_bytes += sum(part.n_bytes for part in receipt.parts)

    @property
    def share(self) -> float:
        """The part of the work that is done; below 1 until everything is on disk."""
        if len(self._on_disk) == len(self._rows_of):
            return 1.0
        n_in_all = self._n_tokens_in_all()
        return min(0.99, self.n_tokens / n_in_all if n_in_all else self.n_documents / self.n_documents_in_all)

    @property
    def tokens_per_s(self) -> float:
        """The speed of this run."""
        return (self.n_tokens - self._n_before) / max(time.monotonic() - self._since, 1e-9)

    def time_left(self) -> str:
        """Return the time for the tokens that are left, `writing` if none is, or the time that all of them took."""
        if len(self._on_disk) == len(self._rows_of):
            return f"took {_interval(time.monotonic() - self._since)}"
        n_left = self._n_tokens_in_all() - self.n_tokens
        if n_left <= 0 and len(self._shards) == len(self._rows_of):
            return "writing"
        return f"{_interval(n_left / self.tokens_per_s)} left" if n_left > 0 and self.tokens_per_s else ""

    def _n_tokens_in_all(self) -> float:
        n_rows = self._n_known_rows
        return self._n_known_tokens * self.n_documents_in_all / n_rows if n_rows else 0


class Bar(Progress):
    """Progress as a line on standard error or a widget in a notebook, drawn by tqdm.

    The line of an extraction stays on the screen; that of another call is removed at its end. Without a terminal, a
    line is written each minute, and at the end of an extraction.
    """

    def __init__(self, *, draws: bool = True) -> None:
        self._lock = threading.Lock()
        self._work: Work | None = None
        # Of a counted stage: its text and total, its first count, and when it began.
        self._stage: tuple[tuple[str, int], int, float] | None = None
        self._drawn_at = -math.inf
        self._is_log = draws and not is_watched()
        self._bar: Any = _open_bar(disable=self._is_log) if draws else None

    def stage(self, text: str, n_done: int = 0, n_total: int | None = None) -> None:
        """Show the name of a stage, with a bar if it is counted."""
        with self._lock:
            if self._work is not None:
                self._work.restart()
                self._draw("", [text], self._work.share)
            elif n_total:
                self._draw_counted(text, n_done, n_total)
            else:
                self._stage = None
                self._draw(f"{text} ...", [], None)

    def start(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        """Start the bar that counts documents and tokens."""
        with self._lock:
            self._work = Work(plan, receipts)
            self._draw_work(now=True)

    def encoded(self, shard: int, n_documents: int, n_tokens: int, n_tokens_in_shard: int) -> None:
        """Count documents and tokens."""
        with self._lock:
            if self._work is not None:
                self._work.encode(shard, n_documents, n_tokens, n_tokens_in_shard)
                self._draw_work(now=n_tokens == n_tokens_in_shard)

    def committed(self, receipt: Receipt) -> None:
        """Count the documents, tokens and bytes of a shard."""
        with self._lock:
            if self._work is not None:
                self._work.commit(receipt)
                self._draw_work(now=self._work.share == 1)

    def clear(self) -> None:
        """Clear the line, so that other output can be written there."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Draw the bar for the last time, or remove it."""
        if self._is_log and self._work is not None:
            self._drawn_at = -math.inf
            self._draw_work(now=True)
        if self._bar is not None:
            self._bar.leave = self._work is not None
            # tqdm keeps an unfinished widget, in red.
            self._bar.n = self._bar.n if self._work else self._bar.total
            self._bar.close()

    def _draw_counted(self, text: str, n_done: int, n_total: int) -> None:
        now = time.monotonic()
        is_new = self._stage is None or self._stage[0] != (text, n_total) or n_done < self._stage[1]
        if is_new:
            self._stage = ((text, n_total), n_done, now)
        assert self._stage is not None
        _, first, since = self._stage
        if self._is_due(now=is_new or n_done == n_total):
            left = (n_total - n_done) * (now - since) / (n_done - first) if n_done > first else None
            fields = [] if left is None else [f"{_interval(left)} left"]
            self._draw(f"{text}: ", [*fields, f"{n_done:,}/{n_total:,}"], n_done / n_total)

    def _draw_work(self, *, now: bool) -> None:
        work = self._work
        if work is None or not self._is_due(now=now):
            return
        fields = [work.time_left(), f"{work.n_documents:,}/{work.n_documents_in_all:,} documents"]
        if work.n_tokens:
            fields += [f"{work.n_tokens:,} tokens", f"{work.tokens_per_s:,.0f} tokens/s"]
        if work.n_bytes:
            fields.append(self._bar.format_sizeof(work.n_bytes, "B"))
        self._draw("", [field for field in fields if field], work.share)

    def _is_due(self, *, now: bool) -> bool:
        """Return whether to draw: `now`, or because the last one was `INTERVAL_S` ago (in a log, one minute)."""
        least = _LOG_INTERVAL_S if self._is_log else 0 if now else INTERVAL_S
        return self._bar is not None and time.monotonic() - self._drawn_at >= least

    def _draw(self, head: str, fields: Sequence[str], share: float | None) -> None:
        if self._bar is not None and self._is_due(now=True):
            bar, self._drawn_at = self._bar, time.monotonic()
            if self._is_log:
                print(_line(head, fields, share, 0).format(), file=sys.stderr, flush=True)
                return
            bar.ncols = _columns()
            bar.n = share or 0
            bar.bar_format = _line(head, fields, share, bar.ncols)
            bar.refresh()


def _open_bar(*, disable: bool) -> Any:
    is_notebook = _in_notebook()
    if is_notebook:
        with warnings.catch_warnings():
            # Without ipywidgets, tqdm draws a line of text in a notebook, and warns.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
    else:
        from tqdm import tqdm
    # A height lets tqdm draw on terminals that report none; a total from the start gives a widget its width.
    bar = tqdm(
        file=sys.stderr, leave=False, nrows=24, disable=disable, total=1 if is_notebook else None, bar_format="{desc}"
    )
    bar.total = 1
    return bar


def _line(head: str, fields: Sequence[str], share: float | None, columns: int | None) -> str:
    """Return tqdm's format of a line with as many fields as fit; the bar gives way to them."""
    text = printable(head) + (f"{int(share * 100 + 1e-9):3d}%" if share is not None else "")
    while columns and fields and len(text) + 1 + len(", ".join(fields)) > columns:
        fields = fields[:-1]
    after = f" {', '.join(map(printable, fields))}" if fields else ""
    if columns:
        text = first_columns(text, columns)
    has_bar = share is not None and (columns is None or len(text + after) + 2 + _LEAST_BAR <= columns)
    escaped = [part.replace("{", "{{").replace("}", "}}") for part in (text, after)]
    return ("|{bar}|" if has_bar else "").join(escaped)


def _columns() -> int | None:
    """Return the width of the terminal; None in a notebook, without a terminal, and if it is unknown."""
    try:
        return None if _in_notebook() else os.get_terminal_size(sys.stderr.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _interval(seconds: float) -> str:
    """Return a time as tqdm writes it, such as 00:12 or 2:13:05."""
    from tqdm import tqdm

    return str(tqdm.format_interval(seconds))


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
    """Yield the receiver of a call's reports: a bar, closed at the end, or a silent one, or the one that is given.

    Args:
        progress: True draws a bar, False draws none, and None draws one in a terminal and in a notebook.

    Raises:
        ConfigError: `progress` is something else.
    """
    if isinstance(progress, Progress):
        yield progress
    elif progress is not None and not isinstance(progress, bool):
        raise ConfigError(f"progress {progress!r} is not True, False, None or an instance of bertfeat.Progress")
    elif is_watched() if progress is None else progress:
        with closing(Bar()) as bar:
            yield bar
    else:
        yield Silent()
