"""The folder of a store: the few file operations that writing, checking and repairing need, here and in object stores.

Files appear whole. Parts, receipts and plans may be written again, with the same bytes; a manifest is only created.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from bertfeat.choices import Level
from bertfeat.durable import files
from bertfeat.durable.file_lock import folder_lock
from bertfeat.durable.publication import publish_file, unfinished
from bertfeat.durable.steps import step
from bertfeat.errors import StorageError, StoreError
from bertfeat.records import PartInfo, QuarantineFile
from bertfeat.storage import ObjectPath, as_path
from bertfeat.storage.object_path import ObjectInfo, concurrently
from bertfeat.store import layout


@dataclass(frozen=True, slots=True)
class FileInfo:
    """The size of a file, when it was written (ns since 1970), and what it is if not a regular file."""

    n_bytes: int
    modified: int
    oddity: str | None = None


class _LocalFolder:
    """A folder on a file system: files are written under a temporary name, synced, and then renamed.

    Names are relative to it, with forward slashes. Methods that write or remove raise RunError if the system refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # The folders that `create` made, innermost first.
        self._created: list[Path] = []

    def create(self) -> None:
        """Create the folder, its parents and the folders inside, except those of levels and works."""
        self._created = files.make_parents(self.path)
        try:
            for folder in (self.path, *(self.path / name for name in (layout.PRIVATE, layout.WORK, layout.TMP))):
                if files.make_folder(folder):
                    self._created.insert(0, folder)
        except BaseException:
            files.remove_empty(self._created)
            raise

    def remove_empty(self) -> None:
        """Remove the folders that `create` made, as far as they are empty, and the lock's file."""
        if not any(name != layout.LOCK for name in self.listing()):
            (self.path / layout.LOCK).unlink(missing_ok=True)
        inside = [*Level, layout.MANIFESTS]
        files.remove_empty([*(self.path / name for name in inside), *self._created])

    def lock(self, *, shared: bool = False) -> contextlib.AbstractContextManager[None]:
        """Lock the folder for writing; raise StoreError if another process of this machine holds the lock."""
        return folder_lock(self.path, layout.LOCK, "is writing this store", shared=shared)

    def clean_tmp(self) -> None:
        """Remove the unfinished files of processes that died; needs the lock alone."""
        with files.write_errors(self.path / layout.TMP):
            for name in self.names(layout.TMP):
                (self.path / name).unlink(missing_ok=True)

    def listing(self, known: Collection[str] = ()) -> dict[str, FileInfo]:
        """Describe all files by their names, sorted; a folder that is not a store's appears as one odd file.

        Files and folders in `known` are left out: a store that has grown often has many.
        """
        if not os.path.lexists(self.path):
            return {}
        if self.path.is_symlink() or not self.path.is_dir():
            raise StoreError(f"{self.path}: not a folder ({files.kind_of(self.path)}); choose another `output`")
        return dict(sorted(self._files("", known)))

    def _files(self, place: str, known: Collection[str]) -> Iterator[tuple[str, FileInfo]]:
        for entry in _entries(self.path / place):
            name = f"{place}/{entry.name}" if place else entry.name
            if name in known and not entry.is_symlink():
                continue
            if entry.is_dir(follow_symlinks=False) and layout.is_folder(name):
                yield from self._files(name, known)
            else:
                with contextlib.suppress(FileNotFoundError):
                    yield name, _described(Path(entry.path), entry.stat(follow_symlinks=False))

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return those of some files that do not exist."""
        return [name for name in names if not os.path.lexists(f"{self.path}/{name}")]

    def names(self, place: str) -> list[str]:
        """Return the paths of the files in a folder inside, sorted; none without the folder."""
        return sorted(f"{place}/{entry.name}" for entry in _entries(self.path / place))

    def info(self, name: str) -> FileInfo | None:
        """Describe a file; None without one. A symbolic link is not followed."""
        try:
            return _described(self.path / name, (self.path / name).lstat())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, name: str) -> bytes:
        """Return a small file; OSError if it is not a regular one."""
        return files.read_small(self.path / name)

    def read_each(self, names: Sequence[str]) -> Iterator[tuple[str, bytes | OSError]]:
        """Yield the content of small files, in order, or the error of reading them."""
        for name in names:
            yield name, _or_error(self.read, name)

    def digest(self, name: str) -> str:
        """Return the xxh3-128 of a file, hex."""
        return files.digest_of(self.path / name)

    def write(self, name: str, data: bytes, kind: str) -> None:
        """Write or replace a small file whole; `kind` begins the names of its steps."""
        with self._published(name, kind) as sink:
            sink.write(data)

    def put_if_absent(self, name: str, data: bytes, kind: str) -> bool:
        """Create a small file whole; return False if there is one with other content, which stays.

        The file gets its name by a link, which the system refuses if there is one.
        """
        try:
            with self._published(name, kind, _link) as sink:
                sink.write(data)
        except _IsThereError:
            return self.read(name) == data
        return True

    def write_part(self, name: str, fill: Callable[[files.Sink], None]) -> tuple[int, str]:
        """Write or replace a part whole; return its size and digest. `fill` writes the content."""
        with self._published(name, "part") as sink:
            fill(sink)
        return sink.n_bytes, sink.digest

    def _published(
        self, name: str, kind: str, place: Callable[[Path, Path], object] = Path.replace
    ) -> contextlib.AbstractContextManager[files.Sink]:
        final = self.path / name
        with files.write_errors(final.parent):
            if not final.parent.is_dir():
                files.make_folder(final.parent)
        aside = unfinished(self.path / layout.TMP / name.replace("/", "-").lower())
        return publish_file(final, kind=kind, aside=aside, place=place)

    def remove(self, names: Iterable[str]) -> None:
        """Remove those of some files that exist, in order and durably, and folders that are empty then."""
        # One wait for each folder: a compaction removes thousands of files.
        for folder, group in itertools.groupby((self.path / name for name in names), lambda path: path.parent):
            with files.write_errors(folder):
                for path in group:
                    path.unlink(missing_ok=True)
                if folder.is_dir():
                    files.sync_path(folder)
            if folder.name != layout.MANIFESTS:
                files.remove_empty([folder])


class _IsThereError(Exception):
    """A file that must be new exists."""


def _link(new: Path, final: Path) -> None:
    if not files.link_exclusive(new, final):
        raise _IsThereError
    new.unlink(missing_ok=True)


@files.os_errors(StoreError)
def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _described(path: Path, status: os.stat_result) -> FileInfo:
    oddity = None if stat.S_ISREG(status.st_mode) else files.kind_of(path)
    return FileInfo(status.st_size, status.st_mtime_ns, oddity)


def _or_error(read: Callable[[str], bytes], name: str) -> bytes | OSError:
    try:
        return read(name)
    except OSError as error:
        return error


class _ObjectFolder:
    """The objects below a URL, with the methods of a local folder; an object appears whole, and nothing is locked.

    Two runs of one plan write the same objects; runs of different plans write different ones, except the manifest,
    which only one of them creates.
    """

    def __init__(self, path: ObjectPath) -> None:
        self.path = path

    def create(self) -> None:
        """Check that the server refuses to create an object that is there, which keeps two writers apart."""
        place = self.path / layout.LOCK
        with contextlib.suppress(FileExistsError):
            place.create_bytes(b"first\n")
        try:
            place.create_bytes(b"second\n")
        except FileExistsError:
            return
        place.unlink()
        raise StorageError(
            f"{self.path}: the server does not refuse to create an object that is there, so two runs could replace "
            "each other's results; use a server with conditional requests (If-None-Match), or a local folder"
        )

    def remove_empty(self) -> None:
        if set(self.path.find()) == {layout.LOCK}:
            (self.path / layout.LOCK).unlink()

    def lock(self, *, shared: bool = False) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        return contextlib.nullcontext()

    def clean_tmp(self) -> None:
        """Do nothing: an upload that was not finished has no name."""

    def listing(self, known: Collection[str] = ()) -> dict[str, FileInfo]:
        found = {
            name: _object_info(info)
            for name, info in self.path.find().items()
            if name not in known and name.rpartition("/")[0] not in known
        }
        if not found and self.path.key and self.path.is_file():
            raise StoreError(f"{self.path}: not a folder (an object); choose another `output`")
        return found

    def missing(self, names: Iterable[str]) -> list[str]:
        there = self.listing()
        return [name for name in names if name not in there]

    def names(self, place: str) -> list[str]:
        return [f"{place}/{name}" for name in (self.path / place).find()]

    def info(self, name: str) -> FileInfo | None:
        try:
            return _object_info((self.path / name).info())
        except FileNotFoundError:
            return None

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def read_each(self, names: Sequence[str]) -> Iterator[tuple[str, bytes | OSError]]:
        """Yield small objects; several are read at a time."""
        yield from zip(names, concurrently(lambda name: _or_error(self.read, name), names), strict=True)

    def digest(self, name: str) -> str:
        with (self.path / name).open_buffered() as file:
            return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()

    def write(self, name: str, data: bytes, kind: str) -> None:
        step(f"{kind}.written")
        (self.path / name).write_bytes(data)
        step(f"{kind}.durable")

    def put_if_absent(self, name: str, data: bytes, kind: str) -> bool:
        """Create an object by a conditional request."""
        step(f"{kind}.written")
        try:
            (self.path / name).create_bytes(data)
        except FileExistsError:
            return False
        step(f"{kind}.durable")
        return True

    def write_part(self, name: str, fill: Callable[[files.Sink], None]) -> tuple[int, str]:
        """Write a part to a temporary file, and upload it."""
        with files.write_errors(Path(tempfile.gettempdir()) / "a temporary file"), tempfile.TemporaryDirectory() as at:
            spool = Path(at) / "part"
            with contextlib.closing(files.Sink(spool)) as sink, files.write_errors(spool, sink):
                fill(sink)
                step("part.written")
                sink.sync()
            (self.path / name).upload(spool)
            step("part.durable")
            return sink.n_bytes, sink.digest

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.path / name).unlink()


def _object_info(info: ObjectInfo) -> FileInfo:
    return FileInfo(info.n_bytes, int(info.modified.timestamp() * 1e9))


#: The folder of a store.
Folder = _LocalFolder | _ObjectFolder


def folder_at(place: str | Path | ObjectPath) -> Folder:
    """Return a store's folder."""
    path = as_path(place)
    if isinstance(path, ObjectPath) and path.is_on_hub:
        remedy = "write the store to a folder, then run bertfeat card and hf upload"
        raise StorageError(f"{place}: data sets of a hub are read as a corpus only; {remedy}")
    return _ObjectFolder(path) if isinstance(path, ObjectPath) else _LocalFolder(path)


def is_whole(folder: Folder, file: PartInfo | QuarantineFile) -> bool:
    """Return whether a file has its size and digest; the size is checked first, since that is cheap."""
    try:
        found = folder.info(file.path)
        return found is not None and found.n_bytes == file.n_bytes and folder.digest(file.path) == file.digest
    except OSError:
        return False
