"""The folder of an index: published whole or not at all, read back exactly, and damage reported."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from bertfeat.ann import indexfolder
from bertfeat.ann.buildsettings import BuildSettings
from bertfeat.ann.description import INDEX, QUERIES, ROWS, TRANSFORM, IndexDescription
from bertfeat.ann.indexfolder import DESCRIPTION
from bertfeat.ann.transforms import TransformSpec, fit_transform
from bertfeat.durable.records import FileDigest
from bertfeat.errors import RunError, UserError
from bertfeat.vectors.array import ArrayVectors
from bertfeat.vectors.nearest import Metric
from tests.support.index_files import DIM, vectors, write_index, write_parts

pytestmark = pytest.mark.usefixtures("no_fsync")

WHOLE = IndexDescription(
    n_vectors=3,
    dim=8,
    metric=Metric.L2,
    transform="whiten:4",
    factory="OPQ4,IVF16,PQ4",
    parameters={"nprobe": 4, "k_factor_rf": 1.5},
    settings=BuildSettings(recall=0.9),
    source={"plan_hash": "00", "spec": {"layers": [1, 2]}},
    measured={"recall@10": 0.97},
    seconds={"train": 1.25, "add": 2},
    files={INDEX: FileDigest(10, "0" * 32), TRANSFORM: FileDigest(0, "f" * 32)},
)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_description_reads_back_as_it_was_written(tmp_path):
    for description in (WHOLE, dataclasses.replace(WHOLE, files={**WHOLE.files, ROWS: FileDigest(1, "a" * 32)})):
        indexfolder.write_description(tmp_path, description)
        assert indexfolder.read_description(tmp_path) == description
        assert names(tmp_path) == [DESCRIPTION]
    content = json.loads((tmp_path / DESCRIPTION).read_text())
    assert content["format_version"] == 1
    assert content["transform"] == "whiten:4"
    assert content["files"][INDEX] == {"n_bytes": 10, "digest": "0" * 32}


@pytest.mark.parametrize("transform", ["center", "whiten", "pca:3", "truncate:3"])
def test_a_transform_reads_back_to_the_bit(tmp_path, transform):
    description = write_index(tmp_path / "x", transform=transform)
    fitted = fit_transform(ArrayVectors(vectors()), TransformSpec.parse(transform))
    found = indexfolder.read_transform(tmp_path / "x", description)
    arrays, wanted = found.to_arrays(), fitted.to_arrays()
    assert arrays.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(arrays[name], array)


def test_no_transform_has_no_file(tmp_path):
    description = write_index(tmp_path / "x")
    assert indexfolder.read_transform(tmp_path / "x", description) is None
    assert names(tmp_path / "x") == [INDEX, DESCRIPTION, ROWS]


def test_queries_read_back_to_the_bit(tmp_path):
    description = write_index(tmp_path / "x")
    assert indexfolder.read_queries(tmp_path / "x", description) is None
    queries = vectors(4)
    indexfolder.write_queries(tmp_path / "x", queries)
    digest = FileDigest.of(tmp_path / "x" / QUERIES)
    found = indexfolder.read_queries(tmp_path / "x", dataclasses.replace(description, files={QUERIES: digest}))
    np.testing.assert_array_equal(found, queries)


def test_publishing_gives_the_index_its_place_and_its_digests(tmp_path):
    final = tmp_path / "x"
    description = write_index(final, transform="center")
    assert indexfolder.read_description(final) == description
    assert description.files == {name: FileDigest.of(final / name) for name in (INDEX, ROWS, TRANSFORM)}
    assert indexfolder.find_mismatches(final, description) == {}
    assert names(tmp_path) == ["x"]
    assert description.dim == DIM


def test_an_index_is_replaced_only_when_asked(tmp_path):
    final = tmp_path / "x"
    old = write_index(final)
    building = indexfolder.building_folder(final)
    new = write_parts(building, factory="SQ8")
    with pytest.raises(UserError, match="there is an index already; choose another `output`, or pass `overwrite`"):
        indexfolder.publish(building, final, new)
    assert indexfolder.read_description(final) == old
    written = indexfolder.publish(building, final, new, overwrite=True)
    assert indexfolder.read_description(final) == written != old
    assert indexfolder.find_mismatches(final, written) == {}
    assert names(tmp_path) == ["x"]


def test_a_failure_while_publishing_leaves_the_old_index(tmp_path, monkeypatch):
    final = tmp_path / "x"
    old = write_index(final)
    building = indexfolder.building_folder(final)
    new = write_parts(building, factory="SQ8")
    plain = Path.rename

    def failing(self, target):
        if self == building:
            raise OSError(5, "Input/output error")
        return plain(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with pytest.raises(RunError, match="x: input/output error; fix the cause"):
            indexfolder.publish(building, final, new, overwrite=True)
    assert indexfolder.read_description(final) == old
    assert indexfolder.find_mismatches(final, old) == {}
    # The same call finishes.
    written = indexfolder.publish(building, final, new, overwrite=True)
    assert indexfolder.read_description(final) == written
    assert names(tmp_path) == ["x"]


def test_other_files_than_those_written_are_named(tmp_path):
    final = tmp_path / "x"
    description = write_index(final, transform="center")
    (final / ROWS).write_bytes(b"r")
    (final / TRANSFORM).unlink()
    data = bytearray((final / INDEX).read_bytes())
    data[-1] ^= 1
    (final / INDEX).write_bytes(data)
    assert indexfolder.find_mismatches(final, description) == {
        INDEX: "its content does not match the digest in index.json",
        ROWS: f"has 1 bytes, not {description.files[ROWS].n_bytes}",
        TRANSFORM: "is missing",
    }
    (final / INDEX).unlink()
    (final / INDEX).mkdir()
    assert "bytes, not" in indexfolder.find_mismatches(final, description)[INDEX]


def test_an_index_reads_through_links_as_in_a_download_cache(tmp_path):
    description = write_index(tmp_path / "x", transform="center")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for entry in (tmp_path / "x").iterdir():
        (snapshot / entry.name).symlink_to(entry)
    assert indexfolder.read_description(snapshot) == description
    assert indexfolder.find_mismatches(snapshot, description) == {}
    assert indexfolder.read_transform(snapshot, description) is not None
