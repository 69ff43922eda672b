"""Damaged JSON files of a store: every flipped byte and every cut is found, and is one line."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertfeat.errors import BertfeatError, StoreError
from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from bertfeat.store.writer import open_for_writing
from tests.support.store_fakes import contents, make_plan, make_result, receipt_files, rewrite_manifest, write_store

PLAN = make_plan((3, 2), combine="none", odd="ü", nested=[1, {"a": 0.1}])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "s"
    write_store(root, PLAN, n_bad=1)
    return root


def read_everything(root: Path) -> Any:
    store = open_store(root)
    assert store.plan == PLAN
    return store.numpy("token", "layer_03").tolist(), store.bad_rows(), store.manifest


@pytest.mark.promise("disk-full")
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_found_in_one_line_and_made_again(made, data):
    root = made.parent / "damaged"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(made, root)
    expected, before = read_everything(root), contents(root)
    files = [root / "manifests/00000.json", *root.glob("_bertfeat/work/*/plan.json"), *receipt_files(root)]
    file = data.draw(st.sampled_from(files))
    good = file.read_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    if data.draw(st.booleans()):
        file.write_bytes(good[:place])
    else:
        file.write_bytes(good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1 :])
    said = "damaged or edited"
    try:
        is_same = read_everything(root) == expected
    except BertfeatError as error:
        is_same, said = True, str(error)
    assert (is_same, "damaged or edited" in said, "\n" in said) == (True, True, False)
    assert file.relative_to(root).as_posix() in {problem.part for problem in verify(root).problems}
    with open_for_writing(root, PLAN) as writer:
        for shard in writer.pending():
            writer.commit(shard, make_result(PLAN, shard, n_bad=1))
        writer.complete()
    assert contents(root) == before
    assert verify(root).is_good


@pytest.mark.promise("disk-full")
@pytest.mark.parametrize(
    ("path", "plan_hash"),
    [
        (f"../other/token/part-00000-{PLAN.plan_hash[:8]}.parquet", PLAN.plan_hash),
        ("/etc/passwd", PLAN.plan_hash),
        (f"token/part-00001-{PLAN.plan_hash[:8]}.parquet", PLAN.plan_hash),
        # It would follow from this hash.
        ("token/part-00000-../../ot.parquet", "../../other"),
    ],
)
def test_the_path_of_a_part_follows_from_level_shard_and_plan(made, tmp_path, path, plan_hash):
    root = Path(shutil.copytree(made, tmp_path / "s"))

    def change(manifest):
        first, *others = manifest.shards
        return manifest.with_shards(
            [replace(first, plan_hash=plan_hash, parts=(replace(first.parts[0], path=path),)), *others]
        )

    rewrite_manifest(root, change)
    with pytest.raises(StoreError, match=r"manifests.00000\.json: shard 0 lists .* not a file of this shard"):
        open_store(root)
    assert not verify(root).is_good
