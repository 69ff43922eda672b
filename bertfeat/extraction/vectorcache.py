"""A cache of vectors in one folder, by key: bounded in size, and safe with several processes and kills."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import xxhash

from bertfeat.durable.steps import step
from bertfeat.errors import UserError
from bertfeat.extraction.vectordatabase import FILE, PAGE_BYTES, VectorDatabase
from bertfeat.storage import AnyPath, local_path

# SQLite takes at least this many parameters in one statement.
_KEYS_AT_ONCE = 500
# What an entry takes beside its value: its key, digest and numbers, twice in an index.
_ENTRY_BYTES = 256
# One transaction; the log beside the file holds a few of them. Smaller and larger ones take longer.
_MAX_BATCH_BYTES = 4_000_000
# SQLite takes values of up to a billion bytes.
_MAX_VALUE_BYTES = 500_000_000
_MAX_RUNS = 10_000

Value = bytes | memoryview


class VectorCache(VectorDatabase):
    """Vectors as bytes by key; those that were not used for longest make room for others.

    Each value has a digest, which is checked when it is read. See `VectorDatabase` for processes and kills.

    Args:
        folder: The folder, which is made if it is missing.
        max_bytes: The largest size of the file. A value of more than a quarter of it, or of 500 MB, is not kept.

    Raises:
        UserError: The folder cannot be used, or its file is not a cache of this version, or is damaged.
        RunError: The system refused.
    """

    def __init__(self, folder: str | Path, max_bytes: int) -> None:
        super().__init__(folder)
        self._max_bytes = max_bytes

    def begin(self, name: str, *, is_new: bool) -> str:
        """Return the token of a run, which reads only what was there when the run began, also after it was killed.

        Args:
            name: The name of the run, the same when it is resumed.
            is_new: Forget an earlier run of the name.
        """
        with self._writing():
            self._make_room(0)
            if is_new:
                self._run("DELETE FROM runs WHERE name = ?", name)
            found = self._run("SELECT token FROM runs WHERE name = ?", name).fetchone()
            token = str(found[0]) if found else uuid.uuid4().hex
            if not found:
                self._run("INSERT INTO runs VALUES (?, ?, ?)", token, name, self._next())
                self._run("DELETE FROM runs WHERE rowid <= (SELECT max(rowid) FROM runs) - ?", _MAX_RUNS)
        self._cut_to(self._max_bytes)
        return token

    def before(self, token: str) -> int:
        """Return the number that ends what a run may read; of a run that began on another machine, from now on."""
        with self._writing():
            self._run("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", token, token, self._next())
            found = self._run("SELECT before FROM runs WHERE token = ?", token).fetchone()
        if not isinstance(found[0], int):
            raise self._damaged("a run has no number")
        return found[0]

    def known(self, keys: Sequence[bytes], before: int = sys.maxsize, *, use: bool = False) -> set[bytes]:
        """Return those of some keys that are there, as `get` does; with `use`, they then count as used."""
        found: set[bytes] = set()
        for some, marks in _batches(keys):
            with self._one_line():
                statement = f"SELECT key, number, used FROM entries WHERE key IN ({marks}) AND number < ?"
                rows = self._run(statement, *some, before).fetchall()
            found |= {key for key, _, _ in rows}
            if use:
                self._mark([(number, since) for _, number, since in rows])
        return found.intersection(keys)

    def get(self, n_bytes: Mapping[bytes, int], before: int = sys.maxsize) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys that are there with their values, which then count as used.

        Args:
            n_bytes: The keys that are looked up, and the size that each value must have.
            before: Leave out what was added since `before` gave this number.

        Raises:
            UserError: A value has another size or another digest, or the file is damaged.
            RunError: The system refused.
        """
        for some, marks in _batches(list(n_bytes)):
            used = []
            with self._one_line():
                rows = self._run(
                    "SELECT key, digest, value, entries.number, used FROM entries LEFT JOIN vectors USING (number) "
                    f"WHERE key IN ({marks}) AND entries.number < ?",
                    *some,
                    before,
                )
                for key, digest, value, number, since in rows:
                    if not isinstance(value, bytes) or len(value) != n_bytes.get(key) or digest != _digest(key, value):
                        raise self._damaged("the digest of a vector does not match")
                    used.append((number, since))
                    yield key, value
            self._mark(used)

    def _mark(self, entries: Sequence[tuple[int, int]]) -> None:
        """Note that entries, given with their last use, are used now."""
        with self._one_line():
            now = self._next()
            stale = [number for number, since in entries if since != now]
        if stale:
            with self._writing():
                self._database.executemany("UPDATE entries SET used = ? WHERE number = ?", [(now, n) for n in stale])

    def put(self, values: Iterable[tuple[bytes, Value]]) -> None:
        """Add values, some at a time; those whose keys are there stay as they are.

        Raises:
            UserError: The file is damaged.
            RunError: The system refused.
        """
        most = min(self._max_bytes // 4, _MAX_VALUE_BYTES)
        batch: list[tuple[bytes, Value]] = []
        n_bytes = 0
        for key, value in values:
            if len(value) > most:
                continue
            batch.append((key, value))
            n_bytes += _size(value)
            if n_bytes > min(_MAX_BATCH_BYTES, most):
                self._put(batch, n_bytes)
                batch, n_bytes = [], 0
        if batch:
            self._put(batch, n_bytes)

    def _put(self, batch: Sequence[tuple[bytes, Value]], n_bytes: int) -> None:
        with self._writing():
            there = self.known([key for key, _ in batch])
            new = {key: value for key, value in batch if key not in there}
            self._make_room(n_bytes if new else 0)
            step("vectors.room")
            used = self._next()
            for key, value in new.items():
                number = self._run(
                    "INSERT INTO entries (key, digest, used) VALUES (?, ?, ?)", key, _digest(key, value), used
                ).lastrowid
                self._run("INSERT INTO vectors VALUES (?, ?)", number, value)
            step("vectors.written")
        step("vectors.committed")

    def _make_room(self, n_bytes: int) -> None:
        """Remove what was not used for longest until there is room for `n_bytes` more, or nothing is left."""
        page_bytes = self._pragma("page_size")
        while (excess := self._n_pages() * page_bytes + n_bytes - self._max_bytes) > 0:
            victims = []
            for number, size in self._run(
                "SELECT entries.number, length(value) FROM entries LEFT JOIN vectors USING (number) "
                "ORDER BY used, entries.number"
            ):
                victims.append((number,))
                excess -= (size or 0) + _ENTRY_BYTES
                if excess <= 0:
                    break
            if not victims:
                return
            for table in ("entries", "vectors"):
                self._database.executemany(f"DELETE FROM {table} WHERE number = ?", victims)

    def _n_pages(self) -> int:
        """Return the pages that hold something."""
        return self._pragma("page_count") - self._pragma("freelist_count")

    def _next(self) -> int:
        """Return the number that the next entry will have."""
        found = self._run("SELECT seq FROM sqlite_sequence WHERE name = 'entries'").fetchone()
        if found is not None and not isinstance(found[0], int):
            raise self._damaged("its entries are not numbered")
        return found[0] + 1 if found else 1


def has_cache(folder: str | Path) -> bool:
    """Return whether a folder holds a cache."""
    return os.path.lexists(local_path(folder, "a cache") / FILE)


def check_cache(folder: str | Path, max_bytes: int, store: AnyPath | None = None) -> None:
    """Check that a folder can be a cache for runs that write `store`, without making one.

    Raises:
        UserError: The place is not a local folder, is inside the store, cannot be written, or holds a cache of another
            version.
    """
    place = local_path(folder, "a cache")
    if isinstance(store, Path) and place.resolve().is_relative_to(store.resolve()):
        raise UserError(f"{place}: is inside the store {store}; choose another cache folder")
    if has_cache(folder):
        VectorCache(folder, max_bytes).close()
        return
    there = next(parent for parent in (place.absolute(), *place.absolute().parents) if os.path.lexists(parent))
    if not there.is_dir():
        raise UserError(f"{there}: not a folder; choose another cache folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{there}: cannot be written; choose another cache folder")


def _size(value: Value) -> int:
    """Return what an entry takes in the file at most: values share pages, or have some of their own."""
    return len(value) + min(len(value), 2 * PAGE_BYTES) + _ENTRY_BYTES


def _digest(key: bytes, value: Value) -> bytes:
    digest = xxhash.xxh3_128(key)
    digest.update(value)
    return digest.digest()


def _batches(keys: Sequence[bytes]) -> Iterator[tuple[Sequence[bytes], str]]:
    """Yield some of the keys at a time, and the place holders of a statement for them."""
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[start : start + _KEYS_AT_ONCE]
        yield some, ",".join("?" * len(some))
