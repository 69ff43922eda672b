"""Summary of a store for the command line, and the progress and the result of a run that makes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import click

from bertfeat.choices import ChunkContext, Level, Pooling
from bertfeat.cli.options import Printed
from bertfeat.config import ExtractConfig
from bertfeat.display import counted, facts, model_text
from bertfeat.encoder.sentence_model import UNSUPPORTED
from bertfeat.errors import StoreError
from bertfeat.progress import Bar
from bertfeat.records import Plan, Receipt
from bertfeat.store.description import StoreDescription
from bertfeat.store.folder import folder_at
from bertfeat.store.plan_file import plan_hashes, read_plan

# Counts of a summary that the result of a run shows unless they are 0.
_OF_A_RUN = ("n_bytes", "tokens_per_s", "n_bad_rows", "n_empty_documents", "n_unknown_tokens")
_NOTES = ("n_empty_documents", "n_halvings", "n_cached_documents")


def store_summary(store: StoreDescription) -> dict[str, Any]:
    """Return what is in a store, perhaps an unfinished one, as JSON values."""
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
        "levels": {
            str(level): {
                "n_rows": store.n_rows(level),
                **{n: counts[key] for n, key in [("n_dropped_rows", f"n_dropped_{level}_rows")] if key in counts},
                "n_bytes": totals.n_bytes.get(level, 0),
                "columns": {column.name: column.type for column in store.schema(level).columns},
                "features": {feature.name: feature.dim for feature in store.schema(level).features},
            }
            for level in store.levels
        },
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


def _appends(store: StoreDescription, receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    """Return each append since the last compaction, in order; `receipts` tell when it was finished."""
    manifest, found = store.manifest, []
    times = {receipt.shard: receipt.created_at for receipt in receipts}
    for before, after in pairwise(state for state in manifest.history if state.n_shards is not None):
        shards = manifest.shards[before.n_shards : after.n_shards]
        if inputs := [file.path for file in manifest.inputs[before.n_inputs : after.n_inputs]]:
            n_documents = sum(shard.counts.get("n_documents", 0) for shard in shards)
            time = times.get(shards[-1].shard) if shards else None
            found.append({"n_documents": n_documents, "n_shards": len(shards), "inputs": inputs, "finished_at": time})
    return found


def _unfinished_append(store: StoreDescription) -> list[str]:
    """Return the inputs of an append that has not finished; nothing without one."""
    known = store.manifest.plan_hashes
    try:
        plans = [read_plan(store.path, plan) for plan in plan_hashes(folder_at(store.path)) if plan not in known]
    except StoreError:
        return []
    return [file.path for plan in plans if plan and plan.base == store.manifest.plan_hash for file in plan.inputs]


class RunLog(Bar):
    """A bar that knows whether shards had to be done, and how many documents came from a cache.

    With `verbose`, it first prints what computes.
    """

    def __init__(self, config: ExtractConfig, *, draws: bool | None, verbose: bool = False) -> None:
        super().__init__(draws=draws)
        self.has_started, self.n_cached_documents = False, 0
        self._config, self._verbose = config, verbose

    def start(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        """Print model, device, types and the work, then start to count."""
        self.has_started = True
        if self._verbose:
            names = ("family", "layers", "device_kind", "compute_dtype", "store_dtype")
            values = {"model": model_text(plan.metadata), **{name: plan.metadata[name] for name in names}}
            values |= {name: getattr(self._config, name) for name in ("device", "workers", "cache")}
            values |= {"max_batch_tokens": plan.fields["max_batch_tokens"], "n_rows": plan.n_rows}
            values |= {"n_shards": len(plan.shards), "n_shards_done_before": len(receipts)}
            self.clear()
            click.echo(facts(values, indent="bertfeat: "), err=True)
        super().start(plan, receipts)

    def committed(self, receipt: Receipt) -> None:
        """Count what a shard took from a cache."""
        self.n_cached_documents += receipt.notes.get("n_cached_documents", 0)
        super().committed(receipt)


def run_result(
    store: StoreDescription, log: RunLog, config: ExtractConfig | None = None, before: StoreDescription | None = None
) -> Printed:
    """Return the result of an extraction or import; `before` is the store that an append found."""
    summary, more = store_summary(store), dict[str, Any]()
    done = None if log.has_started else "already complete; nothing to do"
    if log.has_started and before is not None:
        n = summary["n_documents"] - before.manifest.totals.counts.get("n_documents", 0)
        done = f"{counted(n, 'document')} appended" if n else "damaged shards repeated"
    if config and not store.is_complete:
        n_left = summary["n_shards_planned"] - summary["n_shards"]
        done = f"share {config.shards} is done; {counted(n_left, 'shard')} left to others"
    if config and config.cache and log.has_started:
        more["n_documents_from_the_cache"] = log.n_cached_documents
    if log.has_started and before is None:
        more["tip"] = _sentence_tip(store)
    return Printed({**summary, "was_complete": not log.has_started}, run_text(summary, done, **more))


def run_text(summary: Mapping[str, Any], result: str | None, *, tip: str | None = None, **more: Any) -> str:
    """Return what is printed of a store that a run made."""
    meta, rows = summary["metadata"], {level: _rows_text(info) for level, info in summary["levels"].items()}
    counts = {name: summary.get(name) or None for name in _OF_A_RUN}
    is_alone = meta.get("chunk_context") == ChunkContext.ALONE
    of_texts = ("pooling", "sentence_model", "prompt") if is_alone or Level.SENTENCE in rows else ()
    of_spans = ("spans", "chunk", "chunk_context" if is_alone else "span_pooling", "span_pair")
    pooling = {name: meta.get(name) for name in (*(of_spans if Level.SPAN in rows else ()), *of_texts)}
    return facts({"store": summary["store"], "result": result, "rows": rows, **counts, **more, **pooling, "tip": tip})


def _rows_text(level: Mapping[str, Any]) -> str | int:
    n_rows, n_dropped = level["n_rows"], level.get("n_dropped_rows")
    return n_rows if n_dropped is None else f"{n_rows:,} of {n_rows + n_dropped:,}"


def _sentence_tip(store: StoreDescription) -> str | None:
    """Return what the model was trained for, if sentence rows were made otherwise."""
    meta, tips = store.metadata, []
    if Level.SENTENCE in store.levels or meta.get("chunk_context") == ChunkContext.ALONE:
        if meta["pooling"] != Pooling.MODEL and meta.get("sentence_model", "") not in ("", UNSUPPORTED):
            tips.append("--pooling model stores the embedding that the model was trained for")
        prompts = {} if meta.get("prompt") else meta.get("prompts", {})
        if names := [name for name, text in prompts.items() if text]:
            tips.append(f"--prompt-name puts one of the model's prompts before each text ({', '.join(names)})")
    return " and ".join(tips) or None
