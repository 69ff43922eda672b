"""Cache of vectors in one SQLite file: values by key, up to a size, for processes that may share it and be killed."""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import xxhash

from bertfeat.display import printable
from bertfeat.durable.files import make_parents
from bertfeat.durable.steps import step
from bertfeat.errors import RunError, UserError
from bertfeat.storage import AnyPath, local_path

#: The number is that of the layout, so that none is misread.
FILE = "vectors-1.sqlite3"
# In SQLite's usual pages of 4 KB, vectors of 1.5 KB would leave a quarter empty.
_PAGE_BYTES = 8192
# A power failure may lose the last commits of this mode, but damages nothing. No number is given twice.
_PREPARATION = (
    f"PRAGMA page_size = {_PAGE_BYTES}",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    """CREATE TABLE IF NOT EXISTS vectors
    (number INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE, digest BLOB, value BLOB)""",
    "CREATE TABLE IF NOT EXISTS runs (name TEXT PRIMARY KEY, before INTEGER)",
)


class VectorCache(contextlib.AbstractContextManager["VectorCache"]):
    """Values by key in a file in a local `folder`; the oldest make room, so that it keeps `max_bytes`.

    Readers and one writer work at the same time, and what a killed process had not committed is not there. An object
    serves one thread, in a `with` block. A value of more than a quarter of the size, or of 500 MB, is not kept.
    """

    def __init__(self, folder: str | Path, max_bytes: int, store: AnyPath | None = None) -> None:
        place = local_path(folder, "a cache")
        if isinstance(store, Path) and place.resolve().is_relative_to(store.resolve()):
            raise UserError(f"{place}: is inside the store {store}; choose another cache folder")
        self._path, self._max_bytes = place / FILE, max_bytes
        make_parents(self._path)
        if not place.is_dir():
            raise UserError(f"{place}: not a folder; choose another cache folder")
        try:
            # After each second of waiting for a writer, Ctrl-C is noticed.
            self._database = sqlite3.connect(self._path, timeout=1, isolation_level=None)
        except sqlite3.Error as error:
            raise self._refused(error) from error
        # A damaged value that claims to be text is bytes, too.
        self._database.text_factory = bytes
        try:
            for statement in _PREPARATION:
                self._run(statement)
        except BaseException:
            self._database.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def begin(self, run: str, *, is_new: bool) -> int:
        """Return the number below which a run reads: of what was there when it began, also after it was killed."""
        with self._writing():
            if is_new:
                self._run("DELETE FROM runs WHERE name = ?", run)
            now = self._number("SELECT coalesce(max(number), 0) + 1 FROM vectors")
            self._run("INSERT OR IGNORE INTO runs VALUES (?, ?)", run, now)
            return self._number("SELECT before FROM runs WHERE name = ?", run)

    def get(self, keys: Iterable[bytes], before: int = sys.maxsize) -> dict[bytes, bytes]:
        """Return the values that are there; a damaged one is removed."""
        found: dict[bytes, bytes] = {}
        for key in keys:
            statement = "SELECT number, digest, value FROM vectors WHERE key = ? AND number < ?"
            for number, digest, value in self._run(statement, key, before):
                if isinstance(value, bytes) and digest == _digest(key, value):
                    found[key] = value
                else:
                    self._run("DELETE FROM vectors WHERE number = ?", number)
        return found

    def put(self, values: Iterable[tuple[bytes, bytes]]) -> None:
        """Add values in one transaction; those whose keys are there stay as they are."""
        with self._writing():
            for key, value in values:
                # SQLite takes values of up to a billion bytes.
                is_large = len(value) > min(self._max_bytes // 4, 500_000_000)
                if is_large or self._run("SELECT 1 FROM vectors WHERE key = ?", key):
                    continue
                # With the pages that an entry may take beside its value.
                most = (self._max_bytes - len(value)) // _PAGE_BYTES - 4
                while self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count") > most:
                    self._run("DELETE FROM vectors WHERE number = (SELECT min(number) FROM vectors)")
                    if not self._number("SELECT changes()"):
                        break
                self._run("INSERT INTO vectors (key, digest, value) VALUES (?, ?, ?)", key, _digest(key, value), value)
            step("vectors.written")
        step("vectors.committed")

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Run the block when no other process is in such a block; values may be read and put by others meanwhile."""
        with self._path.with_name("turn.lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Run the block in one transaction; wait for other writers, however long they take."""
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        finally:
            if self._database.in_transaction:
                self._run("ROLLBACK")

    def _number(self, statement: str, *values: object) -> int:
        return int(self._run(statement, *values)[0][0])

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        while True:
            try:
                return self._database.execute(statement, values).fetchall()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                    raise self._refused(error) from error

    def _refused(self, error: Exception) -> RunError:
        # The message about a damaged file may quote it.
        said = printable(str(error))[:200]
        return RunError(f"{self._path}: {said}; free space, delete the file, or choose another folder")


def _digest(key: bytes, value: bytes) -> bytes:
    return xxhash.xxh3_128_digest(value, seed=int.from_bytes(key[:8]))
