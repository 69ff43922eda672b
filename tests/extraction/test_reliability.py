"""Write errors, damage and second runs around a real extraction, and what is then on disk and on the screen."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from bertfeat.durable import steps
from bertfeat.durable.records import unseal
from bertfeat.extraction.run import extract
from bertfeat.records import Receipt
from bertfeat.store.verification import verify
from tests.support.cli_runs import flags, run_cli
from tests.support.drill import orphans, result_files, run_extract
from tests.support.runner_fakes import wait_until
from tests.support.store_fakes import receipt_files

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")


def identity(file: Path) -> tuple[int, int]:
    return file.stat().st_ino, file.stat().st_mtime_ns


class Shim:
    """Fails the n-th write to a file of the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.code, self.fails_at, self.n_writes = errno.ENOSPC, 0, 0
        self._write = os.write
        monkeypatch.setattr("bertfeat.durable.files.os.write", self)
        # The digests of a model are cached outside the store; a run does not need the cache.
        monkeypatch.setattr("bertfeat.durable.user_cache.publish_bytes", lambda *_, **__: None)

    def __call__(self, fd: int, data: Any) -> int:
        self.n_writes += 1
        if self.n_writes == self.fails_at:
            self._write(fd, bytes(data[: len(data) // 2]))
            raise OSError(self.code, os.strerror(self.code))
        return self._write(fd, data)


@pytest.mark.promise("disk-full")
def test_a_write_error_at_every_write_is_one_line_and_resumable(tmp_path, settings, monkeypatch):
    settings |= {"levels": ["sentence"]}
    whole = result_files(extract(output=tmp_path / "whole", **settings).path)
    shim = Shim(monkeypatch)
    extract(output=tmp_path / "counted", **settings)
    n_writes = shim.n_writes
    # The plan, 3 parts of several writes each, 3 receipts, the manifest.
    assert n_writes >= 8
    for point in sorted({1, 2, n_writes, *range(3, n_writes, max(n_writes // 15, 1))}):
        root = tmp_path / str(point)
        shim.fails_at, shim.n_writes = point, 0
        shim.code = (errno.ENOSPC, errno.EIO)[point % 2]
        exit_code, _, errors = run_cli("extract", *flags(settings), "-o", str(root))
        assert (exit_code, len(errors)) == (3, 1), errors
        assert os.strerror(shim.code).lower() in errors[0]
        assert "run the same command again" in errors[0]
        assert result_files(root).items() <= whole.items()
        # A part with a receipt is never written again.
        receipts = [unseal(Receipt, file.read_bytes()) for file in receipt_files(root)]
        kept = {root / part.path: identity(root / part.path) for receipt in receipts for part in receipt.parts}
        shim.fails_at = 0
        extract(output=root, **settings)
        assert result_files(root) == whole
        assert orphans(root) == []
        assert {path: identity(path) for path in kept} == kept


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
    command = ["extract", *flags(settings), "-o", str(tmp_path / "s")]
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
    exit_code, _, errors = run_cli("extract", *flags(settings), "-o", str(root))
    assert (exit_code, len(errors)) == (2, 1)
    assert f"process {first} on host" in errors[0]
    assert result_files(root) == before
    os.kill(first, signal.SIGKILL)
    assert warm.wait(first) == -signal.SIGKILL
    extract(output=root, **settings)
    assert verify(root).is_good
