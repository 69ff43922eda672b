"""Cache of tokenizers as transformers configures them: only the first use of a model imports transformers.

What transformers makes of the files of a folder depends on the class that it chooses, so it is kept rather than rebuilt
here. An entry belongs to the content of the folder's small files, its path, and the versions of bertfeat and both
libraries.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from tokenizers import Tokenizer as BackendTokenizer

from bertfeat._version import __version__
from bertfeat.durable.usercache import cache_path, read_cached, write_cached

# A tokenizer, and the id of its classification token.
Backend: TypeAlias = tuple[BackendTokenizer, int | None]

_FOLDER = "tokenizers"
_LIBRARIES = ("tokenizers", "transformers")
_MAX_ENTRIES = 16
# The files that transformers may read for a tokenizer; it runs no code of the folder.
_ENDINGS = (".json", ".jinja", ".model", ".txt")
# Tokenizer files of more bytes are refused before; others of that size may be a user's data.
_MAX_BYTES = 64_000_000


def cached_backend(folder: Path, load: Callable[[Path], Backend]) -> Backend:
    """Return the tokenizer of a model folder from the cache, else from `load`, which is then kept.

    Raises:
        OSError: A file of the folder cannot be read.
    """
    key = _key(folder)
    found = _decoded(read_cached(f"{_FOLDER}/{key}"))
    if found is not None:
        return found
    found = load(folder)
    # A file that changed meanwhile (a download) belongs to another key.
    if _key(folder) == key:
        body = json.dumps({"cls_id": found[1], "tokenizer": found[0].to_str()}).encode()
        write_cached(f"{_FOLDER}/{key}", hashlib.sha256(body).digest() + body)
        _drop_oldest()
    return found


def _key(folder: Path) -> str:
    digest = hashlib.sha256(json.dumps([str(folder), __version__, *map(version, _LIBRARIES)]).encode())
    for path in sorted(folder.iterdir()):
        if path.suffix in _ENDINGS and path.is_file() and path.stat().st_size <= _MAX_BYTES:
            content = path.read_bytes()
            digest.update(os.fsencode(path.name) + f"\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _decoded(data: bytes | None) -> Backend | None:
    """Return the tokenizer of an entry, or None if the entry is missing or damaged."""
    size = hashlib.sha256().digest_size
    if data is None or hashlib.sha256(data[size:]).digest() != data[:size]:
        return None
    # `from_str` raises a plain Exception.
    with contextlib.suppress(Exception):
        entry = json.loads(data[size:])
        return BackendTokenizer.from_str(entry["tokenizer"]), entry["cls_id"]
    return None


def _drop_oldest() -> None:
    with contextlib.suppress(OSError, RuntimeError):
        entries = sorted(cache_path(_FOLDER).iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in entries[_MAX_ENTRIES:]:
            path.unlink(missing_ok=True)
