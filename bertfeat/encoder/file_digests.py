"""Digests (sha256) of model files, computed once while their path, size, inode, mtime and ctime are unchanged."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from bertfeat.durable.files import os_errors
from bertfeat.durable.records import seal, unseal
from bertfeat.durable.user_cache import read_cached, write_cached
from bertfeat.errors import CheckpointError

# Younger files are not cached: another change within the clock's resolution would keep the times.
_SETTLED_NS = 100_000_000
# The same for this process: an estimator asks for each call, also where the cache cannot be written.
_known: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class _Kept:
    sha256: str


@os_errors(CheckpointError)
def weights_digest(files: Sequence[Path]) -> str:
    """Return the sha256 (hex) of the files' bytes, in the given order; for one file it is that of `sha256sum`.

    Raises:
        CheckpointError: A file cannot be read, or changes meanwhile.
    """
    name, youngest_ns = _identity(files)
    if name in _known:
        return _known[name]
    with contextlib.suppress(ValueError):
        return unseal(_Kept, read_cached(name) or b"").sha256
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    if _identity(files)[0] != name:
        raise CheckpointError(f"{files[0].parent}: the weights change while they are read; wait until they are whole")
    found = digest.hexdigest()
    if youngest_ns < time.time_ns() - _SETTLED_NS:
        _known[name] = found
        write_cached(name, seal(_Kept(found)))
    return found


@os_errors(CheckpointError)
def named_digest(files: Sequence[Path]) -> str:
    """Return the sha256 (hex) over each file's name, length and bytes.

    Raises:
        CheckpointError: A file cannot be read.
    """
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _identity(files: Sequence[Path]) -> tuple[str, int]:
    """Return the name of files in the cache, and the latest time (ns) of a change to one of them."""
    parts, times = [], []
    for path in files:
        real = path.resolve(strict=True)
        status = real.stat()
        parts.append([str(real), status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns])
        times += [status.st_mtime_ns, status.st_ctime_ns]
    return f"digests/{xxhash.xxh3_128_hexdigest(repr(parts).encode())}", max(times)
