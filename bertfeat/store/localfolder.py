"""Store folder on a file system: files are written under a temporary name, synced, and then renamed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from bertfeat.choices import Level
from bertfeat.durable import files
from bertfeat.durable.publication import publish_bytes, publish_file, unfinished
from bertfeat.durable.steps import step
from bertfeat.errors import StoreError
from bertfeat.store import layout
from bertfeat.store.folder import Contents, FileInfo, Folder, Listing
from bertfeat.store.lock import StoreLock


class LocalFolder(Folder):
    """A folder on a file system; its listing always shows the present state."""

    replaces_parts: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        # The folders that `create` made, innermost first.
        self._created: list[Path] = []

    def contents(self) -> Contents:
        """Describe what exists here."""
        root = self.path
        if not os.path.lexists(root):
            return Contents(has_private=False, foreign=(), links=(), entries=())
        if root.is_symlink() or not root.is_dir():
            raise StoreError(f"{root}: not a folder ({files.kind_of(root)}); choose another `output`")
        foreign = list(layout.foreign_entries(root))
        links = [name for name in foreign if (root / name).is_symlink()]
        return Contents((root / layout.PRIVATE).is_dir(), foreign, links, self.entries("."))

    def create(self) -> None:
        """Create the folder, missing parents and its private folder."""
        self._created = files.make_parents(self.path)
        try:
            if files.make_folder(self.path):
                self._created.insert(0, self.path)
            files.make_folder(self.path / layout.PRIVATE)
        except BaseException:
            self.remove_if_empty()
            raise

    def lock(self) -> StoreLock:
        """Take the kernel's lock."""
        return StoreLock(self.path)

    def prepare(self, levels: tuple[Level, ...]) -> None:
        """Create the folders inside."""
        for name in layout.folders(levels):
            files.make_folder(self.path / name)

    def discard(self, levels: tuple[Level, ...]) -> None:
        """Remove everything that opening a store has made."""
        self.clean_tmp()
        for name in (layout.MANIFEST, layout.PLAN, layout.IDS, layout.LOCK):
            (self.path / name).unlink(missing_ok=True)
        files.remove_empty([*(self.path / name for name in reversed(layout.folders(levels))), *self._created])

    def remove_if_empty(self) -> None:
        """Remove the folders that `create` made."""
        files.remove_empty([self.path / layout.PRIVATE, *self._created])

    def remove_owned(self) -> None:
        """Remove the files in the order of their names: the private folder comes before the levels."""
        for name in self.owned():
            (self.path / name).unlink()
        for level in Level:
            if (self.path / level).is_dir():
                (self.path / level).rmdir()

    def clean_tmp(self) -> None:
        """Remove the unfinished files of processes that died."""
        with files.write_errors(self.path / layout.TMP):
            for file in layout.entries_of(self.path / layout.TMP):
                Path(file.path).unlink(missing_ok=True)

    def listing(self) -> Listing:
        """Return the folder itself."""
        return self

    def owned(self) -> list[str]:
        """Return the parts, receipts and quarantine files."""
        return layout.owned_files(self.path)

    def info(self, name: str) -> FileInfo | None:
        """Describe a file by its size and modification time (ns); a symbolic link is not followed."""
        path = self.path / name
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        oddity = None if stat.S_ISREG(status.st_mode) else files.kind_of(path)
        return FileInfo(status.st_size, status.st_mtime_ns, oddity)

    def entries(self, place: str) -> list[str]:
        """Return the names of all entries of a folder."""
        return [entry.name for entry in layout.entries_of(self.path / place)]

    def read(self, name: str, *, follow_links: bool = False) -> bytes:
        """Return a small file."""
        return files.read_small(self.path / name, follow_links=follow_links)

    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | OSError]]:
        """Yield small files; each is read when it is asked for."""
        for name in names:
            try:
                yield name, self.read(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield name, error

    def digest(self, name: str) -> str:
        """Return the xxh3-128 of a file."""
        return files.digest_of(self.path / name)

    def write(self, name: str, data: bytes, kind: str) -> None:
        """Write a small file whole."""
        publish_bytes(self.path / name, data, kind=kind, aside=self._aside(kind))

    def commit(self, name: str, data: bytes, kind: str, is_as_good: Callable[[bytes], bool] | None = None) -> bytes:  # noqa: ARG002
        """Write a small file whole; it replaces what an interrupted commit of the same plan left."""
        self.write(name, data, kind)
        return data

    def write_part(self, name: str, stem: str, fill: Callable[[files.Sink], None]) -> tuple[int, str]:
        """Publish a part.

        A different part in its place is replaced: it has no receipt, so an interrupted or damaged commit left it.
        """

        def place(new: Path, final: Path) -> None:
            if not files.link_exclusive(new, final) and not self.is_whole(name, sink.n_bytes, sink.digest):
                new.replace(final)
            step("part.linked")
            new.unlink(missing_ok=True)

        with publish_file(self.path / name, kind="part", aside=self._aside(stem), place=place) as sink:
            fill(sink)
        return sink.n_bytes, sink.digest

    def _aside(self, stem: str) -> Path:
        """Return a new name for an unfinished file of the store."""
        return unfinished(self.path / layout.TMP / stem)

    def remove(self, name: str) -> None:
        """Remove a file, and wait until its name is gone from the disk."""
        files.unlink_durably(self.path / name)
