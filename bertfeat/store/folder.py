"""The folder that a store lies in: the few operations on files that writing, checking and mending a store need.

A store's code says what has to happen in which order; how a file comes to stand whole, how a second writer is kept
out, and what can be listed differs between a file system and an object store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

from bertfeat.config import Level
from bertfeat.durable.files import Sink
from bertfeat.storage import AnyPath


class Found(StrEnum):
    """What stands at the place of an output."""

    NOTHING = "nothing"
    EMPTY = "empty"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a folder holds: whether there is a store's private folder, what is no piece of a store, symbolic links."""

    found: Found
    has_private: bool
    foreign: list[str]
    links: list[str]
    entries: list[str]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file's size, a number that differs when it was written anew, and what it is if it is no regular file."""

    n_bytes: int
    stamp: int
    oddity: str | None = None


class Listing(Protocol):
    """What is known of the files of a folder, perhaps as of the moment when it was asked for."""

    def info(self, name: str) -> FileInfo | None:
        """Describe a file; None when there is none."""

    def owned(self) -> list[str]:
        """Return the parts, receipts and quarantine files, sorted."""


class Lease(Protocol):
    """The right to write a store, as far as it can be lost; it pickles, for worker processes."""

    def check(self) -> None:
        """Raise RunError when another process has taken the store over."""


class Lock(Protocol):
    """The right to write a store, for one process at a time."""

    def release(self) -> None:
        """Let another process write."""


class Folder(ABC):
    """A store's folder; names are relative to it, with forward slashes.

    Attributes:
        path: Where it is.
        replaces_parts: Whether a commit may replace a part that no receipt vouches for. Where it may not, such parts
            are removed when the store is opened for writing.
        lease: What is looked at before anything is written, where the right to write can be lost; None elsewhere.
    """

    path: AnyPath
    lease: Lease | None = None
    replaces_parts: ClassVar[bool]

    @abstractmethod
    def contents(self) -> Contents:
        """Say what stands here, before anything is written.

        Raises:
            StoreError: It is no folder.
        """

    @abstractmethod
    def create(self) -> None:
        """Create the folder, missing parents and its private folder, unless they are there."""

    @abstractmethod
    def lock(self) -> Lock:
        """Take the lock.

        Raises:
            StoreError: Another process holds it.
        """

    @abstractmethod
    def prepare(self, levels: tuple[Level, ...]) -> None:
        """Create the folders inside."""

    @abstractmethod
    def discard(self, levels: tuple[Level, ...]) -> None:
        """Remove what opening a store has made, the lock and the folders that `create` made included."""

    @abstractmethod
    def remove_if_empty(self) -> None:
        """Remove the folders that `create` made, as far as nothing is in them."""

    @abstractmethod
    def remove_each(self, names: Sequence[str]) -> None:
        """Remove files without waiting for the disk, those in the private folder before all others."""

    @abstractmethod
    def remove_levels(self) -> None:
        """Remove the levels' folders, which are empty."""

    @abstractmethod
    def clean_tmp(self) -> None:
        """Remove the unfinished files of processes that died."""

    @abstractmethod
    def listing(self) -> Listing:
        """Return what is known of all files."""

    @abstractmethod
    def info(self, name: str) -> FileInfo | None:
        """Describe a file; None when there is none."""

    @abstractmethod
    def entries(self, place: str) -> list[str]:
        """Return the names of all that lies in a folder inside, sorted; none when it is not there."""

    @abstractmethod
    def read(self, name: str, *, follow_links: bool = False) -> bytes:
        """Return a small file.

        Raises:
            FileNotFoundError: There is none.
            OSError: It is no regular file, or cannot be read.
        """

    @abstractmethod
    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | OSError]]:
        """Yield small files with their names, in order, those that are not there left out; or why one is unreadable."""

    @abstractmethod
    def digest(self, name: str) -> str:
        """Return the xxh3-128 of a file, hex."""

    @abstractmethod
    def write(self, name: str, data: bytes, kind: str) -> str:
        """Write a small file whole, replacing one that is there, and return its digest; for the holder of the lock.

        Args:
            name: The file.
            data: Its content.
            kind: What it is, the first half of the names of its steps.

        Raises:
            RunError: The system refused.
        """

    @abstractmethod
    def commit(self, name: str, data: bytes, kind: str, is_as_good: Callable[[bytes], bool] | None = None) -> bytes:
        """Write a small file that a shard's commit makes, and return what then stands there; needs no lock.

        Args:
            name: The file.
            data: Its content.
            kind: What it is, the first half of the names of its steps.
            is_as_good: Says of other content whether it may stay; none may by default.

        Raises:
            RunError: The system refused, or another run has written it.
        """

    @abstractmethod
    def write_part(self, name: str, stem: str, fill: Callable[[Sink], None]) -> tuple[int, str]:
        """Write a part whole, and return its size and digest; needs no lock. An identical one that stands is kept.

        Args:
            name: The file.
            stem: A beginning for the names of unfinished files.
            fill: Writes the content.

        Raises:
            RunError: The system refused, or another run has written another part.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there, for good."""

    def is_whole(self, name: str, n_bytes: int, digest: str) -> bool:
        """Say whether a file has this size and digest (the size first, which costs nothing)."""
        try:
            found = self.info(name)
            return found is not None and found.n_bytes == n_bytes and self.digest(name) == digest
        except OSError:
            return False
