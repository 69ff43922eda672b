"""Store folder in an object store: objects appear whole, with one request, and what a commit creates must be new."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, ClassVar

import xxhash

from bertfeat.choices import Level
from bertfeat.durable import files
from bertfeat.durable.steps import step
from bertfeat.errors import RunError, StoreError
from bertfeat.storage import ObjectInfo, ObjectPath
from bertfeat.storage.objectpath import concurrently
from bertfeat.store import layout
from bertfeat.store.folder import Contents, FileInfo, Folder, Lease
from bertfeat.store.objectlock import ObjectLock

_CHUNK_BYTES = 8 << 20


class ObjectListing:
    """The objects of a store at the time of the listing."""

    def __init__(self, found: dict[str, ObjectInfo]) -> None:
        self._found = found

    def info(self, name: str) -> FileInfo | None:
        """Describe an object; None if there is no such object."""
        info = self._found.get(name)
        return None if info is None else _file_info(info)

    def owned(self) -> list[str]:
        """Return the parts, receipts and quarantine files, sorted."""
        return sorted(filter(layout.is_owned, self._found))


class ObjectFolder(Folder):
    """The objects below a URL.

    Nothing is renamed here and there are no folders. A part is first written to a temporary file without a name, which
    disappears if the process dies, and then uploaded by a request that the store refuses if the object exists. The
    object that exists is then either the same part or one of another run.

    Each write and each removal checks the lock first, in the process that holds it and, through `lease`, in its
    workers.
    """

    replaces_parts: ClassVar[bool] = False

    def __init__(self, path: ObjectPath, lease: Lease | None = None) -> None:
        self.path: ObjectPath = path
        self.lease = lease
        self._lock: ObjectLock | None = None

    def _check(self) -> None:
        if self.lease is not None:
            self.lease.check()

    def contents(self) -> Contents:
        """Describe what exists here."""
        names = list(self.path.find())
        if not names and self.path.key and self.path.is_file():
            raise StoreError(f"{self.path}: not a folder (an object); choose another `output`")
        has_private = any(name.startswith(f"{layout.PRIVATE}/") for name in names)
        foreign = [name for name in names if not layout.is_piece(name)]
        return Contents(has_private, foreign, links=(), entries=_first_parts(names))

    def create(self) -> None:
        """Do nothing: an object store has no folders."""

    def lock(self) -> ObjectLock:
        """Take the lock."""
        self.lease = self._lock = ObjectLock(self.path)
        return self._lock

    def prepare(self, levels: tuple[Level, ...]) -> None:
        """Do nothing: an object store has no folders."""

    def discard(self, levels: tuple[Level, ...]) -> None:  # noqa: ARG002
        """Remove everything that opening a store has made."""
        for name in (layout.MANIFEST, layout.PLAN):
            self.remove(name)
        if self._lock is not None:
            self._lock.discard()

    def remove_if_empty(self) -> None:
        """Do nothing: an object store has no folders."""

    def remove_owned(self) -> None:
        """Remove the objects of the private folder, then all others, several at a time."""
        names = self.listing().owned()
        for is_private in (True, False):
            chosen = [name for name in names if name.startswith(f"{layout.PRIVATE}/") is is_private]
            for _ in concurrently(self.remove, chosen):
                pass

    def clean_tmp(self) -> None:
        """Remove the marker files of earlier runs on a cluster, and end unfinished uploads, which have no name."""
        self._check()
        self.path.end_uploads(layout.is_owned)
        for name in (self.path / layout.TMP).find():
            self.remove(f"{layout.TMP}/{name}")

    def listing(self) -> ObjectListing:
        """List all objects."""
        return ObjectListing(self.path.find())

    def info(self, name: str) -> FileInfo | None:
        """Describe an object."""
        try:
            return _file_info((self.path / name).info())
        except FileNotFoundError:
            return None

    def entries(self, place: str) -> list[str]:
        """Return the names of the objects and folders below."""
        return _first_parts((self.path / place).find())

    def read(self, name: str, *, follow_links: bool = False) -> bytes:  # noqa: ARG002
        """Return a small object."""
        return (self.path / name).read_bytes()

    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | OSError]]:
        """Yield small objects that a listing finds; several are read at a time."""
        wanted = list(names)
        there: set[str] = set()
        for place in dict.fromkeys(name.rpartition("/")[0] for name in wanted):
            there |= {f"{place}/{name}" for name in (self.path / place).find()}
        chosen = [name for name in wanted if name in there]
        yield from zip(chosen, concurrently(self.read, chosen), strict=True)

    def digest(self, name: str) -> str:
        """Return the xxh3-128 of an object, which is read whole, a few MB at a time."""
        hasher = xxhash.xxh3_128()
        with (self.path / name).open() as file:
            while chunk := file.read(_CHUNK_BYTES):
                hasher.update(chunk)
        return hasher.hexdigest()

    def write(self, name: str, data: bytes, kind: str) -> None:
        """Write or replace an object."""
        step(f"{kind}.written")
        self._check()
        (self.path / name).write_bytes(data)
        step(f"{kind}.durable")

    def commit(self, name: str, data: bytes, kind: str, is_as_good: Callable[[bytes], bool] | None = None) -> bytes:
        """Write an object that must be new, or as good as this one."""
        step(f"{kind}.written")
        self._check()
        try:
            (self.path / name).create_bytes(data)
        except FileExistsError as error:
            data = self.read(name)
            if is_as_good is None or not is_as_good(data):
                raise self._taken_over(name) from error
        step(f"{kind}.durable")
        return data

    def write_part(self, name: str, stem: str, fill: Callable[[files.Sink], None]) -> tuple[int, str]:  # noqa: ARG002
        """Write a part to a temporary file without a name, and upload it."""
        with _spool() as (file, sink):
            fill(sink)
            step("part.written")
            sink.sync()
            try:
                (self.path / name).create_from(file, self._before_visible)
            except FileExistsError as error:
                if not self.is_whole(name, sink.n_bytes, sink.digest):
                    raise self._taken_over(name) from error
            step("part.durable")
            return sink.n_bytes, sink.digest

    def _before_visible(self) -> None:
        step("part.synced")
        self._check()

    def _taken_over(self, name: str) -> RunError:
        return RunError(
            f"{self.path / name}: written by another run meanwhile; make sure that no other run writes this store, "
            "then run the same command again"
        )

    def remove(self, name: str) -> None:
        """Remove an object."""
        self._check()
        (self.path / name).unlink()


@contextlib.contextmanager
def _spool() -> Iterator[tuple[IO[bytes], files.Sink]]:
    """Open a temporary file without a name, and a sink that writes it."""
    with files.write_errors(Path(os.environ.get("TMPDIR", "/tmp")) / "a temporary file"):
        place = tempfile.gettempdir()
    with contextlib.ExitStack() as stack:
        # Entered first, to cover errors when the two are closed.
        stack.enter_context(files.write_errors(Path(place) / "a temporary file"))
        file = stack.enter_context(tempfile.TemporaryFile(buffering=0))
        sink = stack.enter_context(contextlib.closing(files.Sink(os.dup(file.fileno()))))
        stack.enter_context(files.write_errors(Path(place) / "a temporary file", sink))
        yield file, sink


def _first_parts(names: Iterable[str]) -> list[str]:
    return sorted({name.partition("/")[0] for name in names})


def _file_info(info: ObjectInfo) -> FileInfo:
    return FileInfo(info.n_bytes, xxhash.xxh3_64_intdigest(info.version.encode()) >> 1)
