"""Loading of an index: damage is found before faiss reads a byte."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
import psutil
import pytest

from bertfeat.ann import indexfolder
from bertfeat.ann.description import INDEX, ROWS, TRANSFORM
from bertfeat.ann.indexfolder import DESCRIPTION
from bertfeat.ann.indexloading import load_index
from bertfeat.ann.transforms import fit_transform, prepare
from bertfeat.ann.vectorindex import VectorIndex
from bertfeat.ann.vectorparts import ArrayParts
from bertfeat.errors import UserError
from bertfeat.vectors.nearest import Metric
from tests.support.index_files import DIM, N_VECTORS, vectors, write_index, write_parts

pytestmark = pytest.mark.usefixtures("no_fsync")

QUERIES = vectors(9, seed=5)
ALLOWED = np.random.default_rng(3).random(N_VECTORS) < 0.4
SETTINGS = [
    {"factory": "Flat", "metric": "cosine", "transform": "whiten:8"},
    {"factory": "Flat", "metric": "ip", "transform": "truncate:8"},
    {"factory": "Flat", "metric": "l2"},
    {"factory": "SQ8", "metric": "ip"},
    {"factory": "IVF8,Flat", "metric": "l2", "parameters": {"nprobe": 3}},
    {"factory": "IVF8,PQ4x4", "metric": "cosine", "transform": "center", "parameters": {"nprobe": 4}},
    {"factory": "HNSW16", "metric": "l2", "parameters": {"efSearch": 40}},
    {"factory": "HNSW16,SQ8", "metric": "ip", "transform": "pca:12", "parameters": {"efSearch": 40}},
    {"factory": "PCA8,IVF8,SQ8", "metric": "l2", "parameters": {"nprobe": 8}},
    {"factory": "IVF8,PQ8x4fs,Refine(SQ8)", "metric": "ip", "parameters": {"nprobe": 8, "k_factor_rf": 64}},
]


@pytest.mark.numeric
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: f"{settings['factory']}-{settings['metric']}")
def test_mapped_or_read_it_finds_the_same(tmp_path, settings):
    description = write_index(tmp_path / "x", **settings)
    fitted = fit_transform(ArrayParts(vectors()), description.transform)
    metric = description.metric
    index = faiss.read_index(str(tmp_path / "x" / INDEX))
    in_memory = VectorIndex(index, metric, fitted, description.parameters)
    want, want_masked = in_memory.search(QUERIES, 6), in_memory.search(QUERIES, 3, allowed=ALLOWED)
    for name, value in description.parameters.items():
        faiss.ParameterSpace().set_index_parameter(index, name, value)
    raw, _ = index.search(prepare(QUERIES, fitted, metric), 6)
    # For compressed vectors faiss computes cosines above one.
    scores = {"l2": np.sqrt(np.maximum(raw, 0)), "cosine": np.clip(raw, -1, 1), "ip": raw}[metric]
    for mmap in (True, False):
        found = load_index(tmp_path / "x", mmap=mmap)
        assert (found.n_vectors, found.dim, found.metric) == (N_VECTORS, DIM, metric)
        hits = found.search(QUERIES, 6)
        np.testing.assert_allclose(hits.scores, scores, atol=2e-6)
        np.testing.assert_array_equal(hits.scores, want.scores)
        np.testing.assert_array_equal(hits.positions, want.positions)
        masked = found.search(QUERIES, 3, allowed=ALLOWED)
        np.testing.assert_array_equal(masked.scores, want_masked.scores)
        np.testing.assert_array_equal(masked.positions, want_masked.positions)
        found.close()


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "HNSW16,SQ8", "PCA8,IVF8,SQ8", "IVF8,PQ8x4fs,Refine(SQ8)"])
def test_an_index_is_mapped_and_not_copied(tmp_path, factory):
    write_index(tmp_path / "x", factory=factory)

    def is_mapped() -> bool:
        return any(str(tmp_path / "x" / INDEX) in entry.path for entry in psutil.Process().memory_maps(grouped=False))

    found = load_index(tmp_path / "x", mmap=False)
    assert not is_mapped()
    found.close()
    found = load_index(tmp_path / "x")
    assert is_mapped()
    # A new index in its place does not change the open one.
    before = found.search(QUERIES, 3).positions
    building = indexfolder.building_folder(tmp_path / "x")
    indexfolder.publish(building, tmp_path / "x", write_parts(building, data=vectors(30, seed=9)), overwrite=True)
    np.testing.assert_array_equal(found.search(QUERIES, 3).positions, before)
    found.close()


@pytest.fixture
def reads(monkeypatch) -> list[object]:
    """The files that faiss reads in this process."""
    paths: list[object] = []
    plain = faiss.read_index
    monkeypatch.setattr(faiss, "read_index", lambda *arguments: (paths.append(arguments[0]), plain(*arguments))[1])
    return paths


def test_the_spy_sees_faiss_read(tmp_path, reads):
    write_index(tmp_path / "x")
    load_index(tmp_path / "x").close()
    assert reads == [str(tmp_path / "x" / INDEX)]


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return a file that is cut off, or has bytes changed or inserted; never whitespace, which JSON ignores."""
    # The headers and lengths at the beginning are the most sensitive bytes.
    at = chance.randrange(len(data) if chance.random() < 0.5 else min(len(data), 300))
    filler = chance.choice([b"x", b"\0" * 4, b"\xff" * 64])
    flipped = bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    return data[:at] + chance.choice([b"", flipped, filler + data[at:], filler + data[at + len(filler) :]])


