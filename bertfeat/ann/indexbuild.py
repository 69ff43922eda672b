"""Build of an index in a folder of its own; an interrupted build resumes.

The folder gets `transform.safetensors`, the fitted transform; `truth.safetensors`, queries and their nearest vectors;
`candidate-N`, an index: trained, its pieces or checkpoint, the whole, its tuning; `seconds.json`, the times of the
stages; and `index.faiss`, the best of the candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bertfeat.ann.budget import MemoryPlan
from bertfeat.ann.description import INDEX, TRANSFORM, IndexDescription
from bertfeat.ann.exact import checked_queries
from bertfeat.ann.filling import TRAINED, Filling, threads, trained
from bertfeat.ann.indexfolder import (
    read_arrays,
    read_index,
    read_json,
    read_transform,
    write_arrays,
    write_index,
    write_json,
)
from bertfeat.ann.transforms import Transform, fit_transform
from bertfeat.ann.tuning import HeldOut, reached, tune
from bertfeat.ann.vectorindex import VectorIndex
from bertfeat.durable import files
from bertfeat.durable.steps import step
from bertfeat.records import Float32Array
from bertfeat.vectors.array import Vectors

TRUTH = "truth.safetensors"
TUNING = "tuning.json"
SECONDS = "seconds.json"

Value = TypeVar("Value")


def build(
    source: Vectors, folder: Path, plans: list[MemoryPlan], queries: Float32Array | None = None
) -> IndexDescription:
    """Build an index of all vectors of a source, or resume its build, in a folder that is for this build alone.

    `plans` are those of `plan_build`; `queries`, float32 (n_queries, dim), raw, are 2 or more to tune by.

    Raises:
        UserError: A vector or a query holds NaN or infinity.
        RunError: The system refused a write; the same call resumes.
    """
    if queries is not None:
        queries = checked_queries(queries, source.shape[1])
    folder.mkdir(parents=True, exist_ok=True)
    with threads(plans[0].settings.threads):
        return _Builder(source, folder, plans, queries).build()


@dataclass(frozen=True, slots=True)
class _Builder:
    source: Vectors
    folder: Path
    plans: list[MemoryPlan]
    queries: Float32Array | None

    def build(self) -> IndexDescription:
        """Build one index after the other until one reaches the recall."""
        transform = self._timed("transform", self._transform)
        held = self._timed("truth", lambda: self._held(transform))
        measured: list[dict[str, Any]] = []
        for number in range(len(self.plans)):
            measured.append(self._candidate(number, transform, held))
            if held is None or measured[-1]["target_met"]:
                break
        # The first of equal ones.
        best = max(range(len(measured)), key=lambda i: reached(measured[i]))
        target = self.folder / INDEX
        with files.write_errors(target):
            files.link_exclusive(self.folder / f"candidate-{best}" / INDEX, target)
            files.sync_path(self.folder)
        step(f"{INDEX}.linked")
        summary = {name: value for name, value in measured[best].items() if name not in ("tried", "parameters")}
        n_vectors, dim = self.source.shape
        settings = self.plans[0].settings
        return IndexDescription(
            n_vectors=n_vectors,
            dim=dim,
            metric=settings.metric,
            transform=settings.transform,
            factory=self.plans[best].info.text,
            parameters=measured[best]["parameters"],
            settings=settings,
            measured={**summary, "candidates": measured},
            seconds=self._seconds(),
        )

    def _transform(self) -> Transform | None:
        if (saved := read_transform(self.folder)) is not None:
            return saved
        transform = fit_transform(self.source, self.plans[0].settings.transform_spec)
        if transform is not None:
            write_arrays(self.folder / TRANSFORM, transform.to_arrays())
        return transform

    def _held(self, transform: Transform | None) -> HeldOut | None:
        """Return queries with their nearest vectors; None for a single vector, which has no others."""
        if self.source.shape[0] < 2:
            return None
        if (arrays := read_arrays(self.folder / TRUTH)) is not None:
            return HeldOut(**arrays)
        held = HeldOut.drawn(self.source, self.plans[0], transform, self.queries)
        write_arrays(self.folder / TRUTH, held._asdict())
        return held

    def _candidate(self, number: int, transform: Transform | None, held: HeldOut | None) -> dict[str, Any]:
        """Build an index, unless that is done, and return its measurements."""
        plan, folder = self.plans[number], self.folder / f"candidate-{number}"
        name = plan.info.text
        folder.mkdir(exist_ok=True)

        def train() -> None:
            if not (folder / TRAINED).exists():
                write_index(folder / TRAINED, trained(plan, self.source, transform))

        def fill() -> None:
            write_index(folder / INDEX, Filling(plan, self.source, transform, folder).filled())

        def measure() -> dict[str, Any]:
            if held is None:
                return {"recall_at_10": None, "target_met": None, "parameters": {}}
            index = VectorIndex(read_index(folder / INDEX), plan.info.metric, transform)
            return tune(index, held, self.source, plan.settings.recall)

        if not (folder / INDEX).exists():
            self._timed(f"training {name}", train)
            self._timed(f"adding {name}", fill)
        for path in folder.iterdir():
            if path.name not in (INDEX, TUNING):
                path.unlink()
        if (values := read_json(folder / TUNING, dict[str, Any])) is None:
            bytes_each = round((folder / INDEX).stat().st_size / plan.shape.n_vectors, 2)
            values = {"factory": name, "bytes_per_vector": bytes_each, **self._timed(f"tuning {name}", measure)}
            write_json(folder / TUNING, values)
        return values

    def _seconds(self) -> dict[str, float]:
        return read_json(self.folder / SECONDS, dict[str, float]) or {}

    def _timed(self, name: str, stage: Callable[[], Value]) -> Value:
        """Do a stage and keep its seconds."""
        started = time.perf_counter()
        value = stage()
        seconds = self._seconds()
        # In a resumed build a finished stage is only read: its seconds are those of the earlier run.
        if name not in seconds:
            seconds[name] = round(time.perf_counter() - started, 3)
            write_json(self.folder / SECONDS, seconds)
        return value
