"""The SQLite file of a cache of vectors: its tables, its transactions, and its errors in one line."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from bertfeat.display import printable
from bertfeat.durable.filelock import ALONE_AFTER_OTHERS, lock
from bertfeat.durable.files import make_parents, os_errors
from bertfeat.errors import BertfeatError, RunError, UserError
from bertfeat.storage import local_path

FILE = "vectors.sqlite3"
# Bytes. In the usual pages of 4 KB, vectors of 1.5 KB would leave a quarter empty.
PAGE_BYTES = 8192
# Written into the file, so that another layout is never misread.
_VERSION = 2
_TIMEOUT_S = 60.0
# The log beside the file keeps this size after larger transactions.
_LOG_BYTES = 64_000_000
# `number` counts all entries that ever were. `used` is the number that the next entry had when one was last read, so
# that no clock decides what is oldest.
_SCHEMA = """
CREATE TABLE entries (number INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, digest BLOB NOT NULL,
    used INTEGER NOT NULL);
CREATE INDEX by_use ON entries (used);
CREATE TABLE vectors (number INTEGER PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE runs (token TEXT PRIMARY KEY, name TEXT NOT NULL, before INTEGER NOT NULL);
"""
# Errors of the system, not of the file.
_REFUSALS = {
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY),
    *(sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_PROTOCOL),
}


class VectorDatabase:
    """An SQLite file in write-ahead mode: readers and one writer work at the same time.

    What a killed process had not committed is not there afterwards. The folder must be on a local disk, because
    SQLite's write-ahead mode does not work over a network. An object serves one thread, and is closed at the end.

    Args:
        folder: The folder of the file, which is made if it is missing.

    Raises:
        UserError: The folder cannot be used, or its file is not a cache of this version, or is damaged.
        RunError: The system refused.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = local_path(folder, "a cache") / FILE
        make_parents(self._path)
        with self._one_line(UserError):
            # Transactions are begun and committed below.
            self._database = sqlite3.connect(self._path, timeout=_TIMEOUT_S, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        with self._one_line(UserError):
            # The file may have been made by others: nothing in its schema is run, and sizes in it are not trusted.
            self._run("PRAGMA trusted_schema = OFF")
            self._run("PRAGMA cell_size_check = ON")
            if self._pragma("user_version") == 0:
                with self.alone():
                    self._create()
            version = self._pragma("user_version")
            if version != _VERSION:
                raise UserError(
                    f"{self._path}: has version {version}, expected {_VERSION}; choose another cache folder"
                )
            # A power failure may lose the last commits, which are then encoded again, but damages nothing.
            self._run("PRAGMA synchronous = NORMAL")
            self._run(f"PRAGMA journal_size_limit = {_LOG_BYTES}")

    def _create(self) -> None:
        """Make the tables, unless another process has just done so."""
        if self._pragma("user_version") != 0:
            return
        if self._run("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            raise self._damaged("it holds other tables")
        self._run(f"PRAGMA page_size = {PAGE_BYTES}")
        # So that a smaller size that is asked for later takes effect.
        self._run("PRAGMA auto_vacuum = INCREMENTAL")
        self._run("PRAGMA journal_mode = WAL")
        with self._transaction():
            for statement in _SCHEMA.split(";"):
                self._run(statement)
            self._run(f"PRAGMA user_version = {_VERSION}")

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other threads and processes out of the block; wait for one that is in it. A kill lets the next in."""
        with _held(self._path.with_name("lock")):
            yield

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._database.execute(statement, values)

    def _pragma(self, name: str) -> int:
        return int(self._run(f"PRAGMA {name}").fetchone()[0])

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Write the block in one transaction; wait for other writers, however long they take."""
        with _held(self._path.with_name("writing")), self._one_line(), self._transaction():
            yield

    def _cut_to(self, max_bytes: int) -> None:
        """Give free pages back to the system while the file is larger."""
        with _held(self._path.with_name("writing")), self._one_line():
            n_beyond = self._pragma("page_count") - max_bytes // self._pragma("page_size")
            if n_beyond > 0:
                # `execute` would take the first step only, which frees one page.
                self._database.executescript(f"PRAGMA incremental_vacuum({n_beyond})")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            # SQLite ends a transaction itself where the disk is full.
            if self._database.in_transaction:
                self._run("ROLLBACK")
            raise
        self._run("COMMIT")

    @contextlib.contextmanager
    def _one_line(self, kind: type[BertfeatError] = RunError) -> Iterator[None]:
        """Turn an error of SQLite into one line, an error of type `kind` unless the file is damaged."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            # A message about a damaged file may quote it, in bytes that are not UTF-8 or that end the line.
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _REFUSALS:
                raise kind(f"{self._path}: {error}; free space, or choose another cache folder") from error
            raise self._damaged(printable(str(error))[:200]) from error

    def _damaged(self, reason: str) -> UserError:
        return UserError(f"{self._path}: is not a cache of vectors, or is damaged ({reason}); delete its folder")


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    descriptor = _locked(path)
    try:
        yield
    finally:
        os.close(descriptor)


@os_errors(RunError)
def _locked(path: Path) -> int:
    return lock(path, os.O_RDWR | os.O_CREAT, ALONE_AFTER_OTHERS)
