"""Interface to the folder of a store: the few file operations that writing, checking and repairing need.

The code of the store decides which operations happen in which order. File systems and object stores differ in how a
file is published whole, how a second writer is kept out, and what can be listed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from bertfeat.choices import Level
from bertfeat.durable.files import Sink
from bertfeat.storage import AnyPath


@dataclass(frozen=True, slots=True)
class Contents:
    """What a folder holds: whether there is a store's private folder, files of others, symbolic links, all entries."""

    has_private: bool
    foreign: Sequence[str]
    links: Sequence[str]
    entries: Sequence[str]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file's size, a number that changes when the file is written again, and its kind if it is not a regular file."""

    n_bytes: int
    stamp: int
    oddity: str | None = None


class Listing(Protocol):
    """The files of a folder, now or at the time of the listing."""

    def info(self, name: str) -> FileInfo | None:
        """Describe a file; None if there is no such file."""

    def owned(self) -> list[str]:
        """Return the parts, receipts and quarantine files, sorted."""


class Lease(Protocol):
    """The right to write a store where that right can be lost; it pickles, for worker processes."""

    def check(self) -> None:
        """Raise RunError if another process has taken the store over."""


class Lock(Protocol):
    """The right to write a store, for one process at a time."""

    def release(self) -> None:
        """Let another process write."""


class Folder(ABC):
    """A store's folder; names are relative to it, with forward slashes.

    Attributes:
        path: Where it is.
        replaces_parts: Whether a commit may replace a part without a receipt. Where it may not, opening the store for
            writing removes such parts.
        lease: Checked before each write where the right to write can be lost; None elsewhere.

    Raises:
        RunError: From each method that writes or removes: the system refused, or another run has taken the store over.
    """

    path: AnyPath
    lease: Lease | None = None
    replaces_parts: ClassVar[bool]

    @abstractmethod
    def contents(self) -> Contents:
        """Describe what exists here before a run; raise StoreError if the path is not a folder."""

    @abstractmethod
    def create(self) -> None:
        """Create the folder, missing parents and its private folder, unless they exist."""

    @abstractmethod
    def lock(self) -> Lock:
        """Take the lock; raise StoreError if another process holds it."""

    @abstractmethod
    def prepare(self, levels: tuple[Level, ...]) -> None:
        """Create the folders inside."""

    @abstractmethod
    def discard(self, levels: tuple[Level, ...]) -> None:
        """Remove everything that opening a store has made, with the lock and the folders that `create` made."""

    @abstractmethod
    def remove_if_empty(self) -> None:
        """Remove the folders that `create` made, as far as they are empty."""

    @abstractmethod
    def remove_owned(self) -> None:
        """Remove receipts and quarantine files, then parts, then the levels' folders; does not wait for the disk."""

    @abstractmethod
    def clean_tmp(self) -> None:
        """Remove the unfinished files of processes that died."""

    @abstractmethod
    def listing(self) -> Listing:
        """List all files."""

    @abstractmethod
    def info(self, name: str) -> FileInfo | None:
        """Describe a file; None if there is no such file."""

    @abstractmethod
    def entries(self, place: str) -> list[str]:
        """Return the names of all entries of a folder inside, sorted; none if there is no such folder."""

    @abstractmethod
    def read(self, name: str, *, follow_links: bool = False) -> bytes:
        """Return a small file.

        Raises:
            FileNotFoundError: There is no such file.
            OSError: The file is not a regular one, or cannot be read.
        """

    @abstractmethod
    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | OSError]]:
        """Yield the small files that exist, in order: each name with the content or the error."""

    @abstractmethod
    def digest(self, name: str) -> str:
        """Return the xxh3-128 of a file, hex."""

    @abstractmethod
    def write(self, name: str, data: bytes, kind: str) -> None:
        """Write or replace a small file whole; for the holder of the lock. `kind` begins the names of its steps."""

    @abstractmethod
    def commit(self, name: str, data: bytes, kind: str, is_as_good: Callable[[bytes], bool] | None = None) -> bytes:
        """Write a small file of a shard's commit, and return the content that then exists; needs no lock.

        `is_as_good` decides whether other content may stay; by default it may not.
        """

    @abstractmethod
    def write_part(self, name: str, stem: str, fill: Callable[[Sink], None]) -> tuple[int, str]:
        """Write a part whole, and return its size and digest; needs no lock. An identical part is kept.

        `fill` writes the content; `stem` begins the names of unfinished files.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file durably, if it exists."""

    def is_whole(self, name: str, n_bytes: int, digest: str) -> bool:
        """Return whether a file has this size and digest; the size is checked first, since that is cheap."""
        try:
            found = self.info(name)
            return found is not None and found.n_bytes == n_bytes and self.digest(name) == digest
        except OSError:
            return False
