"""The encoder alone: packs in, hidden states out."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.speed.ceiling import gemm_ceiling
from benchmarks.speed.corpora import CORPORA, write_corpus
from benchmarks.speed.harness import MAX_LENGTH, Setup
from benchmarks.speed.models import Shape
from bertfeat.config import ExtractConfig
from bertfeat.encoder.encoder import PackEncoder, encode_packs
from bertfeat.extraction.job import Job, open_inputs, open_job
from bertfeat.extraction.run import ShardTask
from bertfeat.progress import Progress
from bertfeat.records import Pack, ShardSpec
from bertfeat.store.writer import open_for_writing


@contextlib.contextmanager
def opened_job(
    shape: Shape, corpus: str, folder: Path, n_rows: int, **settings: Any
) -> Iterator[tuple[Job, ShardTask, list[ShardSpec]]]:
    """Plan an extraction and load its model, as `extract` does, but leave the shards to the block."""
    tokenizer = AutoTokenizer.from_pretrained(str(shape.folder))
    place = folder / f"job-{len(list(folder.iterdir()))}"
    place.mkdir()
    path = write_corpus(CORPORA[corpus](tokenizer, n_rows), place, corpus)
    config = ExtractConfig.from_dict({"model": str(shape.folder), "max_length": MAX_LENGTH, "workers": 1, **settings})
    with open_inputs(path, place / "store", config) as files:
        job = open_job(config, files, place / "store", Progress(), overwrite=False)
        with open_for_writing(place / "store", job.plan, overwrite=False) as writer:
            yield job, ShardTask(job), list(writer.pending())


def encoder_and_packs(
    shape: Shape, corpus: str, folder: Path, setup: Setup, n_rows: int
) -> tuple[PackEncoder, list[Pack]]:
    """Return an encoder for the last layer, and the packs that a run makes of a corpus."""
    given = {"levels": "sentence", "layers": "-1", "device": setup.device, "compute_dtype": setup.dtype}
    with opened_job(shape, corpus, folder, n_rows, **given) as (_, task, shards):
        packs = []
        for shard in shards:
            packs += task.prepare(shard).packs
    return task.flow.encoder, packs


def operators(
    shape: Shape, corpus: str, folder: Path, setup: Setup, *, n_rows: int, n_most: int = 12
) -> dict[str, Any]:
    """Return the share of the encoder's time that each operator of PyTorch takes by itself, largest first."""
    encoder, packs = encoder_and_packs(shape, corpus, folder, setup, n_rows)
    _encode(encoder, packs[-2:])
    # Packs are encoded in threads of their own, which the profiler leaves out otherwise.
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, experimental_config=config) as profile:
        _encode(encoder, packs)
    spent = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
    total = sum(spent.values())
    most = sorted(spent, key=lambda name: -spent[name])[:n_most]
    return {name: spent[name] / total for name in most}


def encoder_alone(shape: Shape, corpus: str, folder: Path, setup: Setup, *, n_rows: int) -> dict[str, Any]:
    """Return the rate of the encoder's matrix products and that of the same products alone.

    The share of the ceiling is the time that the ceiling's rate would need for all matrix products of the windows,
    attention's among them, in the time that the encoder takes.
    """
    encoder, packs = encoder_and_packs(shape, corpus, folder, setup, n_rows)
    lengths = [int(n) for pack in packs for n in pack.lengths]
    flops, linear_flops = shape.flops(lengths), shape.flops([1] * sum(lengths))
    dtype = getattr(torch, setup.dtype)
    largest = max(pack.n_tokens for pack in packs)
    seconds, ceilings = [], []
    _encode(encoder, packs[-2:])
    for _ in range(setup.n_rounds):
        ceilings.append(gemm_ceiling(shape, largest, device=setup.device, dtype=dtype))
        start = time.perf_counter()
        _encode(encoder, packs)
        seconds.append(time.perf_counter() - start)
    rates = [flops / s / 1e9 for s in seconds]
    return {
        "n_tokens": sum(lengths),
        "n_packs": len(packs),
        "padding": 1 - sum(lengths) / sum(pack.n_tokens for pack in packs),
        "tokens_per_s": sum(lengths) / statistics.median(seconds),
        "gflops": statistics.median(rates),
        "gemm_gflops": ceilings,
        "share_of_torch_mm": _share(rates, [c["torch.mm"] for c in ceilings]),
        "share_of_best": _share(rates, [max(c.values()) for c in ceilings]),
        "attention_share_of_flops": 1 - linear_flops / flops,
    }


def _encode(encoder: PackEncoder, packs: list[Pack]) -> None:
    for _ in encode_packs(encoder, packs):
        pass
    if encoder.device.type == "cuda":
        torch.cuda.synchronize()


def _share(rates: list[float], ceilings: list[float]) -> float:
    return statistics.median(rate / ceiling for rate, ceiling in zip(rates, ceilings, strict=True))
