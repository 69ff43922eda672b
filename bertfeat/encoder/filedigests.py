"""Digests (sha256) of model files, cached so that they are computed once.

The cache is a small JSON file. An entry is used only while path, size, inode, mtime and ctime of the files are
unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertfeat.durable.records import seal, unseal
from bertfeat.durable.usercache import read_cached, write_cached
from bertfeat.errors import CheckpointError

_FILE = "digests.json"
_MAX_ENTRIES = 256
# Younger files are not cached: another change within the clock's resolution would keep the times.
_SETTLED_NS = 100_000_000
# The same entries for this process: an estimator asks for each call, also where the file cannot be written.
_known: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class _Cache:
    entries: tuple[tuple[str, str], ...]


def weights_digest(files: Sequence[Path]) -> str:
    """Return the sha256 (hex) of the files' bytes, in the given order; for one file it is that of `sha256sum`.

    Raises:
        CheckpointError: A file cannot be read, or changes meanwhile.
    """
    key, youngest_ns = _identity(files)
    cached = _known.get(key) or _read_cache().get(key)
    if cached is not None:
        return cached
    digest = hashlib.sha256()
    for path in files:
        with _reading(path), path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    if _identity(files)[0] != key:
        raise CheckpointError(
            f"{files[0].parent}: the weights change while they are read; wait for the download to end"
        )
    if youngest_ns < time.time_ns() - _SETTLED_NS:
        _known[key] = digest.hexdigest()
        entries = (*_read_cache().items(), (key, digest.hexdigest()))
        write_cached(_FILE, seal(_Cache(entries[-_MAX_ENTRIES:])))
    return digest.hexdigest()


def named_digest(files: Sequence[Path]) -> str:
    """Return the sha256 (hex) over each file's name, length and bytes.

    Raises:
        CheckpointError: A file cannot be read.
    """
    digest = hashlib.sha256()
    for path in files:
        with _reading(path):
            content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None


def _identity(files: Sequence[Path]) -> tuple[str, int]:
    """Return the key of files in the cache, and the latest time (ns) of a change to one of them."""
    parts, times = [], []
    for path in files:
        with _reading(path):
            real = path.resolve(strict=True)
            status = real.stat()
        parts.append([str(real), status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns])
        times += [status.st_mtime_ns, status.st_ctime_ns]
    return repr(parts), max(times)


def _read_cache() -> dict[str, str]:
    try:
        return dict(unseal(_Cache, read_cached(_FILE) or b"").entries)
    except ValueError:
        return {}
