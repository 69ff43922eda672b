"""Small files that all workers of a run see, each created by one of them alone: in a folder, or in an object store."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from bertfeat.durable.files import write_errors
from bertfeat.storage import AnyPath, ObjectPath


class Marks(Protocol):
    """The marks of a run, by name; all methods raise RunError when the system or the object store refuses."""

    def create(self, name: str) -> bool:
        """Create a mark; return False when there is one."""

    def exists(self, name: str) -> bool:
        """Tell whether there is a mark."""

    def remove(self, name: str) -> None:
        """Remove a mark, if it is there."""

    def write(self, name: str, text: str) -> None:
        """Put a text into a mark; do nothing if it is gone because its run has ended."""

    def read(self, name: str) -> str:
        """Return the text in a mark; empty without a text or without a mark."""


def marks_in(folder: AnyPath) -> Marks:
    """Return the marks in a folder, which must exist, or below a URL."""
    return _ObjectMarks(folder) if isinstance(folder, ObjectPath) else _FileMarks(folder)


class _FileMarks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self, name: str) -> bool:
        with write_errors(self._folder / name), suppress(FileExistsError):
            os.close(os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
            return True
        return False

    def exists(self, name: str) -> bool:
        with write_errors(self._folder / name):
            return (self._folder / name).exists()

    def remove(self, name: str) -> None:
        with write_errors(self._folder / name):
            (self._folder / name).unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        with (
            write_errors(self._folder / name),
            suppress(FileNotFoundError),
            (self._folder / name).open("r+", encoding="utf-8") as file,
        ):
            file.write(text)

    def read(self, name: str) -> str:
        with write_errors(self._folder / name), suppress(FileNotFoundError):
            return (self._folder / name).read_text(encoding="utf-8")
        return ""


class _ObjectMarks:
    def __init__(self, folder: ObjectPath) -> None:
        self._folder = folder

    def create(self, name: str) -> bool:
        try:
            # Of two objects with one content, the second would count as the first one's, sent again.
            (self._folder / name).create_bytes(f"\n{secrets.token_hex(8)}".encode())
        except FileExistsError:
            return False
        return True

    def exists(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def remove(self, name: str) -> None:
        (self._folder / name).unlink()

    def write(self, name: str, text: str) -> None:
        if self.exists(name):
            (self._folder / name).write_bytes(f"{text}\n".encode())

    def read(self, name: str) -> str:
        with suppress(FileNotFoundError):
            return (self._folder / name).read_bytes().decode().rpartition("\n")[0]
        return ""
