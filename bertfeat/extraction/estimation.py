"""Estimate of a run: rows, tokens, bytes on disk and time, without writing anything."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from pathlib import Path
from typing import TypeVar

import torch

from bertfeat.choices import Level
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Inputs
from bertfeat.devices import has_fast_bfloat16
from bertfeat.encoder.encoder import PackEncoder, encode_packs
from bertfeat.extraction.caching import CachedTask
from bertfeat.extraction.flow import Flow, Network, tokens_of
from bertfeat.extraction.job import Job, open_inputs, open_job
from bertfeat.extraction.plan import row_bytes
from bertfeat.extraction.run import ShardTask
from bertfeat.extraction.vector_cache import FILE
from bertfeat.progress import Progress, reporting
from bertfeat.records import Pack, ShardSpec
from bertfeat.storage import local_path

ItemT = TypeVar("ItemT")

# The number of shards that are tokenized; of a larger corpus, this many shards at equal distances.
_MAX_SHARDS_READ = 16
_CALIBRATION_PACKS = 12


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of a run. Counts are exact if every shard was read (`is_exact`); bytes and time are estimates.

    `n_encoded_tokens` includes special tokens and the overlap of windows. `seconds` is wall-clock time at
    `tokens_per_s`, which is measured on a few packs of the corpus. `bfloat16_tokens_per_s` is the same in bfloat16; it
    is None unless the run computes in float32 on a processor with instructions for bfloat16. `n_cached_documents` is
    how many documents are in the cache, and need no time; None without a cache.
    """

    n_documents: int
    n_bad_rows: int
    n_tokens: int
    n_encoded_tokens: int
    n_rows: dict[Level, int]
    n_bytes: int
    n_shards: int
    compute_dtype: str
    max_length: int
    tokens_per_s: float
    seconds: float
    is_exact: bool
    bfloat16_tokens_per_s: float | None = None
    n_cached_documents: int | None = None


def estimate(inputs: Inputs, config: ExtractConfig, *, progress: bool | Progress | None = None) -> Estimate:
    """Read and tokenize a corpus, or shards from all over it, and encode a few packs; see `extract` for `progress`."""
    config = ExtractConfig.of(config, {})
    # Standard input is copied to the folder of the output; a dry run has none, so that it is a temporary file.
    nowhere = Path(tempfile.gettempdir()) / "dry-run"
    with reporting(progress) as reports, open_inputs(inputs, nowhere, config) as files:
        job = open_job(config, files, nowhere, reports, overwrite=True)
        shards = job.plan.shards
        chosen = spread(shards, _MAX_SHARDS_READ)
        return _measure(job, chosen, reports, scale=job.plan.n_rows / max(sum(s.n_rows for s in chosen), 1))


def spread(items: Sequence[ItemT], n_wanted: int) -> list[ItemT]:
    """Return up to `n_wanted` items at equal distances, starting with the first."""
    n_taken = min(n_wanted, len(items))
    return [items[number * len(items) // n_taken] for number in range(n_taken)]


def _measure(job: Job, shards: Sequence[ShardSpec], progress: Progress, *, scale: float) -> Estimate:
    progress.stage("loading the model")
    task = ShardTask(job)
    # A dry run makes no cache.
    has_cache = job.config.cache is not None and (local_path(job.config.cache, "a cache") / FILE).exists()
    cached = CachedTask(task, is_new=True) if has_cache else None
    n_bad = n_documents = n_tokens = n_encoded = n_bytes = n_cached = n_left = 0
    rows = dict.fromkeys(job.config.levels, 0)
    tokens_per_s, in_bfloat16 = 0.0, None
    for number, shard in enumerate(shards):
        progress.stage("tokenizing shards", number, len(shards))
        split = cached and cached.prepare(shard)
        prepared = split.whole if split else task.prepare(shard)
        counts = prepared.text.counts()
        n_documents += len(prepared.text.documents)
        n_bad += len(prepared.bad_rows)
        n_tokens += counts["n_tokens"]
        n_encoded += tokens_of(prepared.all_packs)
        n_cached += len(split.known) if split else 0
        n_left += tokens_of((split.rest if split else prepared).all_packs)
        for level, units in prepared.text.units.items():
            rows[level] += units[0].n_rows
        if Level.SENTENCE in rows:
            kept = prepared.text.kept.get(Level.SENTENCE, repeat(True))
            documents = compress(prepared.text.documents, kept)
            n_bytes += sum(len(d.text.encode()) + len((d.text_pair or "").encode()) for d in documents)
        if (spans := prepared.text.spans) is not None:
            n_bytes += sum(len(text.encode()) for text in spans.texts(prepared.text.documents))
        if not tokens_per_s:
            tokens_per_s = _calibrate(task.flow.encoder, prepared.all_packs)
            in_bfloat16 = _calibrate_bfloat16(task.flow, prepared.all_packs) if tokens_per_s else None
    for level, n_rows in rows.items():
        n_bytes += n_rows * row_bytes(level, job.plan.schemas[level].features, job.config.store_dtype)
    return Estimate(
        n_documents=round(n_documents * scale),
        n_bad_rows=round(n_bad * scale),
        n_tokens=round(n_tokens * scale),
        n_encoded_tokens=round(n_encoded * scale),
        n_rows={level: round(n_rows * scale) for level, n_rows in rows.items()},
        n_bytes=round(n_bytes * scale),
        n_shards=len(job.plan.shards),
        compute_dtype=job.resolved.compute_dtype,
        max_length=job.resolved.limits.max_length,
        tokens_per_s=tokens_per_s,
        seconds=n_left * scale / tokens_per_s if tokens_per_s else 0.0,
        is_exact=len(shards) == len(job.plan.shards),
        bfloat16_tokens_per_s=in_bfloat16,
        n_cached_documents=None if job.config.cache is None else round(n_cached * scale),
    )


def _calibrate(encoder: PackEncoder, packs: Sequence[Pack]) -> float:
    """Return the tokens per second of the encoder on packs of all lengths of a shard, after one pack to warm up."""
    if not packs:
        return 0.0
    step = max(1, len(packs) // _CALIBRATION_PACKS)
    encoder.encode(packs[-1])
    start = time.perf_counter()
    n_tokens = 0
    for pack, states in encode_packs(encoder, packs[::step]):
        # Reading a value waits until the device is done.
        float(states.layer(encoder.layers[-1])[0, 0])
        del states
        n_tokens += pack.n_tokens
    return n_tokens / (time.perf_counter() - start)


def _calibrate_bfloat16(flow: Flow, packs: Sequence[Pack]) -> float | None:
    """Return the tokens per second of the same layers in bfloat16; None where a run could not gain by it."""
    encoder = flow.encoder
    could_gain = encoder.device.type == "cpu" and encoder.compute_dtype is torch.float32 and encoder.path != "lookup"
    if not could_gain or not has_fast_bfloat16():
        return None
    resolved = dataclasses.replace(flow.resolved, compute_dtype="bfloat16")
    return _calibrate(Network(flow.network.checkpoint, flow.config, resolved).load().encoder, packs)