def mutations(folder: Path, other: Path, n: int, seed: int, names: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Yield damaged copies of an index: changed bytes, files of another index, files that are swapped or missing."""
    chance = random.Random(seed)
    target = folder.with_name("damaged")
    for number in range(n):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)
        path = target / names[number % len(names)]
        data = path.read_bytes()
        how = chance.choice(["bytes"] * 7 + ["foreign", "swapped", "missing"])
        if how == "foreign":
            shutil.copyfile(other / path.name, path)
        elif how == "swapped":
            second = chance.choice([entry for entry in sorted(target.iterdir()) if entry != path])
            path.write_bytes(second.read_bytes())
            second.write_bytes(data)
        elif how == "missing":
            path.unlink()
        while how == "bytes" and path.read_bytes().strip() == data.strip():
            path.write_bytes(damaged(data, chance))
        yield f"{number}: {how} {path.name}", target


@pytest.fixture(scope="module")
def indexes(tmp_path_factory) -> list[Path]:
    """Indexes of several kinds, each followed by another one of its kind."""
    root = tmp_path_factory.mktemp("indexes")
    folders = []
    for number, settings in enumerate(
        [
            {"factory": "IVF8,Flat", "metric": "l2", "transform": "whiten:8", "parameters": {"nprobe": 3}},
            {"factory": "HNSW16", "metric": "cosine", "transform": "center", "parameters": {"efSearch": 30}},
            {"factory": "PCA8,IVF8,PQ4x4", "metric": "l2", "transform": "pca:12", "parameters": {"nprobe": 3}},
            {"factory": "SQ8", "metric": "ip", "transform": "whiten"},
        ]
    ):
        for seed in (0, 1):
            folders.append(root / f"{number}-{seed}")
            write_index(folders[-1], data=vectors(seed=seed), **settings)
    return folders


ALL = (INDEX, DESCRIPTION, TRANSFORM, ROWS)


def test_500_damaged_indexes_are_refused_before_faiss_reads_them(indexes, reads):
    said = []
    for pair in range(4):
        for what, folder in mutations(indexes[2 * pair], indexes[2 * pair + 1], 125, pair, ALL):
            with pytest.raises(UserError) as caught:
                load_index(folder)
            assert "\n" not in str(caught.value), what
            said.append(str(caught.value))
    assert len(said) == 500
    assert reads == []
    assert any("index.faiss: its content does not match the digest" in line for line in said)


def test_an_index_that_is_not_as_described_is_refused(tmp_path):
    for number, wrong in enumerate(({"n_vectors": 399}, {"dim": 17}, {"metric": Metric.IP})):
        folder = tmp_path / str(number)
        building = indexfolder.building_folder(folder)
        described = write_parts(building, metric="l2")
        for name, value in wrong.items():
            object.__setattr__(described, name, value)
        indexfolder.publish(building, folder, described)
        with pytest.raises(
            UserError, match=r"index.faiss: .* are .*, not .* as index.json says; build the index again"
        ):
            load_index(folder)


def test_a_file_that_faiss_cannot_read_is_refused_even_with_the_right_digest(tmp_path):
    building = indexfolder.building_folder(tmp_path / "x")
    described = write_parts(building)
    (building / INDEX).write_bytes(b"IxFI" + b"\0" * 3)
    indexfolder.publish(building, tmp_path / "x", described)
    for mmap in (True, False):
        with pytest.raises(UserError, match=r"index.faiss: cannot be loaded: .*build the index again"):
            load_index(tmp_path / "x", mmap=mmap)
