"""Stores that are copied while they are written, moved, or read-only, and locks with a reused process id."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from bertfeat.store.writer import open_for_writing
from tests.support.places import ROOT
from tests.support.store_fakes import contents, make_plan, make_result, write_store

PLAN = make_plan((3, 2, 4, 1, 5, 2))


def test_an_unfinished_store_resumes_after_a_move(tmp_path):
    write_store(tmp_path / "reference", PLAN)
    with open_for_writing(tmp_path / "a", PLAN) as writer:
        writer.commit(writer.pending()[0], make_result(PLAN, writer.pending()[0]))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a").rename(tmp_path / "elsewhere/b")
    with open_for_writing(tmp_path / "elsewhere/b", PLAN) as writer:
        assert len(writer.pending()) == len(PLAN.shards) - 1
    write_store(tmp_path / "elsewhere/b", PLAN)
    assert contents(tmp_path / "elsewhere/b") == contents(tmp_path / "reference")
    (tmp_path / "elsewhere/b").rename(tmp_path / "c")
    assert verify(tmp_path / "c").is_good
    assert open_store(tmp_path / "c").numpy("token", "layer_04").shape == (17, 4)


READ = """
import sys
from pathlib import Path
from tests.support.store_fakes import make_plan
from bertfeat.errors import BertfeatError
from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify, mark_for_redoing
from bertfeat.store.writer import open_for_writing
root = Path(sys.argv[1])
plan = make_plan((3, 2, 4, 1, 5, 2))
try:
    (root / "x").write_text("")
except OSError:
    pass
else:
    sys.exit("this folder can be written")
store = open_store(root)
assert store.numpy("token", "layer_04").shape == (17, 4) and store.bad_rows() == () and len(store.receipts()) == 6
assert store.polars("token").height == 17 and verify(root).is_good
for plan in (plan, make_plan((1,))):
    try:
        with open_for_writing(root, plan, overwrite=len(plan.shards) == 1):
            pass
        print("opened")
    except BertfeatError as error:
        print(error)
"""


@pytest.mark.skipif(not shutil.which("setpriv") and os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_store(tmp_path):
    root = tmp_path / "s"
    write_store(root, PLAN)
    want = contents(root)
    for folder, _, names in os.walk(root):
        for name in names:
            (Path(folder) / name).chmod(0o444)
        Path(folder).chmod(0o555)
    command = [sys.executable, "-c", READ, str(root)]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner", "--inh-caps=-all", *command]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("permission denied" in line for line in lines), lines
    assert contents(root) == want
    assert np.isfinite(open_store(root).numpy("token", "layer_04")).all()
