"""sha256 of model files, remembered by file identity so that it costs nothing the second time.

The memory is a small JSON under `$BERTFEAT_CACHE` or `~/.cache/bertfeat`. An entry counts only while path, size,
inode, mtime and ctime of the files are what they were; without a writable cache the digest is computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertfeat.durable.publication import publish_bytes
from bertfeat.errors import CheckpointError, RunError

_MAX_ENTRIES = 256
# A file changed again within the clock's grain would keep its times: what is younger is not remembered.
_SETTLED_NS = 100_000_000


def weights_digest(files: Sequence[Path]) -> str:
    """Return the sha256 (hex) of the files' bytes, one file after the other in the given order.

    Of a single file it is the digest that `sha256sum` prints.

    Raises:
        CheckpointError: A file cannot be read, or changes meanwhile.
    """
    key = _identity(files)
    remembered = _read_memory().get(key)
    if remembered is not None:
        return remembered
    digest = hashlib.sha256()
    for path in files:
        with _reading(path), path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    if _identity(files) != key:
        raise CheckpointError(
            f"{files[0].parent}: the weights change while they are read; wait for the download to end"
        )
    if _youngest_ns(files) < time.time_ns() - _SETTLED_NS:
        _remember(key, digest.hexdigest())
    return digest.hexdigest()


def named_digest(files: Sequence[Path]) -> str:
    """Return the sha256 (hex) over each file's name, length and bytes: a file renamed or left out is noticed.

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


def _identity(files: Sequence[Path]) -> str:
    parts = []
    for path in files:
        with _reading(path):
            real = path.resolve(strict=True)
            status = real.stat()
        parts.append([str(real), status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns])
    return json.dumps(parts)


def _youngest_ns(files: Sequence[Path]) -> int:
    return max(max(status.st_mtime_ns, status.st_ctime_ns) for status in (path.stat() for path in files))


def _memory_path() -> Path:
    folder = os.environ.get("BERTFEAT_CACHE")
    return (Path(folder) if folder else Path.home() / ".cache" / "bertfeat") / "digests.json"


def _read_memory() -> dict[str, str]:
    try:
        memory = json.loads(_memory_path().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return {}
    if not isinstance(memory, dict):
        return {}
    return {key: value for key, value in memory.items() if isinstance(value, str) and len(value) == 64}


def _remember(key: str, digest: str) -> None:
    memory = {**_read_memory(), key: digest}
    # A cache that cannot be written (read-only home, full disk) only costs time.
    with contextlib.suppress(OSError, RuntimeError, RunError):
        path = _memory_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        publish_bytes(path, json.dumps(dict(list(memory.items())[-_MAX_ENTRIES:])).encode())
