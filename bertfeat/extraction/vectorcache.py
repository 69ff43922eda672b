"""A cache of vectors in one folder, by key: safe with several processes and kills."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bertfeat.durable.filelock import ALONE_AFTER_OTHERS, lock
from bertfeat.durable.files import make_parents, os_errors
from bertfeat.errors import BertfeatError, RunError, UserError
from bertfeat.records import Float32Array
from bertfeat.storage import local_path

# Written into the file, so that another layout is never misread.
_VERSION = 1
# SQLite takes at least this many parameters in one statement.
_KEYS_AT_ONCE = 500
_TIMEOUT_S = 60.0


class VectorCache:
    """Float32 vectors by key, in an SQLite file in write-ahead mode; nothing is ever removed from it.

    Readers and one writer work at the same time. What a killed process had not committed is not there afterwards. The
    folder must be on a local disk, because SQLite's write-ahead mode does not work over a network. An object serves one
    thread, and is closed at the end.

    Args:
        folder: The folder, which is made if it is missing.

    Raises:
        UserError: The folder cannot be used, or its file is not a cache of this version, or is damaged.
        RunError: The system refused.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = local_path(folder, "a cache") / "vectors.sqlite3"
        make_parents(self._path)
        with self._one_line(UserError):
            self._database = sqlite3.connect(self._path, timeout=_TIMEOUT_S)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        with self._one_line():
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                with self.alone():
                    # In the usual pages of 4 KB, vectors of 1.5 KB would leave a quarter empty.
                    self._database.execute("PRAGMA page_size = 32768")
                    self._database.execute("PRAGMA journal_mode = WAL")
                    self._database.execute(
                        "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL)"
                    )
                    self._database.execute(f"PRAGMA user_version = {_VERSION}")
            elif version != _VERSION:
                raise UserError(
                    f"{self._path}: has version {version}, expected {_VERSION}; choose another cache folder"
                )
            # A power failure may lose the last commits, which are then encoded again, but damages nothing.
            self._database.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other threads and processes out of the block; wait for one that is in it. A kill lets the next in."""
        descriptor = _locked(self._path.with_name("lock"))
        try:
            yield
        finally:
            os.close(descriptor)

    def get(self, keys: Sequence[bytes], dim: int) -> dict[bytes, Float32Array]:
        """Return the vectors that are there, (dim,) each, by key.

        Raises:
            UserError: A vector has another width, or the file is damaged.
        """
        found: dict[bytes, Float32Array] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            marks = ",".join("?" * len(some))
            with self._one_line():
                for key, vector in self._database.execute(
                    f"SELECT key, vector FROM vectors WHERE key IN ({marks})", some
                ):
                    if len(vector) != 4 * dim:
                        raise self._damaged(f"a vector has {len(vector)} bytes, not {4 * dim}")
                    found[key] = np.frombuffer(vector, "<f4")
        return found

    def put(self, vectors: Mapping[bytes, Float32Array]) -> None:
        """Add vectors, all or none; those whose keys are there stay as they are.

        Raises:
            RunError: The system refused.
        """
        rows = [(key, np.ascontiguousarray(vector, "<f4").tobytes()) for key, vector in vectors.items()]
        with self._one_line(), self._database:
            self._database.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)

    @contextlib.contextmanager
    def _one_line(self, kind: type[BertfeatError] = RunError) -> Iterator[None]:
        """Turn an error of SQLite into one line, an error of type `kind` unless the file is damaged."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise kind(f"{self._path}: {error}; free space, or choose another cache folder") from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, reason: str) -> UserError:
        return UserError(f"{self._path}: is not a cache of vectors, or is damaged ({reason}); delete its folder")


@os_errors(RunError)
def _locked(path: Path) -> int:
    return lock(path, os.O_RDWR | os.O_CREAT, ALONE_AFTER_OTHERS)
