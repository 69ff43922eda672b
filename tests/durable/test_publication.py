"""Publication step by step: order of syncs, what a failure leaves; locks, places, and the wording of differences."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from bertfeat.durable import file_lock
from bertfeat.durable.file_lock import SHARED, lock
from bertfeat.durable.output_check import check_file, check_folder, check_folder_above
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


def test_a_lock_is_on_the_file_that_finally_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, n_made = tmp_path / "lock", 0

    def removed_meanwhile(fd: int, kind: int) -> None:
        nonlocal n_made
        n_made += 1
        if n_made < 3:
            path.unlink()
        fcntl.flock(fd, kind)

    with monkeypatch.context() as patch:
        patch.setattr(file_lock, "fcntl", type("fcntl", (), {"flock": staticmethod(removed_meanwhile)}))
        held = lock(path, os.O_RDWR | os.O_CREAT)
    assert n_made == 3
    assert os.path.samestat(os.fstat(held), path.stat())
    with pytest.raises(BlockingIOError):
        lock(path, os.O_RDWR)
    os.close(held)
    shared = [lock(path, os.O_RDWR, SHARED) for _ in range(2)]
    with pytest.raises(BlockingIOError):
        lock(path, os.O_RDWR)
    for fd in shared:
        os.close(fd)
    os.close(lock(path, os.O_RDWR))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        lock(path, os.O_RDWR)


def test_what_may_be_written_where(tmp_path: Path) -> None:
    (tmp_path / "file.csv").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "file.csv")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name, overwrite, said in (
        ("new.csv", False, ""),
        ("file.csv", True, ""),
        ("file.csv", False, "there is a file already; choose another --out, or pass `overwrite`"),
        ("new.txt", False, "name a file that ends in .csv or .parquet"),
        ("folder", True, "not a file (a folder); choose another --out"),
        ("link.csv", True, "not a file (a symbolic link); choose another --out"),
        ("file.csv/new.csv", False, f"{tmp_path / 'file.csv'} is not a folder; choose another --out"),
    ):
        said = said and f"{tmp_path / name}: {said}"
        assert (
            refusal(
                check_file, tmp_path / name, overwrite=overwrite, endings=(".csv", ".parquet"), instead="another --out"
            )
            == said
        )
    for names, overwrite, said in (
        ([], False, ""),
        (["own"], True, ""),
        (["own", "more"], False, "there is an index already; choose another `output`, or pass `overwrite`"),
        (["more"], True, "holds files that are not part of an index (more); choose another `output`"),
        (
            ["own", *"abcdef"],
            True,
            "holds files that are not part of an index (a, b, c, d, e, ...); choose another `output`",
        ),
    ):
        for path in (tmp_path / "folder").iterdir():
            path.unlink()
        for name in names:
            (tmp_path / "folder" / name).touch()
        said = said and f"{tmp_path / 'folder'}: {said}"
        assert refusal(check_folder, tmp_path / "folder", "an index", ("own", "more"), overwrite=overwrite) == said
    for name, what in (("file.csv", "a file"), ("dangling", "a symbolic link")):
        said = refusal(check_folder, tmp_path / name, "an index", ("own",), overwrite=True)
        assert said == f"{tmp_path / name}: not a folder ({what}); choose another `output`"
    said = refusal(check_folder_above, tmp_path / "none" / "file")
    assert said == f"{tmp_path / 'none' / 'file'}: no folder {tmp_path / 'none'}; create it first"


def refusal(check, *arguments, **settings) -> str:
    try:
        check(*arguments, **settings)
    except UserError as error:
        return str(error)
    return ""
