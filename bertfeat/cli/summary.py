"""Summary of a store for the command line, and the progress and the result of a run that makes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import click

from bertfeat.choices import Level, Pooling
from bertfeat.cli.options import Printed
from bertfeat.config import ExtractConfig
from bertfeat.display import counted, facts, model_text
from bertfeat.encoder.sentencemodel import UNSUPPORTED
from bertfeat.errors import StoreError
from bertfeat.progress import Bar
from bertfeat.records import Plan, Receipt
from bertfeat.store.folder import folder_at
from bertfeat.store.planfile import plan_hashes, read_plan
from bertfeat.store.storedescription import StoreDescription

# Counts of a summary that the result of a run shows unless they are 0.
_OF_A_RUN = ("n_bytes", "tokens_per_s", "n_bad_rows", "n_empty_documents", "n_unknown_tokens")
_NOTES = ("n_empty_documents", "n_halvings", "n_cached_documents")


def inspect_store(path: str) -> dict[str, Any]:
    """Return what is in a store, also an unfinished one, as JSON values."""
    return store_summary(StoreDescription.at(path, allow_incomplete=True))


def store_summary(store: StoreDescription) -> dict[str, Any]:
    """Return what is in a store as JSON values."""
    totals, receipts = store.manifest.totals, store.receipts()
    counts, seconds, notes = totals.counts, Counter[str](), Counter[str]()
    for receipt in receipts:
        seconds.update(receipt.seconds)
        notes.update({name: receipt.notes.get(name, 0) for name in (*_NOTES, "n_cached_tokens")})
    n_encoded = counts.get("n_encoded_tokens", 0) - notes["n_cached_tokens"]
    return {
        "store": str(store.path),
        "complete": store.is_complete,
        "version": store.version,
        "levels": {str(level): _level(store, level) for level in store.levels},
        **{name: counts.get(name, 0) for name in ("n_documents", "n_tokens", "n_truncated_tokens", "n_windows")},
        **{name: counts[name] for name in ("n_unknown_tokens",) if name in counts},
        "n_bad_rows": totals.n_bad_rows,
        **{name: notes[name] for name in _NOTES},
        "n_shards": totals.n_shards,
        "n_shards_planned": totals.n_shards if store.is_complete else len(store.plan.shards),
        "n_bytes": sum(totals.n_bytes.values()),
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        "tokens_per_s": round(n_encoded / seconds["encode"], 1) if seconds["encode"] else None,
        "appends": _appends(store, receipts),
        "unfinished_append": _unfinished_append(store),
        "metadata": store.metadata,
    }


def _level(store: StoreDescription, level: Level) -> dict[str, Any]:
    schema = store.schema(level)
    return {
        "n_rows": store.n_rows(level),
        "n_bytes": store.manifest.totals.n_bytes.get(level, 0),
        "columns": {column.name: column.type for column in schema.columns},
        "features": {feature.name: feature.dim for feature in schema.features},
    }


def _appends(store: StoreDescription, receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    """Return each append since the last compaction, in order; `receipts` tell when it was finished."""
    manifest, found = store.manifest, []
    times = {receipt.shard: receipt.created_at for receipt in receipts}
    for before, after in pairwise(state for state in manifest.history if state.n_shards is not None):
        shards = manifest.shards[before.n_shards : after.n_shards]
        inputs = [file.path for file in manifest.inputs[before.n_inputs : after.n_inputs]]
        n_documents = sum(shard.counts.get("n_documents", 0) for shard in shards)
        times_of = [times.get(shard.shard) for shard in shards[-1:]] or [None]
        found.append(
            {"n_documents": n_documents, "n_shards": len(shards), "inputs": inputs, "finished_at": times_of[0]}
        )
    return [append for append in found if append["inputs"]]


def _unfinished_append(store: StoreDescription) -> list[str]:
    """Return the inputs of an append that has not finished; nothing without one."""
    known = store.manifest.plan_hashes
    try:
        plans = [read_plan(store.path, plan) for plan in plan_hashes(folder_at(store.path)) if plan not in known]
    except StoreError:
        return []
    return [file.path for plan in plans if plan and plan.base == store.manifest.plan_hash for file in plan.inputs]


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
            click.echo(facts(self._computing(plan, len(receipts)), indent="bertfeat: "), err=True)
        super().start(plan, receipts)

    def committed(self, receipt: Receipt) -> None:
        """Count what a shard took from a cache."""
        self.n_cached_documents += receipt.notes.get("n_cached_documents", 0)
        super().committed(receipt)

    def _computing(self, plan: Plan, n_done: int) -> dict[str, Any]:
        """Return model, device, types, and the work."""
        names = ("family", "layers", "device_kind", "compute_dtype", "store_dtype")
        values = {"model": model_text(plan.metadata), **{name: plan.metadata[name] for name in names}}
        values |= {name: getattr(self._config, name) for name in ("device", "workers", "cache")}
        values |= {"max_batch_tokens": plan.fields["max_batch_tokens"], "n_rows": plan.n_rows}
        return {**values, "n_shards": len(plan.shards), "n_shards_done_before": n_done}


def run_result(
    store: StoreDescription, log: RunLog, config: ExtractConfig | None = None, before: StoreDescription | None = None
) -> Printed:
    """Return the result of an extraction or import; `before` is the store that an append found."""
    summary = store_summary(store)
    done = None if log.has_started else "already complete; nothing to do"
    if log.has_started and before is not None:
        n = summary["n_documents"] - before.manifest.totals.counts.get("n_documents", 0)
        done = f"{counted(n, 'document')} appended" if n else "damaged shards repeated"
    if config and not store.is_complete:
        n_left = summary["n_shards_planned"] - summary["n_shards"]
        done = f"share {config.shards} is done; {counted(n_left, 'shard')} left to others"
    n_cached = log.n_cached_documents if config and config.cache and log.has_started else None
    tip = _sentence_tip(store) if log.has_started and before is None else None
    return Printed({**summary, "was_complete": not log.has_started}, run_text(summary, done, n_cached, tip))


def run_text(
    summary: Mapping[str, Any], result: str | None, n_cached: int | None = None, tip: str | None = None
) -> str:
    """Return what is printed of a store that a run made."""
    meta, rows = summary["metadata"], {level: info["n_rows"] for level, info in summary["levels"].items()}
    pooling = {"pooling": meta["pooling"], "sentence_model": meta.get("sentence_model"), "prompt": meta.get("prompt")}
    counts = {name: summary.get(name) or None for name in _OF_A_RUN}
    shown = {
        "store": summary["store"],
        "result": result,
        "rows": rows,
        **counts,
        "n_documents_from_the_cache": n_cached,
    }
    return facts({**shown, **(pooling if Level.SENTENCE in rows else {}), "tip": tip})


def _sentence_tip(store: StoreDescription) -> str | None:
    """Return what the model was trained for, if sentence rows were made otherwise."""
    meta, tips = store.metadata, []
    if Level.SENTENCE in store.levels:
        if meta["pooling"] != Pooling.MODEL and meta.get("sentence_model", "") not in ("", UNSUPPORTED):
            tips.append("--pooling model stores the embedding that the model was trained for")
        prompts = {} if meta.get("prompt") else meta.get("prompts", {})
        if names := [name for name, text in prompts.items() if text]:
            tips.append(f"--prompt-name puts one of the model's prompts before each text ({', '.join(names)})")
    return " and ".join(tips) or None
