"""What has no rival: the encoder's share of the machine, where the processor's time goes, and scale."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.speed.ceiling import gemm_ceiling
from benchmarks.speed.corpora import CORPORA, write_corpus
from benchmarks.speed.harness import MAX_LENGTH
from benchmarks.speed.models import get_model
from benchmarks.speed.outputs import OUTPUTS
from benchmarks.speed.peers import Task
from benchmarks.speed.rivals import Rival
from bertfeat.config import ExtractConfig
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.loading import load_encoder
from bertfeat.extraction import ShardTask
from bertfeat.jobs import open_inputs, open_job
from bertfeat.progress import Silent
from bertfeat.store.writer import open_for_writing
from bertfeat.text.packing import pack_windows


def encoder_share(folder: Path, n_rounds: int, n_rows: int | None) -> dict[str, Any]:
    """Packs in, hidden states out: the rate of the encoder's matrix products beside that of the products alone."""
    shape = get_model("minilm", folder)
    found = {}
    for corpus in ("sentences", "paragraphs", "encyclopedia", "mixed"):
        job, packs = _packs(folder, corpus, n_rows or 400)
        encoder = load_encoder(open_checkpoint("minilm", None), [shape.n_layers])
        lengths = [int(n) for pack in packs for n in pack.lengths]
        flops = shape.flops(lengths)
        linear_flops = shape.flops([1] * sum(lengths))
        for pack in packs[-2:]:
            encoder.encode(pack)
        seconds, ceilings = [], []
        for _ in range(n_rounds):
            ceilings.append(gemm_ceiling(shape, job.max_batch_tokens))
            start = time.perf_counter()
            for pack in packs:
                encoder.encode(pack)
            seconds.append(time.perf_counter() - start)
        rates = [flops / s / 1e9 for s in seconds]
        found[corpus] = {
            "n_tokens": sum(lengths),
            "n_packs": len(packs),
            "padding": 1 - sum(lengths) / sum(pack.n_tokens for pack in packs),
            "tokens_per_s": sum(lengths) / statistics.median(seconds),
            "gflops": rates,
            "gemm_gflops": ceilings,
            "share_of_torch_mm": statistics.median(
                rate / c["torch.mm"] for rate, c in zip(rates, ceilings, strict=True)
            ),
            "share_of_best": statistics.median(rate / max(c.values()) for rate, c in zip(rates, ceilings, strict=True)),
            "part_of_flops_in_attention": 1 - linear_flops / flops,
        }
    return found


def _packs(folder: Path, corpus: str, n_rows: int) -> tuple[Any, list[Any]]:
    """Return the packs of a corpus, as a run makes them."""
    with _job(folder, corpus, n_rows, {"levels": "sentence", "layers": "-1"}) as (job, task, shards):
        return job, [pack for s in shards for pack in pack_windows(task.prepare(s).text.windows, job.max_batch_tokens)]


class _job:  # noqa: N801
    """An extraction that was planned and whose model is loaded, for as long as the block lasts."""

    def __init__(self, folder: Path, corpus: str, n_rows: int, settings: dict[str, Any]) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(get_model("minilm", folder).folder))
        self._output = folder / f"store-{corpus}-{len(list(folder.iterdir()))}"
        self._corpus = write_corpus(CORPORA[corpus](tokenizer, n_rows), folder, corpus)
        self._config = ExtractConfig.from_dict({"max_length": MAX_LENGTH, "device": "cpu", **settings})
        self._files = open_inputs(self._corpus, self._output, self._config)

    def __enter__(self) -> tuple[Any, ShardTask, list[Any]]:
        files = self._files.__enter__()
        job = open_job(self._config, files, self._output, Silent(), overwrite=False)
        self._writer = open_for_writing(self._output, job.plan, overwrite=False)
        writer = self._writer.__enter__()
        return job, ShardTask(job), list(writer.pending())

    def __exit__(self, *error: Any) -> None:
        self._writer.__exit__(*error)
        self._files.__exit__(*error)


