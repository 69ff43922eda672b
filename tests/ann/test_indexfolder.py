"""The folder of an index: published whole or not at all, read back exactly, and damage reported."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from bertfeat.ann import indexfolder
from bertfeat.ann.buildsettings import BuildSettings
from bertfeat.ann.description import INDEX, QUERIES, ROWS, TRANSFORM, FileDigest, IndexDescription
from bertfeat.ann.indexfolder import DESCRIPTION
from bertfeat.ann.transforms import TransformSpec, fit_transform
from bertfeat.ann.vectorparts import ArrayParts
from bertfeat.errors import RunError, UserError
from bertfeat.store import codec
from bertfeat.vectors.nearest import Metric
from tests.support.index_files import DIM, vectors, write_index, write_parts

pytestmark = pytest.mark.usefixtures("no_fsync")

WHOLE = IndexDescription(
    n_vectors=3,
    dim=8,
    metric=Metric.L2,
    transform=TransformSpec.parse("whiten:4"),
    factory="OPQ4,IVF16,PQ4",
    parameters={"nprobe": 4, "k_factor_rf": 1.5},
    settings=BuildSettings().to_json(),
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format_version", None),
        ("format_version", "1"),
        ("n_vectors", -1),
        ("n_vectors", True),
        ("n_vectors", 2**60),
        ("dim", 0),
        ("dim", 8.0),
        ("dim", 3),  # fewer than the transform leaves
        ("metric", "manhattan"),
        ("metric", None),
        ("transform", "whiten:0"),
        ("transform", "none"),  # but it has a file
        ("transform", ["whiten"]),
        ("factory", ""),
        ("factory", "Flat\x1b[31m"),
        ("factory", "F" * 5000),
        ("parameters", [4]),
        ("parameters", {"nprobe": "4"}),
        ("parameters", {"nprobe": -4}),
        ("parameters", {"n\nprobe": 4}),
        ("settings", None),
        ("settings", {**BuildSettings().to_json(), "recall": "x"}),
        ("settings", {**BuildSettings().to_json(), "n_threads": 2**40}),
        ("settings", {**BuildSettings().to_json(), "transform": []}),
        ("settings", {**BuildSettings().to_json(), "colour": "blue"}),
        ("source", []),
        ("measured", 0.9),
        ("measured", {"queries_per_s": "fast"}),
        ("seconds", {"train": True}),
        ("seconds", {"train": 1e300}),
        ("files", {}),
        ("files", {INDEX: {"n_bytes": 1, "digest": "0" * 32}}),  # and no transform
        ("files", {**{name: {"n_bytes": 1, "digest": "0" * 32} for name in (INDEX, TRANSFORM, "../x")}}),
        ("files", {name: {"n_bytes": 1} for name in (INDEX, TRANSFORM)}),
        ("files", {name: {"n_bytes": 1, "digest": "0" * 31 + "G"} for name in (INDEX, TRANSFORM)}),
        ("files", {name: {"n_bytes": -1, "digest": "0" * 32} for name in (INDEX, TRANSFORM)}),
        ("files", {INDEX: 1, TRANSFORM: 2}),
        ("more", 1),
    ],
)
def test_wrong_values_are_refused(tmp_path, field, value):
    (tmp_path / DESCRIPTION).write_bytes(codec.seal({**WHOLE.to_json(), field: value}))
    with pytest.raises(UserError, match=r"index.json: cannot be read: .*; build the index again$") as caught:
        indexfolder.read_description(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_field_and_a_newer_format_are_named(tmp_path):
    content = WHOLE.to_json()
    (tmp_path / DESCRIPTION).write_bytes(codec.seal({**content, "format_version": 2, "novel": 1}))
    with pytest.raises(UserError, match=r"index.json: format_version 2, this bertfeat reads up to 1; upgrade bertfeat"):
        indexfolder.read_description(tmp_path)
    del content["factory"]
    (tmp_path / DESCRIPTION).write_bytes(codec.seal(content))
    with pytest.raises(UserError, match="missing or unknown fields: factory"):
        indexfolder.read_description(tmp_path)


def test_other_files_are_refused_as_a_description(tmp_path):
    with pytest.raises(UserError, match="nowhere: no such folder"):
        indexfolder.read_description(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"not an index: it has no index\.json; give the folder that"):
        indexfolder.read_description(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="not an index"):
        indexfolder.read_description(tmp_path / "file")
    for data, reason in (
        (b"", "Expecting value"),
        (b"[1]", "not a JSON object"),
        (b'{"a": 1}', "damaged or edited"),
        (b"\xff\xfe\x00", "decode|Expecting|JSON"),
        (b"[" * 10**6, "nested too deep"),
        (b" " * (20 << 20), "it has 20971520 bytes"),
    ):
        (tmp_path / DESCRIPTION).write_bytes(data)
        with pytest.raises(UserError, match=f"index.json: cannot be read: .*({reason})"):
            indexfolder.read_description(tmp_path)
    (tmp_path / DESCRIPTION).unlink()
    (tmp_path / DESCRIPTION).mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        indexfolder.read_description(tmp_path)
    (tmp_path / DESCRIPTION).rmdir()
    os.mkfifo(tmp_path / DESCRIPTION)
    with pytest.raises(UserError, match="cannot be read: not a regular file"):
        indexfolder.read_description(tmp_path)


def test_every_flipped_bit_of_a_description_is_found(tmp_path):
    indexfolder.write_description(tmp_path, WHOLE)
    data = (tmp_path / DESCRIPTION).read_bytes()
    chance = random.Random(1)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (tmp_path / DESCRIPTION).write_bytes(damaged)
        # Whitespace between values does not matter.
        try:
            found = indexfolder.read_description(tmp_path)
        except UserError:
            continue
        assert found == WHOLE


@pytest.mark.parametrize("transform", ["center", "whiten", "pca:3", "truncate:3"])
def test_a_transform_reads_back_to_the_bit(tmp_path, transform):
    description = write_index(tmp_path / "x", transform=transform)
    fitted = fit_transform(ArrayParts(vectors()), TransformSpec.parse(transform))
    found = indexfolder.read_transform(tmp_path / "x", description)
    arrays, wanted = found.to_arrays(), fitted.to_arrays()
    assert arrays.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(arrays[name], array)


def test_no_transform_has_no_file(tmp_path):
    description = write_index(tmp_path / "x")
    assert indexfolder.read_transform(tmp_path / "x", description) is None
    assert names(tmp_path / "x") == [INDEX, DESCRIPTION, ROWS]


def test_a_damaged_or_foreign_transform_is_refused(tmp_path):
    description = write_index(tmp_path / "x", transform="pca:3")
    path = tmp_path / "x" / TRANSFORM
    good = path.read_bytes()
    chance = random.Random(2)
    for _ in range(200):
        path.write_bytes(good[: chance.randrange(len(good))])
        with pytest.raises(UserError, match=r"transform.safetensors: cannot be read: .*build the index again"):
            indexfolder.read_transform(tmp_path / "x", description)
    path.write_bytes(b"\0" * (2 << 20))
    with pytest.raises(UserError, match="it has 2097152 bytes"):
        indexfolder.read_transform(tmp_path / "x", description)
    write_index(tmp_path / "other", transform="pca:4")
    path.write_bytes((tmp_path / "other" / TRANSFORM).read_bytes())
    with pytest.raises(UserError, match=r"turns 16 dimensions into 4, not 16 into 3 as index\.json says"):
        indexfolder.read_transform(tmp_path / "x", description)
    path.unlink()
    with pytest.raises(UserError, match="cannot be read: No such file"):
        indexfolder.read_transform(tmp_path / "x", description)


def test_damaged_queries_are_refused(tmp_path):
    folder = tmp_path / "x"
    write_parts(folder)
    asked = np.random.default_rng(0).normal(size=(4, DIM)).astype(np.float32)
    indexfolder.write_queries(folder, asked)
    description = dataclasses.replace(WHOLE, dim=DIM, files={QUERIES: indexfolder.digest_file(folder / QUERIES)})
    np.testing.assert_array_equal(indexfolder.read_queries(folder, description), asked)
    assert indexfolder.read_queries(folder, dataclasses.replace(description, files={})) is None
    good = (folder / QUERIES).read_bytes()
    for n in range(0, len(good), 7):
        (folder / QUERIES).write_bytes(good[:n])
        with pytest.raises(UserError, match=r"queries.safetensors: cannot be read: .*build the index again"):
            indexfolder.read_queries(folder, description)
    for wrong in (asked[:, 1:], asked[0], asked[:1], asked.astype(np.float64), asked * np.float32(np.nan)):
        indexfolder.write_queries(folder, wrong)
        with pytest.raises(UserError, match=r"queries.safetensors: cannot be read: "):
            indexfolder.read_queries(folder, description)
    (folder / QUERIES).unlink()
    with pytest.raises(UserError, match="cannot be read: No such file"):
        indexfolder.read_queries(folder, description)


def test_publishing_gives_the_index_its_place_and_its_digests(tmp_path):
    final = tmp_path / "x"
    description = write_index(final, transform="center")
    assert indexfolder.read_description(final) == description
    assert description.files == {name: indexfolder.digest_file(final / name) for name in (INDEX, ROWS, TRANSFORM)}
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


def test_only_a_whole_building_folder_is_published(tmp_path):
    building = indexfolder.building_folder(tmp_path / "x")
    description = write_parts(building, transform="center")
    (building / "state.json").write_text("{}")
    with pytest.raises(ValueError, match=r"state\.json"):
        indexfolder.publish(building, tmp_path / "x", description)
    (building / "state.json").unlink()
    (building / INDEX).rename(tmp_path / "aside")
    with pytest.raises(ValueError, match="files are"):
        indexfolder.publish(building, tmp_path / "x", description)
    (building / INDEX).symlink_to(tmp_path / "aside")
    with pytest.raises(RunError):
        indexfolder.publish(building, tmp_path / "x", description)
    assert not (tmp_path / "x").exists()


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
