"""Building: the index that faiss makes, within its memory, and the same one after a disk was full."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertfeat.ann.budget import plan_build
from bertfeat.ann.build import build as build_planned
from bertfeat.ann.description import BuildSettings
from bertfeat.ann.exact import sample_positions
from bertfeat.ann.folder import read_index, read_transform
from bertfeat.ann.index import VectorIndex
from bertfeat.ann.library import faiss
from bertfeat.ann.transforms import TransformSpec, fit_transform, prepare
from bertfeat.errors import RunError, UserError
from bertfeat.vectors.array import ArrayVectors
from bertfeat.vectors.nearest import Metric
from tests.support.places import ROOT
from tests.support.search_vectors import brute_force, mixture, recall

pytestmark = pytest.mark.usefixtures("no_fsync")

N, DIM = 2500, 16
VECTORS = mixture(N, DIM)
CENTER = "center"

# Every way of filling: codes, lists, both of a refinement, a graph, blocks of codes.
KINDS = ["Flat", "IVF16,SQ8,RFlat", "IVF16_HNSW8,SQfp16", "HNSW8,SQ8", "IVF16,PQ8x4fs,Refine(SQ8)", "OPQ4,IVF8,Flat"]


def settings(index: str, **changes) -> BuildSettings:
    values = {"factory": index, "transform": CENTER, "n_threads": 1, "n_piece_rows": 300, "n_queries": 60}
    return BuildSettings(**{**values, **changes})


def build(source, folder, asked, queries=None):
    return build_planned(source, folder, plan_build(*source.shape, asked), queries)


def opened(folder, result) -> VectorIndex:
    index = read_index(folder / "index.faiss")
    return VectorIndex(index, result.metric, read_transform(folder), result.parameters)


def source(**kwargs) -> ArrayVectors:
    return ArrayVectors(VECTORS, **{"chunk_rows": 170, **kwargs})


@pytest.mark.numeric
@pytest.mark.parametrize("text", KINDS)
def test_it_is_the_index_that_faiss_makes(text, tmp_path):
    asked = settings(text, metric=Metric.L2)
    result = build(source(), tmp_path, asked)
    faiss.omp_set_num_threads(1)
    transform = fit_transform(source(), TransformSpec.parse(CENTER))
    prepared = prepare(VECTORS, transform, Metric.L2)
    plan = plan_build(N, DIM, asked)[0]
    index = plan.info.make()
    index.train(prepared[sample_positions(N, plan.n_training, 0)])
    index.add(prepared)
    built = opened(tmp_path, result)
    # The levels of a graph are not those that faiss draws; its recall is the same.
    if "HNSW8,SQ8" not in text:
        assert np.array_equal(faiss.serialize_index(built.index), faiss.serialize_index(index))
    queries = mixture(200, DIM, seed=1)
    theirs = VectorIndex(index, Metric.L2, transform, result.parameters).search(queries, 10).positions
    ours = built.search(queries, 10).positions
    truth = brute_force(VECTORS, queries, 10, Metric.L2, transform=transform)[1]
    assert recall(ours, truth) == pytest.approx(recall(theirs, truth), abs=0.03)
    assert (result.factory, result.n_vectors, result.dim) == (text, N, DIM)
    assert {path.name for path in (tmp_path / "candidate-0").iterdir()} == {"index.faiss", "tuning.json"}


def test_a_full_disk_is_one_line_and_the_same_call_resumes(tmp_path, monkeypatch):
    build(source(), tmp_path / "whole", settings("IVF16,SQ8"))
    real, n_left = os.write, 200_000

    def write(fd: int, data: bytes) -> int:
        nonlocal n_left
        if len(data) > n_left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        n_left -= len(data)
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    lines = []
    for n_bytes in (0, 3000, 90_000, 30_000):
        n_left = n_bytes
        with pytest.raises(RunError) as caught:
            build(source(), tmp_path / "full", settings("IVF16,SQ8"))
        lines.append(str(caught.value))
        assert not list((tmp_path / "full").rglob("*.tmp"))
    assert all("no space left on device after" in line and "free space and run the same" in line for line in lines)
    names = {Path(line.split(": ")[0]).name for line in lines}
    assert len(names) > 2
    monkeypatch.undo()
    build(source(), tmp_path / "full", settings("IVF16,SQ8"))
    assert (tmp_path / "full/index.faiss").read_bytes() == (tmp_path / "whole/index.faiss").read_bytes()


def refusal(n_vectors: int, dim: int, **changes) -> str:
    with pytest.raises(UserError) as caught:
        plan_build(n_vectors, dim, BuildSettings(**changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_too_little_memory_is_refused_and_what_fits_is_named():
    line = refusal(1_000_000, 384, factory="HNSW32", max_memory=1_000_000_000)
    assert line.startswith("index 'HNSW32' of 1000000 vectors of 384 dimensions takes 2.1 GB (")
    assert "more than max_memory 1.0 GB; IVF4096,SQ8 fits (" in line
    assert plan_build(1_000_000, 384, BuildSettings(factory="IVF4096,SQ8", max_memory=1_000_000_000))
    assert "no index of these vectors fits" in refusal(1_000_000, 384, factory="Flat", max_memory=10**8)


def test_too_few_vectors_and_wrong_widths_are_refused():
    assert refusal(0, 16, factory="Flat").startswith("there are no vectors to index")
    line = refusal(100, 16, factory="IVF256,Flat")
    assert line == (
        "index 'IVF256,Flat' is trained on 256 vectors or more, and there are 100; use Flat, or index more vectors"
    )
    assert "the vectors have 16 dimensions" in refusal(1000, 16, transform="pca:17")
    assert "it takes 17 vectors or more" in refusal(16, 16, transform="whiten")
    # The string is read for the width after the transform.
    assert plan_build(1000, 16, BuildSettings(factory="PQ6", transform="pca:12"))
    assert "PQ cuts 16 dimensions into 6 parts" in refusal(1000, 16, factory="PQ6")


@pytest.mark.parametrize("n_vectors", [1, 2, 11])
def test_few_vectors_are_enough(n_vectors, tmp_path):
    result = build(ArrayVectors(VECTORS[:n_vectors]), tmp_path, BuildSettings())
    assert (result.factory, result.n_vectors) == ("Flat", n_vectors)
    assert result.measured["recall_at_10"] == (None if n_vectors == 1 else 1.0)


PEAK = """
import re, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from tests.support.search_vectors import MadeVectors
from bertfeat.ann.budget import plan_build, plan_memory, Shape
from bertfeat.ann.build import build
from bertfeat.vectors.nearest import Metric
from bertfeat.ann.description import BuildSettings

