"""What a run says on standard error: progress as one line, and what computes it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence

import click

from bertfeat.config import ExtractConfig, Runner
from bertfeat.progress import Progress, Silent
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

    def clear(self) -> None:
        """Wipe the line, for others to write there."""
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()

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


class RunLog:
    """Passes a run's progress on, knows whether there was anything to do, and can say what computes it.

    Attributes:
        has_started: Whether there were shards to do; False for a store that was complete before.
    """

    def __init__(self, config: ExtractConfig, line: ProgressLine | None, *, verbose: bool) -> None:
        self.has_started = False
        self._config = config
        self._inner: Progress = line or Silent()
        self._line = line
        self._verbose = verbose

    def stage(self, text: str) -> None:
        """Pass it on."""
        self._inner.stage(text)

    def start(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        """Say what computes, then pass it on."""
        self.has_started = True
        if self._verbose:
            if self._line is not None:
                self._line.clear()
            for text in run_lines(plan, self._config, n_done=len(receipts)):
                click.echo(f"bertfeat: {text}", err=True)
        self._inner.start(plan, receipts)

    def encoded(self, n_tokens: int) -> None:
        """Pass it on."""
        self._inner.encoded(n_tokens)

    def committed(self, receipt: Receipt) -> None:
        """Pass it on."""
        self._inner.committed(receipt)


def run_lines(plan: Plan, config: ExtractConfig, *, n_done: int) -> list[str]:
    """Return what `--verbose` says before the first shard: model, device, types, path, threads, and the work ahead."""
    import torch

    from bertfeat.devices import resolve_device

    meta, model = plan.metadata, plan.model
    if config.runner is Runner.RAY:
        devices: tuple[object, ...] = (meta["device_kind"],)
        workers = counted(config.workers, "actor") if config.workers else "as many actors as it has room for"
        workers += f" on Ray at {config.ray_address}" if config.ray_address else " on Ray"
    else:
        devices = resolve_device(config.device)
        n_workers = config.workers or len(devices)
        threads = max(1, (os.cpu_count() or 1) // n_workers) if n_workers > 1 else torch.get_num_threads()
        workers = f"{counted(n_workers, 'worker')} with {counted(threads, 'thread')}"
    revision = f" at {model.revision}" if model.revision else ""
    done = f", {n_done:,} of them done before" if n_done else ""
    return [
        (
            f"model {model.name}{revision} ({model.family}, {model.n_layers} layers, {model.hidden_size} wide), "
            f"layers {', '.join(map(str, meta['layers']))}"
        ),
        (
            f"device {', '.join(map(str, devices))}; compute {meta['compute_dtype']}, store {meta['store_dtype']}; "
            f"path {meta['attention']}; packs of up to {plan.fields['max_batch_tokens']:,} tokens; "
            f"{workers}"
        ),
        f"{counted(plan.n_rows, 'row')} in {counted(len(plan.shards), 'shard')}{done}",
    ]


def counted(n: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1, "shard"), counted(1200, "row")
        ('1 shard', '1,200 rows')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


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
