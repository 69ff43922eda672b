"""The folder of an index: published whole or not at all, read back exactly, and damage reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertfeat.ann import indexfolder
from bertfeat.ann.description import INDEX, ROWS, TRANSFORM
from bertfeat.ann.indexfolder import DESCRIPTION
from bertfeat.ann.transforms import TransformSpec, fit_transform
from bertfeat.durable.records import FileDigest
from bertfeat.errors import RunError, UserError
from bertfeat.vectors.array import ArrayVectors
from tests.support.index_files import DIM, beside, vectors, write_index, write_parts

pytestmark = pytest.mark.usefixtures("no_fsync")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("transform", ["center", "whiten", "pca:3", "truncate:3"])
def test_a_transform_reads_back_to_the_bit(tmp_path, transform):
    write_index(tmp_path / "x", transform=transform)
    fitted = fit_transform(ArrayVectors(vectors()), TransformSpec.parse(transform))
    found = indexfolder.read_transform(tmp_path / "x")
    arrays, wanted = found.to_arrays(), fitted.to_arrays()
    assert arrays.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(arrays[name], array)


def test_no_transform_has_no_file(tmp_path):
    write_index(tmp_path / "x")
    assert indexfolder.read_transform(tmp_path / "x") is None
    assert indexfolder.read_queries(tmp_path / "x") is None
    assert names(tmp_path / "x") == [INDEX, DESCRIPTION, ROWS]


def test_publishing_gives_the_index_its_place_and_its_digests(tmp_path):
    final = tmp_path / "x"
    description = write_index(final, transform="center")
    assert description.files == {name: FileDigest.of(final / name) for name in (INDEX, ROWS, TRANSFORM)}
    indexfolder.check_files(final, description)
    assert names(tmp_path) == ["x"]
    assert description.dim == DIM


def test_an_index_is_replaced_only_when_asked(tmp_path):
    final = tmp_path / "x"
    old = write_index(final)
    building = beside(final)
    new = write_parts(building, factory="SQ8")
    with pytest.raises(UserError, match="there is an index already; choose another `output`, or pass `overwrite`"):
        indexfolder.publish(building, final, new)
    assert indexfolder.read_description(final) == old
    indexfolder.publish(building, final, new, overwrite=True)
    written = indexfolder.read_description(final)
    assert written.factory == "SQ8"
    indexfolder.check_files(final, written)
    assert names(tmp_path) == ["x"]


def test_a_failure_while_publishing_leaves_the_old_index(tmp_path, monkeypatch):
    final = tmp_path / "x"
    old = write_index(final)
    building = beside(final)
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
    indexfolder.check_files(final, old)
    # The same call finishes.
    indexfolder.publish(building, final, new, overwrite=True)
    assert indexfolder.read_description(final).factory == "SQ8"
    assert names(tmp_path) == ["x"]


def test_an_index_reads_through_links_as_in_a_download_cache(tmp_path):
    description = write_index(tmp_path / "x", transform="center")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for entry in (tmp_path / "x").iterdir():
        (snapshot / entry.name).symlink_to(entry)
    assert indexfolder.read_description(snapshot) == description
    indexfolder.check_files(snapshot, description)
    assert indexfolder.read_transform(snapshot) is not None
