"""Write errors, damage and second runs around a real extraction, and what is then on disk and on the screen."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from bertfeat.durable import steps
from bertfeat.extraction.run import extract
from bertfeat.store.verification import verify
from tests.support.command_line import flags_of, run_cli
from tests.support.drill import result_files, run_extract
from tests.support.runner_fakes import wait_until

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")


def run_limited(limit: int, command: list[str], ended: str) -> None:
    import torch

    # One thread, as here: on some processors, attention with heads of 8 values depends on their number.
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    Path(ended).write_text(json.dumps(run_cli(*command)))


@pytest.mark.promise("disk-full")
def test_a_file_size_limit_is_one_line_and_resumable(tmp_path, settings, warm):
    settings |= {"layers": "0,1,2"}
    whole = result_files(extract(output=tmp_path / "whole", **settings).path)
    limit = max(len(data) for name, data in whole.items() if name.startswith("word/")) - 1
    assert limit > max(len(data) for name, data in whole.items() if name.endswith("plan.json"))
    command = ["extract", *flags_of(settings), "-o", str(tmp_path / "s")]
    assert warm.run(run_limited, limit, command, str(tmp_path / "ended")) == 0
    exit_code, printed, errors = json.loads((tmp_path / "ended").read_text())
    assert (exit_code, printed, len(errors)) == (3, "", 1)
    assert "file too large" in errors[0]
    assert "ulimit -f" in errors[0]
    assert result_files(tmp_path / "s").items() < whole.items()
    extract(output=tmp_path / "s", **settings)
    assert result_files(tmp_path / "s") == whole


def run_and_wait(root: str, settings: dict[str, Any], ready: str) -> None:
    def hook(name: str) -> None:
        if name == "receipt.durable":
            Path(ready).touch()
            time.sleep(60)

    steps.hook = hook
    run_extract(root, settings)


@pytest.mark.promise("writers")
def test_a_second_run_is_refused_with_the_first_ones_process_and_a_stale_lock_is_none(tmp_path, settings, warm):
    root, ready = tmp_path / "s", tmp_path / "ready"
    first = warm.fork(run_and_wait, str(root), settings, str(ready))
    wait_until(ready.exists)
    before = result_files(root)
    exit_code, _, errors = run_cli("extract", *flags_of(settings), "-o", str(root))
    assert (exit_code, len(errors)) == (2, 1)
    assert f"process {first} on host" in errors[0]
    assert result_files(root) == before
    os.kill(first, signal.SIGKILL)
    assert warm.wait(first) == -signal.SIGKILL
    extract(output=root, **settings)
    assert verify(root).is_good
