"""Failing system calls on a store's files: one line each, and the same run finishes the store afterwards."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertfeat.errors import BertfeatError
from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from bertfeat.store.writer import open_for_writing
from tests.support.store_fakes import contents, make_plan, make_result, receipt_files, write_store

CALLS = ("open", "close", "fstat", "stat", "listdir", "scandir", "read", "pread", "preadv", "write", "pwrite", "fsync")
CALLS += ("ftruncate", "link", "unlink", "replace", "rename", "mkdir", "rmdir", "lstat")
ERRORS = (errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOSPC, errno.EFBIG, errno.ESTALE, errno.EROFS)
PLAN = make_plan((2, 1))


class Faults:
    """Counter of the calls on files below a folder, of which one fails, or that one and all later ones."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = str(root)
        self.counts: Counter[str] = Counter()
        self.armed: tuple[str, int, int, bool] | None = None
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, call: Any) -> Any:
        readlink = os.readlink

        def is_inside(place: Any) -> bool:
            if isinstance(place, int):
                try:
                    place = readlink(f"/proc/self/fd/{place}")
                except OSError:
                    return False
            return str(place).startswith(self.root) and "reference" not in str(place)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self.armed is None or not is_inside(args[0]):
                return call(*args, **kwargs)
            self.counts[name] += 1
            wanted, nth, code, stays = self.armed
            if name == wanted and (self.counts[name] == nth or (stays and self.counts[name] > nth)):
                if name == "close":
                    call(*args)
                raise OSError(code, os.strerror(code), None if isinstance(args[0], int) else str(args[0]))
            return call(*args, **kwargs)

        return wrapped

    def arm(self, name: str, nth: int, code: int, *, stays: bool = False) -> None:
        self.counts.clear()
        self.armed = (name, nth, code, stays)


def run(root: Path) -> None:
    with open_for_writing(root, PLAN) as writer:
        if not writer.is_complete:
            writer.receipts()
            for shard in writer.pending():
                writer.commit(shard, make_result(PLAN, shard, n_bad=1))
            writer.complete()
    store = open_store(root)
    assert np.array_equal(store.numpy("token", "layer_04")[:, 0], np.arange(400, 403))
    assert len(store.bad_rows()) == len(store.receipts()) == 2
    verify(root)


def prepare(root: Path, kind: str) -> None:
    if kind == "new":
        return
    write_store(root, PLAN, n_bad=1)
    if kind == "interrupted":
        (root / "manifests/00000.json").unlink()
        receipt_files(root)[1].unlink()
        (root / "_bertfeat/tmp/00001.token.1-00.tmp").write_bytes(b"left")


def fail_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> int:
    """Let one in `step` calls fail, and run again; return how many runs ended with a line."""
    write_store(tmp_path / "reference", PLAN, n_bad=1)
    want = contents(tmp_path / "reference")
    faults = Faults(tmp_path / "s", monkeypatch)
    said: list[str] = []
    number = 0
    for kind in ("new", "interrupted", "finished"):
        faults.armed = None
        prepare(tmp_path / f"s-{kind}", kind)
        faults.arm("none", 0, 0)
        run(tmp_path / f"s-{kind}")
        for name, nth in [(name, nth) for name, count in faults.counts.items() for nth in range(1, count + 1)]:
            number += 1
            if number % step:
                continue
            faults.armed = None
            root = tmp_path / f"s{number}"
            prepare(root, kind)
            code = ERRORS[number // step % len(ERRORS)]
            faults.arm(name, nth, code, stays=number // step % 4 == 0)
            what = f"{kind}: {name} {nth} {errno.errorcode[code]}"
            try:
                run(root)
            except BertfeatError as error:
                said.append(str(error))
            except OSError as error:
                raise AssertionError(what) from error
            faults.armed = None
            run(root)
            assert contents(root) == want, what
            assert verify(root).is_good, what
    assert not [line for line in said if "\n" in line]
    return len(said)


@pytest.mark.promise("disk-full")
@pytest.mark.parametrize(("step", "n_lines"), [(23, 8), pytest.param(1, 200, marks=pytest.mark.long)])
def test_calls_that_fail_are_one_line_and_the_run_resumes(tmp_path, monkeypatch, step, n_lines):
    assert fail_each(tmp_path, monkeypatch, step) > n_lines