def stages(folder: Path, n_rounds: int, n_rows: int | None) -> dict[str, Any]:
    """Processor seconds of each stage of a shard, one after the other, so that each second has one owner."""
    found = {}
    for name, corpus, default in (
        ("token-last4-concat", "sentences", 3000),
        ("token-last4", "sentences", 3000),
        ("word-concat4", "sentences", 3000),
        ("sentence", "paragraphs", 1000),
    ):
        rounds = []
        for _ in range(n_rounds):
            with _job(folder, corpus, n_rows or default, OUTPUTS[name].settings()) as (_, task, shards):
                rounds.append(_stages_of(task, shards))
        seconds = {
            stage: {kind: statistics.median(r[stage][kind] for r in rounds) for kind in ("cpu_s", "wall_s")}
            for stage in ("prepare", "encode", "commit")
        }
        total = sum(stage["cpu_s"] for stage in seconds.values())
        found[name] = {"corpus": corpus, **seconds, "commit_share_of_cpu": seconds["commit"]["cpu_s"] / total}
    return found


def _stages_of(task: ShardTask, shards: list[Any]) -> dict[str, dict[str, float]]:
    spent = {stage: {"cpu_s": 0.0, "wall_s": 0.0} for stage in ("prepare", "encode", "commit")}

    def timed(stage: str, call: Callable[[], Any]) -> Any:
        cpu, start = _cpu_seconds(), time.perf_counter()
        result = call()
        spent[stage]["cpu_s"] += _cpu_seconds() - cpu
        spent[stage]["wall_s"] += time.perf_counter() - start
        return result

    for shard in shards:
        prepared = timed("prepare", lambda shard=shard: task.prepare(shard))
        result = timed("encode", lambda prepared=prepared: task.encode(prepared, Silent()))
        timed("commit", lambda shard=shard, result=result: task.commit(shard, result))
    return spent


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def scaling(folder: Path, n_rounds: int, n_rows: int | None) -> dict[str, Any]:
    """Tokens a second and peak memory for a corpus and for one ten times as large, a process each."""
    from transformers import AutoTokenizer

    shape = get_model("minilm", folder)
    tokenizer = AutoTokenizer.from_pretrained(str(shape.folder))
    small = n_rows or 390
    found: dict[str, Any] = {}
    for times in (1, 10):
        texts = CORPORA["paragraphs"](tokenizer, times * small)
        corpus = write_corpus(texts, folder, f"paragraphs-{times}")
        one_line = write_corpus(texts[:1], folder, "one-line")
        task = Task(
            model=str(shape.folder),
            n_layers=shape.n_layers,
            output_name="token-last4-concat",
            scratch=str(folder),
            device="cpu",
            dtype="float32",
            max_length=MAX_LENGTH,
            n_heads=shape.n_heads,
            hidden_size=shape.hidden_size,
            settings={"shard_bytes": 32_000_000},
        )
        rounds = []
        for number in range(n_rounds):
            rival = Rival("bertfeat", task)
            start_up = rival.run(one_line, folder / f"one-{times}-{number}")["wall_s"]
            answer = rival.run(corpus, folder / f"all-{times}-{number}")
            rival.close()
            rounds.append({"corpus_s": answer["wall_s"] - start_up, "peak_bytes": answer["peak_bytes"]})
        lengths = tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]
        n_tokens = sum(map(len, lengths))
        found[f"{times}x"] = {
            "n_tokens": n_tokens,
            "tokens_per_s": n_tokens / statistics.median(r["corpus_s"] for r in rounds),
            "peak_mib": statistics.median(r["peak_bytes"] for r in rounds) / 2**20,
            "rounds": rounds,
        }
    for key in ("tokens_per_s", "peak_mib"):
        found[f"{key}_ratio"] = found["10x"][key] / found["1x"][key]
    return found


CHECKS: dict[str, Callable[[Path, int, int | None], dict[str, Any]]] = {
    "encoder": encoder_share,
    "stages": stages,
    "scaling": scaling,
}
