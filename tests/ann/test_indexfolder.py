"""The folder of an index: published whole or not at all, read back exactly, and damage found before faiss reads."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from bertfeat.ann import folder as ann_folder
from bertfeat.ann.description import INDEX, ROWS, TRANSFORM
from bertfeat.ann.index import VectorIndex
from bertfeat.ann.library import faiss
from bertfeat.ann.transforms import TransformSpec, fit_transform, prepare
from bertfeat.errors import UserError
from bertfeat.vectors.array import ArrayVectors
from tests.support.index_files import DIM, N_VECTORS, beside, loaded, vectors, write_index, write_parts

pytestmark = pytest.mark.usefixtures("no_fsync")

QUERIES = vectors(9, seed=5)
ALLOWED = np.random.default_rng(3).random(N_VECTORS) < 0.4
SETTINGS = [
    {"factory": "Flat", "metric": "cosine", "transform": "whiten:8"},
    {"factory": "IVF8,Flat", "metric": "l2", "parameters": {"nprobe": 3}},
    {"factory": "HNSW16,SQ8", "metric": "ip", "transform": "pca:12", "parameters": {"efSearch": 40}},
    {"factory": "IVF8,PQ8x4fs,Refine(SQ8)", "metric": "ip", "parameters": {"nprobe": 8, "k_factor_rf": 64}},
]


@pytest.mark.numeric
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: f"{settings['factory']}-{settings['metric']}")
def test_mapped_or_read_it_finds_the_same(tmp_path, settings):
    description = write_index(tmp_path / "x", **settings)
    fitted = fit_transform(ArrayVectors(vectors()), TransformSpec.parse(description.transform))
    metric = description.metric
    index = faiss.read_index(str(tmp_path / "x" / INDEX))
    in_memory = VectorIndex(index, metric, fitted, description.parameters)
    want, want_masked = in_memory.search(QUERIES, 6), in_memory.search(QUERIES, 3, allowed=ALLOWED)
    for name, value in description.parameters.items():
        faiss.ParameterSpace().set_index_parameter(index, name, value)
    raw, _ = index.search(prepare(QUERIES, fitted, metric), 6)
    # For compressed vectors faiss computes cosines above one.
    scores = {"l2": np.sqrt(np.maximum(raw, 0)), "cosine": np.clip(raw, -1, 1), "ip": raw}[metric]
    found = loaded(tmp_path / "x")
    assert (found.n_vectors, found.dim, found.metric) == (N_VECTORS, DIM, metric)
    hits, masked = found.search(QUERIES, 6), found.search(QUERIES, 3, allowed=ALLOWED)
    np.testing.assert_allclose(hits.scores, scores, atol=2e-6)
    for ours, theirs in zip([*hits, *masked], [*want, *want_masked], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    found.close()


@pytest.mark.promise("saved")
def test_files_of_another_index_are_refused_before_faiss_reads_them(tmp_path, monkeypatch):
    for seed in (0, 1):
        write_index(tmp_path / str(seed), data=vectors(seed=seed), transform="center")
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("faiss read a damaged index"))
    for name in (INDEX, TRANSFORM, ROWS):
        path = tmp_path / "0" / name
        good = path.read_bytes()
        shutil.copyfile(tmp_path / "1" / name, path)
        with pytest.raises(UserError, match=f"{path}: its content does not match the digest in index.json"):
            loaded(tmp_path / "0")
        path.unlink()
        with pytest.raises(UserError, match=f"{path}: is missing; with `overwrite`, build the index again"):
            loaded(tmp_path / "0")
        path.write_bytes(good)


def test_a_file_that_faiss_cannot_read_is_refused_even_with_the_right_digest(tmp_path):
    building = beside(tmp_path / "x")
    described = write_parts(building)
    (building / INDEX).write_bytes(b"IxFI" + b"\0" * 3)
    ann_folder.publish(building, tmp_path / "x", described)
    with pytest.raises(UserError, match=r"index.faiss: cannot be loaded: .*build the index again"):
        loaded(tmp_path / "x")
