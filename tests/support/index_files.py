"""Small real index folders, built with faiss directly, for the tests of what reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bertfeat.ann import folder as ann_folder
from bertfeat.ann.description import INDEX, ROWS, TRANSFORM, BuildSettings, IndexDescription
from bertfeat.ann.index import VectorIndex, load_index
from bertfeat.ann.library import faiss
from bertfeat.ann.transforms import TransformSpec, fit_transform, prepare
from bertfeat.vectors.array import ArrayVectors
from bertfeat.vectors.nearest import Metric

# Tiny indexes are slower on several threads.
faiss.omp_set_num_threads(1)

DIM = 16
N_VECTORS = 400


def beside(final: Path) -> Path:
    """Return a hidden folder next to an index."""
    return final.with_name(f".{final.name}.building")


def vectors(n: int = N_VECTORS, seed: int = 0) -> np.ndarray:
    """Return vectors around a few centres, so that an inverted file has something to find."""
    chance = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((8, DIM))
    return (centres[chance.integers(0, 8, n)] + chance.standard_normal((n, DIM)) / 2).astype(np.float32)


def make_faiss(prepared: np.ndarray, factory: str, metric: Metric) -> Any:
    """Return a trained and filled faiss index over prepared vectors."""
    index = faiss.index_factory(prepared.shape[1], factory, faiss.METRIC_L2 if metric == "l2" else 0)
    if hasattr(index, "cp"):
        index.cp.min_points_per_centroid = 1
    index.train(prepared)
    index.add(prepared)
    return index


def loaded(folder: Path) -> VectorIndex:
    """Open the index of a folder."""
    return load_index(folder, ann_folder.read_description(folder))


def write_parts(
    building: Path,
    *,
    factory: str = "Flat",
    metric: str = "cosine",
    transform: str = "none",
    data: np.ndarray | None = None,
    parameters: dict[str, Any] | None = None,
) -> IndexDescription:
    """Write the files of an index but its description, which is returned."""
    raw = vectors() if data is None else data
    spec = TransformSpec.parse(transform)
    fitted = fit_transform(ArrayVectors(raw), spec)
    building.mkdir(parents=True)
    if fitted is not None:
        ann_folder.write_arrays(building / TRANSFORM, fitted.to_arrays())
    faiss.write_index(make_faiss(prepare(raw, fitted, Metric(metric)), factory, Metric(metric)), str(building / INDEX))
    # No test here reads it; it only differs for other vectors.
    (building / ROWS).write_bytes(b"PAR1" + raw.tobytes()[:100])
    settings = BuildSettings(factory=factory)
    return IndexDescription(
        len(raw), raw.shape[1], Metric(metric), transform, factory, parameters or {}, settings, {"store": "s"}
    )


def write_index(final: Path, **settings: Any) -> IndexDescription:
    """Write and publish an index."""
    building = beside(final)
    ann_folder.publish(building, final, write_parts(building, **settings))
    return ann_folder.read_description(final)
