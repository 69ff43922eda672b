"""Rivals in turns: A B C A B C ..., each in its own process with its model loaded, all from the same files.

The corpus is timed from reading its text to files that are on disk. Loading a model is left out for all alike:
peers load theirs once, before. `bertfeat.extract` opens and checks its model in every call, so in every round it also
extracts a corpus of one line, and that time is subtracted. `ratio_with_loading` is the ratio with both left in.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.speed.ceiling import gemm_ceiling
from benchmarks.speed.corpora import CORPORA, count_tokens, padded_share, write_corpus
from benchmarks.speed.equality import assert_same_arrays, assert_same_files
from benchmarks.speed.models import Shape, get_model
from benchmarks.speed.outputs import OUTPUTS
from benchmarks.speed.peers import Task
from benchmarks.speed.rivals import MissingRival, Rival
from benchmarks.speed.workloads import OURS, Entry, Workload

MAX_LENGTH = 512


@dataclass(frozen=True)
class Setup:
    """How workloads are run.

    Rivals warm up, and try their batch sizes, on a part of the corpus of `n_warm_tokens`. `only` names the rivals to
    run beside bertfeat; empty is all.
    """

    n_rounds: int = 3
    n_rows: int | None = None
    sweep: bool = True
    only: Sequence[str] = ()
    device: str = "cpu"
    dtype: str = "float32"
    n_warm_tokens: int = 4096
    pack_tokens: int = 2048


@dataclass
class Measured:
    """The measurements of one rival, one number per round."""

    label: str
    rival: Rival
    entry: Entry
    corpus: Path
    n_tokens: int
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    start_up_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    sweep: dict[str, float] = field(default_factory=dict)
    # How near its vectors are to bertfeat's: `largest_difference`, or `cosine_least` and `cosine_mean`.
    likeness: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def corpus_s(self) -> list[float]:
        """Seconds per round for the corpus, without loading."""
        start_up = self.start_up_s or [0.0] * len(self.wall_s)
        return [wall - start for wall, start in zip(self.wall_s, start_up, strict=True)]

    @property
    def whole_s(self) -> list[float]:
        """Seconds per round, with loading."""
        return list(self.wall_s) if self.start_up_s else [self.rival.load_s + wall for wall in self.wall_s]


def run_workload(workload: Workload, folder: Path, setup: Setup) -> dict[str, Any]:
    """Run one workload and return its result as JSON values.

    Raises:
        AssertionError: A rival's vectors are not bertfeat's.
        MissingRival: bertfeat itself cannot run.
    """
    shape = get_model(workload.model, folder)
    tokenizer = AutoTokenizer.from_pretrained(str(shape.folder))
    corpora = _Corpora(tokenizer, folder, setup.n_rows or workload.n_rows)
    missing: dict[str, str] = {}
    gemm = []
    with contextlib.ExitStack() as stack:
        rivals = list(_open_rivals(workload, shape, folder, corpora, setup, missing, stack))
        ours = rivals[0]
        for measured in rivals:
            _warm_up(measured, workload, folder, corpora, setup)
        for number in range(setup.n_rounds):
            dtype = getattr(torch, setup.dtype)
            gemm.append(gemm_ceiling(shape, setup.pack_tokens, device=setup.device, dtype=dtype))
            for measured in rivals:
                _run_once(measured, workload, folder, corpora)
            if number == 0:
                _assert_equal(workload, rivals, folder, shape.n_layers, setup)
    lengths = corpora.lengths(workload.corpus)
    return {
        "title": workload.title,
        "corpus": workload.corpus,
        "output": workload.output,
        "model": workload.model,
        "in_memory": workload.in_memory,
        "device": setup.device,
        "dtype": setup.dtype,
        "n_rows": len(lengths),
        "n_tokens": sum(lengths),
        "flops": shape.flops(lengths, max(OUTPUTS[workload.output].absolute(shape.n_layers))),
        "padding_in_corpus_order": padded_share(lengths, 32),
        "padding_sorted": padded_share(sorted(lengths), 32),
        "gemm_gflops": gemm,
        "rivals": {measured.label: _result(measured, ours) for measured in rivals},
        "missing": missing,
    }


class _Corpora:
    """Writer of corpora on their first use."""

    def __init__(self, tokenizer: Any, folder: Path, n_rows: int) -> None:
        self._tokenizer = tokenizer
        self._folder = folder
        self._n_rows = n_rows
        self._made: dict[str, tuple[Path, list[int]]] = {}

    def path(self, name: str) -> Path:
        return self._get(name, self._n_rows)[0]

    def lengths(self, name: str) -> list[int]:
        return self._get(name, self._n_rows)[1]

    def small(self, name: str, n_rows: int) -> Path:
        """Return a small corpus: rows from all over it."""
        key = f"{name}-{n_rows}"
        if key not in self._made:
            texts = CORPORA[name](self._tokenizer, self._n_rows)
            step = max(1, len(texts) // n_rows)
            self._made[key] = write_corpus(texts[::step][:n_rows], self._folder, key), []
        return self._made[key][0]

    def _get(self, name: str, n_rows: int) -> tuple[Path, list[int]]:
        if name not in self._made:
            texts = CORPORA[name](self._tokenizer, n_rows)
            lengths = count_tokens(self._tokenizer, texts, MAX_LENGTH)
            self._made[name] = write_corpus(texts, self._folder, name), lengths
        return self._made[name]


def _open_rivals(
    workload: Workload,
    shape: Shape,
    folder: Path,
    corpora: _Corpora,
    setup: Setup,
    missing: dict[str, str],
    stack: contextlib.ExitStack,
) -> Iterator[Measured]:
    chosen = {OURS: Entry(OURS), **workload.rivals}
    for label, entry in chosen.items():
        if setup.only and label not in (OURS, *setup.only):
            continue
        corpus = entry.corpus or workload.corpus
        own = {} if entry.peer == OURS else {"corpus": str(corpora.path(corpus))}
        dtype = entry.dtype or setup.dtype
        task = make_task(shape, entry.output or workload.output, folder, setup.device, dtype, **own)
        try:
            rival = Rival(entry.peer, task)
        except MissingRival as error:
            if label == OURS:
                raise
            missing[label] = str(error)
            print(f"  missing: {error}", file=sys.stderr)
            continue
        stack.callback(rival.close)
        yield Measured(label, rival, entry, corpora.path(corpus), sum(corpora.lengths(corpus)))


def make_task(
    shape: Shape, output: str, folder: Path, device: str = "cpu", dtype: str = "float32", **settings: Any
) -> Task:
    """Describe the task of a rival with a model."""
    return Task(
        model=str(shape.folder),
        n_layers=shape.n_layers,
        output_name=output,
        scratch=str(folder),
        device=device,
        dtype=dtype,
        max_length=MAX_LENGTH,
        n_heads=shape.n_heads,
        hidden_size=shape.hidden_size,
        settings=settings,
    )


def _output(folder: Path, label: str) -> Path:
    return folder / f"out-{label.replace(' ', '-').replace(',', '')}"


def _timed(measured: Measured, workload: Workload, folder: Path, corpus: Path, **settings: Any) -> dict[str, Any]:
    """Run into a fresh output."""
    output = _output(folder, measured.label)
    if output.is_dir():
        shutil.rmtree(output)
    output.unlink(missing_ok=True)
    return measured.rival.run(corpus, output, in_memory=workload.in_memory, **settings)


def _warm_up(measured: Measured, workload: Workload, folder: Path, corpora: _Corpora, setup: Setup) -> None:
    """Run a small part, and find the best batch size on it."""
    rival = measured.rival
    name = measured.entry.corpus or workload.corpus
    lengths = corpora.lengths(name)
    corpus = corpora.small(name, math.ceil(len(lengths) * min(1, setup.n_warm_tokens / sum(lengths))))
    _timed(measured, workload, folder, corpus)
    if setup.sweep and len(rival.batches) > 1:
        for batch in rival.batches:
            measured.sweep[str(batch)] = _timed(measured, workload, folder, corpus, batch=batch)["wall_s"]
        rival.batch = int(min(measured.sweep, key=lambda batch: measured.sweep[batch]))


def _run_once(measured: Measured, workload: Workload, folder: Path, corpora: _Corpora) -> None:
    if measured.entry.peer == OURS and not workload.in_memory:
        one_line = corpora.small(measured.entry.corpus or workload.corpus, 1)
        measured.start_up_s.append(_timed(measured, workload, folder, one_line)["wall_s"])
    answer = _timed(measured, workload, folder, measured.corpus)
    measured.wall_s.append(answer.pop("wall_s"))
    measured.cpu_s.append(answer.pop("cpu_s"))
    measured.peak_bytes = answer.pop("peak_bytes")
    measured.extra = answer
    print(f"  {measured.label:<28} {measured.wall_s[-1]:7.2f} s", file=sys.stderr)


def _assert_equal(workload: Workload, rivals: Sequence[Measured], folder: Path, n_layers: int, setup: Setup) -> None:
    ours = _output(folder, rivals[0].label)
    for measured in rivals[1:]:
        if measured.entry.corpus or measured.entry.output:
            continue
        theirs = _output(folder, measured.label)
        if workload.in_memory:
            measured.likeness = assert_same_arrays(ours, theirs)
        else:
            dtype = measured.entry.dtype or setup.dtype
            measured.likeness = assert_same_files(ours, theirs, OUTPUTS[workload.output], n_layers, dtype=dtype)


def _result(measured: Measured, ours: Measured) -> dict[str, Any]:
    result: dict[str, Any] = {
        "tokens_per_s": measured.n_tokens / statistics.median(measured.corpus_s),
        "n_tokens": measured.n_tokens,
        "batch": measured.rival.batch,
        "sweep_s": measured.sweep,
        "load_s": measured.rival.load_s,
        "wall_s": measured.wall_s,
        "cpu_s": measured.cpu_s,
        "start_up_s": measured.start_up_s,
        "peak_bytes": measured.peak_bytes,
        "versions": measured.rival.versions,
        **measured.extra,
        **measured.likeness,
    }
    if measured is not ours:
        result["ratio"] = _ratio(ours, measured, ours.corpus_s, measured.corpus_s)
        result["ratio_with_loading"] = _ratio(ours, measured, ours.whole_s, measured.whole_s)
    return result


def _ratio(ours: Measured, theirs: Measured, our_s: Sequence[float], their_s: Sequence[float]) -> float:
    """Return the median over the rounds of the ratio of bertfeat's tokens per second to a rival's."""
    tokens = ours.n_tokens / theirs.n_tokens
    return statistics.median(tokens * b / a for a, b in zip(our_s, their_s, strict=True))
