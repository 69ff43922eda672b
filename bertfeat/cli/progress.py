"""Progress of a run, and with `--verbose` what computes, on standard error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from bertfeat.config import ExtractConfig
from bertfeat.devices import n_cpus
from bertfeat.display import facts, model_text
from bertfeat.progress import Bar
from bertfeat.records import Plan, Receipt


class RunLog(Bar):
    """A bar that, with `verbose`, first prints what computes.

    Attributes:
        has_started: Whether there were shards to do; False for a store that was complete before.
        n_cached_documents: How many documents came from a cache.
    """

    def __init__(self, config: ExtractConfig, *, draws: bool | None, verbose: bool = False) -> None:
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
            click.echo(facts(_run_facts(plan, self._config, n_done=len(receipts)), indent="bertfeat: "), err=True)
        super().start(plan, receipts)

    def committed(self, receipt: Receipt) -> None:
        """Count what a shard took from a cache."""
        self.n_cached_documents += receipt.notes.get("n_cached_documents", 0)
        super().committed(receipt)


def _run_facts(plan: Plan, config: ExtractConfig, *, n_done: int) -> dict[str, Any]:
    """Return what `--verbose` prints before the first shard: model, device, types, and the work."""
    meta = plan.metadata
    return {
        "model": model_text(meta),
        **{name: meta[name] for name in ("family", "layers", "device_kind", "compute_dtype", "store_dtype")},
        **{name: getattr(config, name) for name in ("device", "workers", "cache")},
        "n_threads": n_cpus(),
        "max_batch_tokens": plan.fields["max_batch_tokens"],
        "n_rows": plan.n_rows,
        "n_shards": len(plan.shards),
        "n_shards_done_before": n_done,
    }
