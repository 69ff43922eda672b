"""Lines of a run on standard error, and the format of counts, bytes and times in all commands."""

from __future__ import annotations

from collections.abc import Sequence

import click

from bertfeat.choices import Runner
from bertfeat.config import ExtractConfig
from bertfeat.devices import has_fast_bfloat16, n_cpus
from bertfeat.display import model_text
from bertfeat.progress import Bar
from bertfeat.records import Plan, Receipt


class RunLog(Bar):
    """A bar that, with `verbose`, first prints what computes.

    Attributes:
        has_started: Whether there were shards to do; False for a store that was complete before.
        n_cached_documents: How many documents came from a cache.
    """

    def __init__(self, config: ExtractConfig, *, draws: bool, verbose: bool) -> None:
        super().__init__(draws=draws)
        self.has_started = False
        self.n_cached_documents = 0
        self._config = config
        self._verbose = verbose

    def start(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        """Print what computes, then start to count."""
        self.has_started = True
        if self._verbose:
            self.clear()
            for text in _run_lines(plan, self._config, n_done=len(receipts)):
                click.echo(f"bertfeat: {text}", err=True)
        super().start(plan, receipts)

    def committed(self, receipt: Receipt) -> None:
        """Count what a shard took from a cache."""
        self.n_cached_documents += receipt.notes.get("n_cached_documents", 0)
        super().committed(receipt)


def _run_lines(plan: Plan, config: ExtractConfig, *, n_done: int) -> list[str]:
    """Return what `--verbose` prints before the first shard: model, device, types, path, threads, and the work."""
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
        threads = max(1, n_cpus() // n_workers) if n_workers > 1 else torch.get_num_threads()
        workers = f"{counted(n_workers, 'worker')} with {counted(threads, 'thread')}"
    done = f", {n_done:,} of them done before" if n_done else ""
    cache = [] if config.cache is None else [f"cache {config.cache}, of up to {human_bytes(config.cache_size)}"]
    return [
        (
            f"model {model_text(meta)} ({model.family}, {model.n_layers} layers, {model.hidden_size} wide), "
            f"layers {', '.join(map(str, meta['layers']))}"
        ),
        (
            f"device {', '.join(map(str, devices))}; compute {meta['compute_dtype']}, store {meta['store_dtype']}; "
            f"packs of up to {plan.fields['max_batch_tokens']:,} tokens; "
            f"{workers}"
        ),
        *cache,
        f"{counted(plan.n_rows, 'row')} in {counted(len(plan.shards), 'shard')}{done}",
        *_bfloat16_lines(plan),
    ]


def _bfloat16_lines(plan: Plan) -> list[str]:
    """Return a hint where the run computes in float32 on a processor that has instructions for bfloat16."""
    meta = plan.metadata
    could_gain = (meta["device_kind"], meta["compute_dtype"]) == ("cpu", "float32") and plan.model.family != "static"
    if not could_gain or not has_fast_bfloat16():
        return []
    return ["this processor has instructions for bfloat16; --dry-run says what --compute-dtype bfloat16 gains"]


def counted(n: int, noun: str) -> str:
    """Return a number with its noun.

    Examples:
        >>> counted(1, "shard"), counted(1200, "row")
        ('1 shard', '1,200 rows')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def human_bytes(n_bytes: float) -> str:
    """Return bytes with a decimal unit.

    Examples:
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

    Examples:
        >>> human_time(42), human_time(3725)
        ('42 s', '1 h 2 min')
    """
    whole = round(seconds)
    for unit_s, unit, rest_s, rest in ((3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit_s:
            return f"{whole // unit_s} {unit} {whole % unit_s // rest_s} {rest}"
    return f"{whole} s"
