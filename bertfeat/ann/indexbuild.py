"""Build of an index in a folder; an interrupted build resumes.

The folder holds `plan.json`, what is built from what (another build is refused); `transform.safetensors`, the fitted
transform; `queries.safetensors`, queries and their nearest vectors; `candidate-N`, an unfinished index: trained, its
pieces or checkpoint, the whole, its tuning; `index.faiss`, the index; and `result.json`, written last.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bertfeat.ann import indexfiles
from bertfeat.ann.budget import MemoryPlan, Shape, candidates
from bertfeat.ann.buildsettings import AUTO, BuildSettings
from bertfeat.ann.exact import checked_queries
from bertfeat.ann.filling import TRAINED, Filling
from bertfeat.ann.indextraining import threads, trained
from bertfeat.ann.transforms import Transform, fit_transform
from bertfeat.ann.tuning import HeldOut, reached, tune
from bertfeat.ann.vectorindex import VectorIndex
from bertfeat.durable import files
from bertfeat.durable.differences import differing, named
from bertfeat.durable.records import to_values
from bertfeat.durable.steps import step
from bertfeat.errors import RunError, UserError
from bertfeat.records import Float32Array
from bertfeat.vectors.array import Vectors

INDEX = "index.faiss"
TRANSFORM = "transform.safetensors"
PLAN = "plan.json"
QUERIES = "queries.safetensors"
RESULT = "result.json"
TUNING = "tuning.json"
SECONDS = "seconds.json"

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, eq=False)
class BuildResult:
    """A finished index.

    Attributes:
        path: The faiss index.
        factory: Its factory string.
        n_vectors: The number of vectors.
        dim: The width of the raw vectors.
        transform: The fitted transform.
        parameters: The search parameters that were found.
        measured: JSON values: those of `tune`, `bytes_per_vector`, and `candidates`: those of each index that was
            built.
        seconds: The seconds of each stage.
    """

    path: Path
    factory: str
    n_vectors: int
    dim: int
    transform: Transform | None
    parameters: dict[str, float]
    measured: dict[str, Any]
    seconds: dict[str, float]


def plan_build(n_vectors: int, dim: int, settings: BuildSettings, n_given: int = 0) -> list[MemoryPlan]:
    """Return the indexes to build, in turn, until one reaches the recall; nothing is read or written.

    `n_given` is the number of queries that are given to tune by.

    Raises:
        UserError: There are no vectors; the factory string is wrong; it or the transform needs more vectors; or the
            memory is too small. The message says what to use instead.
    """
    if n_vectors < 1:
        raise UserError("there are no vectors to index; choose a store, level and feature that has some")
    settings.transform_spec.check(dim, n_vectors)
    return candidates(Shape(n_vectors, dim, n_given), settings)


def build(
    source: Vectors,
    workdir: Path,
    settings: BuildSettings,
    *,
    source_id: str = "",
    queries: Float32Array | None = None,
) -> BuildResult:
    """Build an index of all vectors of a source, or resume its build.

    Args:
        source: The vectors.
        workdir: A folder for this build, made if missing; the finished index is there too.
        settings: How to build.
        source_id: An identifier of the source and the queries: a build resumes only with the same.
        queries: float32 (n_queries, dim), raw: 2 or more queries to tune by; None to tune by vectors of the source.

    Raises:
        UserError: See `plan_build`; or the folder holds another build; or a vector or a query holds NaN or infinity.
        RunError: The system refused a write; the same call resumes.
    """
    if queries is not None:
        queries = checked_queries(queries, source.shape[1])
    plans = plan_build(*source.shape, settings, 0 if queries is None else len(queries))
    _open(workdir, plans, settings, source_id)
    builder = _Builder(source, workdir, settings, queries)
    with threads(settings.threads):
        return builder.result() or builder.build(plans)


def _open(workdir: Path, plans: list[MemoryPlan], settings: BuildSettings, source_id: str) -> None:
    """Make the folder and write what is built in it, or check that it is the same build."""
    shape = plans[0].shape
    asked = {name: value for name, value in to_values(settings).items() if name != "n_threads"}
    plan = {**asked, "source": source_id, "vectors": shape.n_vectors, "dimensions": shape.dim}
    if settings.index == AUTO:
        # What is chosen may change with the version.
        plan["candidates"] = [each.info.text for each in plans]
    workdir.mkdir(parents=True, exist_ok=True)
    there = indexfiles.read_json(workdir / PLAN)
    if there is None:
        indexfiles.write_json(workdir / PLAN, plan)
        return
    if fields := differing(there, plan):
        if fields.keys() == {"candidates"}:
            text = f"{workdir}: was begun by another version ({named(fields)})"
            raise UserError(f"{text}; use that one, or remove the folder")
        text = f"{workdir}: holds an unfinished index with other settings ({named(fields)})"
        raise UserError(f"{text}; use the same settings, or remove the folder")


@dataclass(frozen=True, slots=True)
class _Builder:
    source: Vectors
    workdir: Path
    settings: BuildSettings
    queries: Float32Array | None

    def build(self, plans: list[MemoryPlan]) -> BuildResult:
        """Build one index after the other until one reaches the recall."""
        transform = self._timed("transform", self._transform)
        held = self._timed("truth", lambda: self._held(plans[0], transform))
        measured: list[dict[str, Any]] = []
        for number, plan in enumerate(plans):
            measured.append(self._candidate(number, plan, transform, held))
            if held is None or measured[-1]["target_met"]:
                break
        # The first of equal ones.
        best = max(range(len(measured)), key=lambda i: reached(measured[i]))
        return self._finish(best, plans[best], measured)

    def result(self) -> BuildResult | None:
        """Return what this run or an earlier one has finished; None if nothing is finished."""
        values, path = indexfiles.read_json(self.workdir / RESULT), self.workdir / INDEX
        if values is None or not path.exists():
            return None
        for folder in self.workdir.glob("candidate-*"):
            shutil.rmtree(folder)
        return BuildResult(path=path, transform=self._saved_transform(), **values)

    def _saved_transform(self) -> Transform | None:
        arrays = indexfiles.read_arrays(self.workdir / TRANSFORM)
        return None if arrays is None else Transform.from_arrays(arrays)

    def _transform(self) -> Transform | None:
        if (saved := self._saved_transform()) is not None:
            return saved
        transform = fit_transform(self.source, self.settings.transform_spec)
        if transform is not None:
            indexfiles.write_arrays(self.workdir / TRANSFORM, transform.to_arrays())
        return transform

    def _held(self, plan: MemoryPlan, transform: Transform | None) -> HeldOut | None:
        """Return queries with their nearest vectors; None for a single vector, which has no others."""
        if self.source.shape[0] < 2:
            return None
        path = self.workdir / QUERIES
        if (arrays := indexfiles.read_arrays(path)) is not None:
            return HeldOut(**arrays)
        held = HeldOut.of(self.source, transform, self.settings, plan.exact_bytes, self.queries)
        indexfiles.write_arrays(path, held._asdict())
        return held

    def _candidate(
        self, number: int, plan: MemoryPlan, transform: Transform | None, held: HeldOut | None
    ) -> dict[str, Any]:
        """Build an index, unless that is done, and return its measurements."""
        folder, name = self.workdir / f"candidate-{number}", plan.info.text
        folder.mkdir(exist_ok=True)

        def train() -> None:
            if not (folder / TRAINED).exists():
                indexfiles.write_index(folder / TRAINED, trained(plan, self.source, transform))

        def fill() -> None:
            indexfiles.write_index(folder / INDEX, Filling(plan, self.source, transform, folder).filled())

        if not (folder / INDEX).exists():
            self._timed(f"training {name}", train)
            self._timed(f"adding {name}", fill)
        for path in folder.iterdir():
            if path.name not in (INDEX, TUNING):
                path.unlink()
        if (there := indexfiles.read_json(folder / TUNING)) is not None:
            return dict(there)
        values = self._timed(f"tuning {name}", lambda: self._measure(folder / INDEX, plan, transform, held))
        indexfiles.write_json(folder / TUNING, values)
        return values

    def _measure(
        self, path: Path, plan: MemoryPlan, transform: Transform | None, held: HeldOut | None
    ) -> dict[str, Any]:
        bytes_each = round(path.stat().st_size / plan.shape.n_vectors, 2)
        values: dict[str, Any] = {"factory": plan.info.text, "bytes_per_vector": bytes_each}
        if held is None:
            return {**values, "recall_at_10": None, "target_met": None, "parameters": {}}
        index = VectorIndex(indexfiles.read_index(path), plan.info.metric, transform)
        return {**values, **tune(index, held, self.source, self.settings.recall)}

    def _finish(self, best: int, plan: MemoryPlan, measured: list[dict[str, Any]]) -> BuildResult:
        seconds = indexfiles.read_json(self.workdir / SECONDS) or {}
        summary = {name: value for name, value in measured[best].items() if name not in ("tried", "parameters")}
        values = {
            "factory": plan.info.text,
            "n_vectors": plan.shape.n_vectors,
            "dim": plan.shape.dim,
            "parameters": measured[best]["parameters"],
            "measured": {**summary, "candidates": measured},
            "seconds": seconds,
        }
        target = self.workdir / INDEX
        with files.write_errors(target):
            target.unlink(missing_ok=True)
            files.link_exclusive(self.workdir / f"candidate-{best}" / INDEX, target)
            files.sync_path(self.workdir)
        step(f"{INDEX}.linked")
        indexfiles.write_json(self.workdir / RESULT, values)
        result = self.result()
        if result is None:
            raise RunError(f"{target}: the finished index is gone; build it again")
        return result

    def _timed(self, name: str, stage: Callable[[], Value]) -> Value:
        """Do a stage and keep its seconds."""
        started = time.perf_counter()
        value = stage()
        seconds = indexfiles.read_json(self.workdir / SECONDS) or {}
        # In a resumed build a finished stage is only read: its seconds are those of the earlier run.
        if name not in seconds:
            seconds[name] = round(time.perf_counter() - started, 3)
            indexfiles.write_json(self.workdir / SECONDS, seconds)
        return value
