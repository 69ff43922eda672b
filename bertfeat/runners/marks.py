"""Marker files that all workers of a run see, each created by only one of them: in a folder, or in an object store."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from bertfeat.durable.files import write_errors
from bertfeat.storage import AnyPath


class Marks:
    """The marker files of a run, by name, in a folder, which must exist, or below a URL.

    Raises:
        RunError: From each method: the system or the object store refused.
    """

    def __init__(self, folder: AnyPath) -> None:
        self._folder = folder

    def create(self, name: str) -> bool:
        """Create a marker file; return False if it exists."""
        mark = self._folder / name
        with write_errors(mark), suppress(FileExistsError):
            if isinstance(mark, Path):
                mark.touch(exist_ok=False)
            else:
                # If two objects had the same content, the second would count as a repeated request for the first.
                mark.create_bytes(f"\n{secrets.token_hex(8)}".encode())
            return True
        return False

    def exists(self, name: str) -> bool:
        """Return whether a marker file exists."""
        mark = self._folder / name
        with write_errors(mark):
            return mark.is_file()

    def remove(self, name: str) -> None:
        """Remove a marker file, if it exists."""
        mark = self._folder / name
        with write_errors(mark), suppress(FileNotFoundError):
            mark.unlink()

    def write(self, name: str, text: str) -> None:
        """Put a text into a marker file, unless the end of the run has removed the file."""
        mark = self._folder / name
        data = f"{text}\n".encode()
        with write_errors(mark), suppress(FileNotFoundError):
            if isinstance(mark, Path):
                with mark.open("r+b") as file:
                    file.write(data)
            elif mark.is_file():
                mark.write_bytes(data)

    def read(self, name: str) -> str:
        """Return the text of a marker file; empty if there is no text or no file."""
        mark = self._folder / name
        with write_errors(mark), suppress(FileNotFoundError):
            return mark.read_bytes().decode().rpartition("\n")[0]
        return ""
