"""Publication step by step: order of syncs, what a failure leaves; locks, places, and the wording of differences."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

import pytest

from bertfeat.durable.file_lock import SHARED, lock
from bertfeat.durable.output_check import check_file, check_folder
from bertfeat.durable.publication import publish_bytes, publish_folder
from bertfeat.errors import RunError, UserError


def test_a_file_is_synced_before_its_name_and_the_folder_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, list[str]]] = []

    def fsync(fd: int) -> None:
        # Files that are not published yet have hidden names.
        place = Path(f"/dev/fd/{fd}").resolve().relative_to(tmp_path)
        inside = ["hidden" if part.startswith(".") else part for part in place.parts]
        synced.append(("/".join(inside), sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("."))))

    monkeypatch.setattr(os, "fsync", fsync)
    publish_bytes(tmp_path / "file", b"new")
    assert synced == [("hidden", []), ("", ["file"])]
    synced.clear()
    for there, aside in (([], []), (["folder"], [("", [])])):
        with publish_folder(tmp_path / "folder") as new:
            (new / "a").touch()
        before = sorted([*there, "file"])
        after = sorted(["folder", "file"])
        aside = [("", ["file"])] if there else []
        assert synced == [("hidden/a", before), ("hidden", before), *aside, ("", after)]
        synced.clear()


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_is_one_line_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    publish_bytes(tmp_path / "file", b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(RunError, match=r"/file: no space left on device after \d bytes; free space and run the same"):
        publish_bytes(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


def test_a_folder_that_cannot_be_renamed_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with publish_folder(tmp_path / "folder") as new:
        (new / "old").touch()
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if path.suffix == ".tmp":
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(RunError, match="permission denied"), publish_folder(tmp_path / "folder") as new:
        (new / "new").touch()
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["folder", "folder/old"]


def test_a_lock_is_held_alone_or_shared(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = lock(path, os.O_RDWR | os.O_CREAT)
    with pytest.raises(BlockingIOError):
        lock(path, os.O_RDWR)
    os.close(held)
    shared = [lock(path, os.O_RDWR, SHARED) for _ in range(2)]
    with pytest.raises(BlockingIOError):
        lock(path, os.O_RDWR)
    for fd in shared:
        os.close(fd)
    os.close(lock(path, os.O_RDWR))


@pytest.mark.parametrize(
    ("name", "overwrite", "said"),
    [
        ("new.csv", False, None),
        ("file.csv", True, None),
        ("file.csv", False, "file.csv: there is a file already; choose another --out, or pass `overwrite`"),
        ("new.txt", False, "new.txt: name a file that ends in .csv or .parquet"),
        ("folder", True, "folder: not a file (a folder); choose another --out"),
        ("link.csv", True, "link.csv: not a file (a symbolic link); choose another --out"),
        ("file.csv/new.csv", False, "file.csv is not a folder; choose another --out"),
    ],
)
def test_a_file_is_written_only_where_nothing_else_is_lost(
    tmp_path: Path, name: str, overwrite: bool, said: str | None
) -> None:
    (tmp_path / "file.csv").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "file.csv")
    settings = {"endings": (".csv", ".parquet"), "instead": "another --out", "overwrite": overwrite}
    with pytest.raises(UserError, match=re.escape(said)) if said else contextlib.nullcontext():
        check_file(tmp_path / name, **settings)


@pytest.mark.parametrize(
    ("names", "overwrite", "said"),
    [
        ([], False, None),
        (["own"], True, None),
        (["own", "more"], False, "there is an index already; choose another `output`, or pass `overwrite`"),
        (["mine"], True, "holds files that are not part of an index (mine); choose another `output`"),
        (["own", *"abcdef"], True, "holds files that are not part of an index (a, b, c, d, e, ...); choose another"),
    ],
)
def test_a_folder_is_written_only_where_nothing_else_is_lost(
    tmp_path: Path, names: list[str], overwrite: bool, said: str | None
) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=re.escape(said)) if said else contextlib.nullcontext():
        check_folder(tmp_path, "an index", ("own", "more"), overwrite=overwrite)
