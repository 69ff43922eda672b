"""Measurements without a rival: the encoder's share of the machine, the processor time of each stage, and scale."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from benchmarks.measured import cpu_seconds
from benchmarks.speed.corpora import CORPORA, count_tokens, write_corpus
from benchmarks.speed.encoder_alone import encoder_alone, opened_job, operators
from benchmarks.speed.harness import MAX_LENGTH, Setup, make_task
from benchmarks.speed.models import get_model
from benchmarks.speed.outputs import OUTPUTS
from benchmarks.speed.rivals import Rival
from bertfeat.extraction.run import ShardTask
from bertfeat.progress import unreported
from bertfeat.records import ShardSpec

_STAGES = ("prepare", "encode", "commit")
_WRITE_BYTES = 1 << 22


def encoder(folder: Path, setup: Setup) -> dict[str, Any]:
    """Compare the encoder alone with plain matrix products of MiniLM's shapes, on each distribution of lengths."""
    shape = get_model("minilm", folder)
    rows = {"sentences": 2000, "paragraphs": 600, "encyclopedia": 300, "mixed": 400}
    return {
        corpus: encoder_alone(shape, corpus, folder, setup, n_rows=setup.n_rows or n_rows)
        for corpus, n_rows in rows.items()
    }


def profile(folder: Path, setup: Setup) -> dict[str, Any]:
    """Measure the time of each operator of the encoder, on short sentences and on paragraphs."""
    shape = get_model("minilm", folder)
    rows = {"sentences": 1000, "paragraphs": 300}
    return {
        corpus: operators(shape, corpus, folder, setup, n_rows=setup.n_rows or n_rows)
        for corpus, n_rows in rows.items()
    }


def stages(folder: Path, setup: Setup) -> dict[str, Any]:
    """Processor seconds of each stage of a shard, one stage after the other, so that each second has one owner.

    `prepare` reads and tokenizes, `encode` runs the encoder and pools, `commit` checks, writes, digests and fsyncs.
    `plain` is not a stage: the vectors' bytes go to a file as they are, which is what the system takes for them.
    """
    shape = get_model("minilm", folder)
    found = {}
    for output, corpus, n_rows in (
        ("token-last4-concat", "sentences", 3000),
        ("token-last4", "sentences", 3000),
        ("token-all", "sentences", 3000),
        ("sentence", "paragraphs", 1000),
    ):
        settings = {**OUTPUTS[output].settings(), "device": setup.device}
        rounds = []
        for _ in range(setup.n_rounds):
            with opened_job(shape, corpus, folder, setup.n_rows or n_rows, **settings) as (_, task, shards):
                rounds.append(_stages_of(task, shards))
        seconds = {
            stage: {kind: statistics.median(r[stage][kind] for r in rounds) for kind in ("cpu_s", "wall_s")}
            for stage in (*_STAGES, "plain")
        }
        total = sum(seconds[stage]["cpu_s"] for stage in _STAGES)
        shares = {f"{name}_share_of_cpu": seconds[name]["cpu_s"] / total for name in ("commit", "plain")}
        found[output] = {"corpus": corpus, **seconds, **shares}
    return found


def _stages_of(task: ShardTask, shards: Sequence[ShardSpec]) -> dict[str, dict[str, float]]:
    spent = {stage: {"cpu_s": 0.0, "wall_s": 0.0} for stage in (*_STAGES, "plain")}

    def timed(stage: str, call: Callable[..., Any], *arguments: Any) -> Any:
        cpu, start = cpu_seconds(), time.perf_counter()
        result = call(*arguments)
        spent[stage]["cpu_s"] += cpu_seconds() - cpu
        spent[stage]["wall_s"] += time.perf_counter() - start
        return result

    for shard in shards:
        prepared = timed("prepare", task.prepare, shard)
        result = timed("encode", task.encode, prepared, unreported)
        timed("commit", task.commit, shard, result)
        arrays = [vectors for table in result.result.tables.values() for vectors in table.vectors.values()]
        timed("plain", _write_plainly, arrays, Path(str(task.job.root)) / f"plain-{shard.index}")
    return spent


def _write_plainly(arrays: Sequence[np.ndarray], path: Path) -> None:
    with path.open("xb", buffering=0) as file:
        for array in arrays:
            rest = memoryview(array).cast("B")
            while rest:
                rest = rest[file.write(rest[:_WRITE_BYTES]) :]
        os.fsync(file.fileno())


def scaling(folder: Path, setup: Setup) -> dict[str, Any]:
    """Tokens per second and peak memory for a corpus and for one ten times as large, in turns, in new processes."""
    shape = get_model("minilm", folder)
    tokenizer = AutoTokenizer.from_pretrained(str(shape.folder))
    # Shards of a tenth of the small corpus, so that both corpora are much larger than what is in memory at once.
    task = make_task(shape, "token-last4-concat", folder, setup.device, setup.dtype, shard_bytes=32_000_000)
    n_rows = setup.n_rows or 390
    texts = {f"{times}x": CORPORA["paragraphs"](tokenizer, times * n_rows) for times in (1, 10)}
    corpora = {name: write_corpus(lines, folder, f"paragraphs-{name}") for name, lines in texts.items()}
    one_line = write_corpus(texts["1x"][:1], folder, "one-line")
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in corpora}
    for number in range(setup.n_rounds):
        for name, corpus in corpora.items():
            rival = Rival("bertfeat", task)
            rival.run(one_line, folder / f"warm-{name}-{number}")
            start_up = rival.run(one_line, folder / f"one-{name}-{number}")["wall_s"]
            answer = rival.run(corpus, folder / f"all-{name}-{number}")
            rival.close()
            rounds[name].append({"corpus_s": answer["wall_s"] - start_up, "peak_bytes": answer["peak_bytes"]})
    found: dict[str, Any] = {}
    for name, each in rounds.items():
        n_tokens = sum(count_tokens(tokenizer, texts[name], MAX_LENGTH))
        found[name] = {
            "n_tokens": n_tokens,
            "tokens_per_s": n_tokens / statistics.median(r["corpus_s"] for r in each),
            "peak_mib": statistics.median(r["peak_bytes"] for r in each) / 2**20,
            "rounds": each,
        }
    return found | {f"{key}_ratio": found["10x"][key] / found["1x"][key] for key in ("tokens_per_s", "peak_mib")}


CHECKS: dict[str, Callable[[Path, Setup], dict[str, Any]]] = {
    "encoder": encoder,
    "profile": profile,
    "stages": stages,
    "scaling": scaling,
}
