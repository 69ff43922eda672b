"""A writer for each kind of output of bertfeat, for the kill drill, and the process that the drill kills.

A writer fills a folder from a folder of inputs, with old or new content; a second call finishes an interrupted one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.backends.backend_agg
import matplotlib.backends.backend_svg  # noqa: F401
import numpy as np
import pandas  # noqa: F401  # pyarrow loads it where it is installed
import polars as pl
import pyarrow.compute  # noqa: F401
import pytest

import bertfeat
from bertfeat.ann.budget import plan_build
from bertfeat.ann.build import build
from bertfeat.ann.description import BuildSettings
from bertfeat.ann.library import faiss
from bertfeat.choices import Level
from bertfeat.durable.publication import publish_file, standing
from bertfeat.exports.frame_files import frame_writer
from bertfeat.heads.folder import save_probe
from bertfeat.heads.linear import RidgeProbe
from bertfeat.layers import result as layers_result
from bertfeat.layers.result import LayerComparison, LayerRow
from bertfeat.plots.charts import new_figure
from bertfeat.plots.tables import write_csv, write_report
from bertfeat.probes.predictions import write_frames
from bertfeat.probes.sweep import Sweep, SweepRow
from bertfeat.search.build import build_index
from bertfeat.search.update import update_index
from bertfeat.vectors.array import ArrayVectors
from tests.support.index_stores import known_store
from tests.support.runner_fakes import die_at
from tests.support.search_vectors import mixture
from tests.support.store_fakes import make_plan, write_store

PLAN = make_plan((3, 2), levels=(Level.TOKEN, Level.SENTENCE), combine="none")
# Folders of which a reader sees all files or none, and their file with times.
FOLDERS = {"index": "index.json", "probe": None, "sweep": None, "layers": None, "arrays": None}


def make_inputs(folder: Path) -> Path:
    """Write the stores that writers read."""
    vectors = mixture(40, 2).tolist()
    known_store(folder / "store", vectors[:30])
    known_store(folder / "grown", vectors)
    return folder


def _store(root: Path, inputs: Path, new: bool) -> None:
    write_store(root / "store", PLAN, n_bad=1)


def _index(root: Path, inputs: Path, new: bool) -> None:
    settings: dict[str, Any] = {"transform": "center", "factory": "SQ8"} if new else {}
    build_index(inputs / "store", root / "index", **settings, threads=1, overwrite=True).close()


def _updated(root: Path, inputs: Path, new: bool) -> None:
    if new:
        update_index(root / "index", inputs / "grown").close()
    else:
        build_index(inputs / "store", root / "index", threads=1).close()


def _build(root: Path, inputs: Path, new: bool) -> None:
    """Build an index with two checkpoints."""
    settings = BuildSettings(factory="HNSW8", n_threads=1, n_piece_rows=400, n_queries=60)
    source = ArrayVectors(mixture(1100, 16), chunk_rows=170)
    build(source, root / "work", plan_build(*source.shape, settings))


def _probe(root: Path, inputs: Path, new: bool) -> None:
    probe = RidgeProbe().fit(np.eye(4, dtype=np.float32), ["a", "a", "b", "b"])
    save_probe(probe, root / "probe", {"new": new}, overwrite=True)


SWEEP: dict[str, Any] = {
    **dict.fromkeys(("store", "plan_hash", "model", "label", "bertfeat"), "x"),
    **dict.fromkeys(("n_train", "n_dev", "n_classes"), 4),
    **dict.fromkeys(("dev", "held_out", "limit")),
    "level": Level.SENTENCE,
    "head": "ridge",
    "params": {},
    "metric": "accuracy",
    "seeds": (),
    "seed": 0,
}


def _sweep(root: Path, inputs: Path, new: bool) -> None:
    score = 0.25 + new / 2
    row = SweepRow("layer_03", (3,), 8, "accuracy", score, None, None, None, 0.1, (score,))
    sweep = Sweep(**SWEEP, rows=(row,))
    with pytest.MonkeyPatch.context() as patch:
        # A whole plot takes a second to draw.
        patch.setattr(Sweep, "plot", lambda _: SimpleNamespace(figure=new_figure(1 + new, 1)))
        sweep.write(root / "sweep", overwrite=True)


def _layers(root: Path, inputs: Path, new: bool) -> None:
    values: dict[str, Any] = dict.fromkeys(LayerRow.__slots__, 0.25 + new / 2)
    row = LayerRow(**values | {"side": "store", "feature": "layer_03", "dim": 8, "top3_dimensions": ()})
    facts: dict[str, Any] = dict.fromkeys(("other", "other_model", "min_count"))
    facts |= dict.fromkeys(("store", "model", "level", "bertfeat"), "word")
    facts |= dict.fromkeys(("n_rows", "n_documents", "n_types", "n_neighbors", "n_sample", "seed"), 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers_result, "plot_panels", lambda _, path: write_report(path, bytes([new])))
        patch.setattr(layers_result, "layer_page", lambda content, *_: json.dumps(content))
        matrices = {"cka": ((1.0,),), "cka_debiased": ((1.0,),), "neighbor_overlap": ((None,),)}
        found = LayerComparison(rows=(row,), moved={}, **facts, **matrices)
        found.write(root / "layers", overwrite=True)


def _predictions(root: Path, inputs: Path, new: bool) -> None:
    frames = [pl.DataFrame({"prediction": ["a", None], "n": [n, int(new)]}) for n in range(3)]
    write_frames(iter(frames), root / "o.parquet")


def _hits(root: Path, inputs: Path, new: bool) -> None:
    for name in ("hits.parquet", "hits.csv"):
        with publish_file(root / name) as sink, frame_writer(root / name, sink) as write:
            for n in range(3):
                write(pl.DataFrame({"n": [n, int(new)]}))


def _reports(root: Path, inputs: Path, new: bool) -> None:
    write_csv(root / "t.csv", ["new"], [[new]])
    write_report(root / "plot.png", bytes([new] * 1000))


def _exports(root: Path, inputs: Path, new: bool) -> None:
    store = inputs / ("grown" if new else "store")
    bertfeat.export(store, root / "vectors.txt", to="word2vec", overwrite=True)
    bertfeat.export(store, root / "arrays", to="npy", overwrite=True)


WRITERS: dict[str, Callable[[Path, Path, bool], None]] = {
    "store": _store,
    "index": _index,
    "updated index": _updated,
    "build": _build,
    "probe": _probe,
    "sweep": _sweep,
    "layers": _layers,
    "predictions": _predictions,
    "hits": _hits,
    "reports": _reports,
    "exports": _exports,
}


def pieces(root: Path) -> dict[str, Any]:
    """Return what a reader sees: files, and the contents of folders that are published as a whole."""
    found: dict[str, Any] = {}
    for name, timed in FOLDERS.items():
        if (folder := standing(root / name)).is_dir():
            found[name] = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != timed}
    for path in root.rglob("*"):
        name, parts = path.relative_to(root).as_posix(), set(path.relative_to(root).parts)
        is_hidden = any(part.startswith(".") for part in parts)
        if path.is_file() and not is_hidden and not parts & {*FOLDERS, "tmp", "lock"}:
            # Receipts hold times.
            if "_bertfeat" in parts and path.stem.isdigit():
                continue
            found[name] = path.read_bytes()
    # Only the finished index of a build counts.
    return {name: data for name, data in found.items() if not name.startswith("work/") or name == "work/index.faiss"}


def serve() -> None:
    """Read lines `[kind, root, inputs, point]`; write in a fork that dies at the step `point`; print its exit code.

    The process computes nothing before the fork, so that no thread is lost.
    """
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _write_until(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _write_until(kind: str, root: str, inputs: str, point: int) -> None:
    signal.alarm(60)
    faiss.omp_set_num_threads(1)
    die_at(point)
    # A kill does not lose the page cache, so the disk need not be waited for.
    os.fsync = lambda fd: None
    WRITERS[kind](Path(root), Path(inputs), True)
    os._exit(0)
