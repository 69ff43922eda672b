"""Update of an index with the new rows of its store."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np

from bertfeat.ann.budget import CHUNK_BYTES, MemoryPlan, Shape, check_growth, plan_memory
from bertfeat.ann.build import extend, threads
from bertfeat.ann.description import INDEX, QUERIES, TRANSFORM, IndexDescription
from bertfeat.ann.folder import check_files, read_description, read_given, read_index, read_transform, write_index
from bertfeat.ann.index import VectorIndex
from bertfeat.ann.tuning import HeldOut, tune
from bertfeat.errors import UserError
from bertfeat.progress import Progress, reporting
from bertfeat.search.build import RowsDigest, fresh_ready, publish_index, workplace
from bertfeat.search.index import Index, open_index
from bertfeat.search.origin import Origin
from bertfeat.search.reranking import write_tokens
from bertfeat.storage import local_path
from bertfeat.store.reader import Store, as_store
from bertfeat.vectors.store import StoreVectors


def update_index(index: str | Path, store: str | Path | Store, *, progress: bool | Progress | None = None) -> Index:
    """Add the new rows of a grown store to its index; see `Index.update`."""
    path = local_path(index, "an index")
    opened = as_store(store)
    with reporting(progress) as reports, workplace(path) as folder:
        there = read_description(path)
        origin = Origin.at(there)
        spec = origin.spec.find_in(opened, mine=f"index {path}")
        if opened.manifest.plan_hash == origin.plan_hash and opened.n_rows(spec.level) == origin.n_rows:
            return open_index(path, store=opened)
        source = StoreVectors(opened, spec.level, spec.feature, chunk_bytes=CHUNK_BYTES, progress=reports)
        digest = _check_grown(source, there, origin, path, reports)
        n_given = 0 if origin.tuned_by is None else origin.tuned_by.n_queries
        plan = plan_memory(there.factory, Shape(*source.shape, n_given), there.settings)
        check_growth(plan)
        check_files(path, there)
        ready = fresh_ready(folder)
        origin = write_tokens(ready, opened, origin, source.rows, reports, old=path)
        with threads(there.settings.threads):
            grown = _grow(source, there, plan, path, ready / INDEX, reports)
        kept = {"query_prompt": origin.query_prompt, "tuned_by": origin.tuned_by, "rerank": origin.rerank}
        made = Origin.of(opened, spec, path, rows_digest=digest, **kept)
        publish_index(ready, path, [path / TRANSFORM, path / QUERIES], source, grown, made, overwrite=True)
    updated = open_index(path, store=opened)
    updated.n_added = len(source.rows) - there.n_vectors
    return updated


def _check_grown(source: StoreVectors, there: IndexDescription, origin: Origin, path: Path, progress: Progress) -> str:
    """Refuse a store whose first rows are not those of the index; return the digest of all its rows."""
    name, n_vectors = source.store.path, len(source.rows)
    if n_vectors < there.n_vectors:
        raise UserError(f"{name}: has {n_vectors} vectors, fewer than the {there.n_vectors} of {path}; build it again")
    progress.stage("comparing rows")
    digest = RowsDigest()
    first, new = (
        StoreVectors(source.store, source.level, source.feature, rows=rows, chunk_bytes=CHUNK_BYTES, progress=progress)
        for rows in np.split(source.rows, [there.n_vectors])
    )
    if digest.add(first) != origin.rows_digest:
        raise UserError(
            f"{name}: its first {there.n_vectors} rows are not those of {path}, and new rows can only be added after "
            "them; build the index again"
        )
    return digest.add(new)


def _grow(
    source: StoreVectors, there: IndexDescription, plan: MemoryPlan, path: Path, target: Path, progress: Progress
) -> IndexDescription:
    """Write the grown index, tuned and measured again, to a file; return its description."""
    grown = VectorIndex(read_index(path / INDEX), there.metric, read_transform(path), there.parameters)
    started = time.perf_counter()
    extend(grown, source, there.n_vectors, plan.n_chunk_rows)
    added = time.perf_counter()
    held = HeldOut.drawn(source, plan, grown.transform, read_given(path))
    measured = tune(grown, held, source, plan.settings.recall)
    tuned = time.perf_counter()
    parameters = measured.pop("parameters")
    measured.pop("tried")
    progress.stage("writing the index")
    write_index(target, grown.index)
    n_bytes = target.stat().st_size
    return dataclasses.replace(
        there,
        n_vectors=len(source.rows),
        parameters=parameters,
        measured={
            "factory": there.factory,
            "bytes_per_vector": round(n_bytes / len(source.rows), 2),
            **measured,
            "n_vectors_trained_on": there.measured.get("n_vectors_trained_on", there.n_vectors),
        },
        seconds={**there.seconds, "updating": round(added - started, 3), "tuning again": round(tuned - added, 3)},
    )