def status(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

def asked(n_bytes):
    return BuildSettings(
        factory=sys.argv[2], metric=Metric.L2, max_memory=n_bytes, n_threads=1, n_queries=100
    )

made = MadeVectors(600_000, 64)
# The smallest limit that is not refused.
n_bytes = 1 << 20
while not plan_memory(sys.argv[2], Shape(600_000, 64), asked(n_bytes)).fits:
    n_bytes += 1 << 20
before = status("VmRSS")
plans = plan_build(600_000, 64, asked(n_bytes))
build(made, Path(sys.argv[1]), plans)
print(n_bytes, status("VmHWM") - before, (Path(sys.argv[1]) / "index.faiss").stat().st_size)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel does not report the peak of memory")
@pytest.mark.parametrize("text", ["IVF128,PQ32x4fs,RFlat"])
def test_a_build_stays_below_its_memory_limit(text, tmp_path):
    here = [str(ROOT)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PEAK, str(tmp_path), text, *here]
    done = subprocess.run(command, check=True, timeout=200, env=one_thread, capture_output=True, text=True)
    n_may, n_held, n_index = map(int, done.stdout.split())
    assert n_index > 600_000 * 64 * 4
    assert n_held <= n_may
    # The limit is tight: storage that grows by doubling, and is copied, would take three times the index.
    assert n_may < 2 * n_index


@pytest.mark.parametrize(("name", "value"), [("recall", 0), ("n_queries", 1), ("max_memory", 0), ("seed", -1)])
def test_wrong_settings_are_refused(name, value):
    with pytest.raises(UserError, match=f"{name} is {value}: give "):
        BuildSettings(**{name: value})
