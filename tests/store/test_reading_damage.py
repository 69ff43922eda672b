"""Damaged parts: whatever other bytes than the vectors' own are changed, a read returns the right rows or one line."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from bertfeat.errors import StoreError
from bertfeat.store.reader import open_store
from tests.support.places import ROOT
from tests.support.reading_files import READS
from tests.support.store_fakes import make_plan, part_at, without_runs, write_store


def damage(tmp_path, n_tries, seed):
    """Damage parts in a separate process, which an exception in the core of Arrow or polars would end."""
    command = [sys.executable, "-m", "tests.support.part_damage", str(tmp_path), str(seed), str(n_tries)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found.pop("examples") == []
    assert set(found) == {"tries", "right", "refused"}
    assert min(found["right"], found["refused"]) > n_tries // 2


@pytest.mark.promise("read")
def test_damage_anywhere_but_in_the_vectors_own_bytes_is_refused_or_changes_nothing(tmp_path):
    damage(tmp_path, 60, 1)


@pytest.mark.promise("read")
@pytest.mark.long
def test_10_000_damages_anywhere_but_in_the_vectors_own_bytes(tmp_path):
    damage(tmp_path, 10_000, 2)


def change_page_type(path, name, page_type):
    """Change the type in the header of the first page of a column."""
    metadata = pq.read_metadata(path)
    leaves = [metadata.row_group(0).column(leaf) for leaf in range(metadata.num_columns)]
    data = bytearray(path.read_bytes())
    place = next(leaf.data_page_offset for leaf in leaves if leaf.path_in_schema.split(".")[0] == name) + 1
    assert data[place] == 0
    data[place] = page_type
    path.write_bytes(data)


@pytest.mark.parametrize(("encoding", "nulls"), [("array", False), ("array", True), ("binary", False)])
# An index page, and an unknown type: pyarrow skips them.
@pytest.mark.promise("read")
@pytest.mark.parametrize("page_type", [0x02, 0x40])
def test_a_page_of_another_type_is_refused_by_every_reader_that_decodes(tmp_path, encoding, nulls, page_type):
    write_store(tmp_path / "s", make_plan(encoding=encoding), nulls=nulls)
    change_page_type(part_at(tmp_path / "s", "token", 0), "layer_04", page_type)
    without_runs(tmp_path / "s")
    for read in READS.values():
        with pytest.raises(StoreError, match=r"part-00000-.*: cannot be read: its bytes are not those"):
            read(open_store(tmp_path / "s"))
