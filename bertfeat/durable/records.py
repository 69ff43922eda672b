"""Records in files: dataclasses as JSON, decoded and checked by msgspec, under a digest that shows damage.

The digest finds damage and edits, not forgery. A file is one JSON object whose last key is `check`, the xxh3-128 of all
bytes before that key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import xxhash

from bertfeat.durable.files import digest_of, read_small
from bertfeat.durable.output_check import KINDS, named_kind, other_kind
from bertfeat.errors import StoreError, UserError

_T = TypeVar("_T")
# Larger files stay on one line: line breaks would double the plan of a million files.
_MAX_INDENTED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size of a file and its xxh3-128, hex."""

    n_bytes: int
    digest: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the size and digest of a file; errors are those of `digest_of`."""
        return cls(path.stat().st_size, digest_of(path))


class _Version(msgspec.Struct):
    format_version: int


def encode(value: Any) -> bytes:
    """Return the canonical JSON of a record or another value: no spaces, mappings sorted by their keys.

    Numbers and arrays of NumPy become numbers and lists.

    Examples:
        >>> encode({"b": (1, 2), "a": None})
        b'{"a":null,"b":[1,2]}'
    """
    return msgspec.json.encode(value, enc_hook=_plain, order="deterministic")


def decode(kind: type[_T], data: bytes | str) -> _T:
    """Return the value of a JSON text as a dataclass or another type; ValueError if it is not one.

    Examples:
        >>> decode(tuple[int, ...], '[1, "2"]')
        Traceback (most recent call last):
        ...
        msgspec.ValidationError: Expected `int`, got `str` - at `$[1]`
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise ValueError("nested too deep") from None


def to_values(record: Any) -> Any:
    """Return a record as plain JSON values: dicts, lists, texts, numbers, None."""
    return msgspec.json.decode(encode(record))


def hash_of_json(value: Any) -> str:
    """Return the sha256 of the canonical JSON of a value, hex."""
    return hashlib.sha256(encode(value)).hexdigest()


def seal(record: Any) -> bytes:
    """Return the bytes of a file that holds a record, a dataclass or mapping with at least one field.

    Examples:
        >>> print(seal({"shard": 3}).decode(), end="")
        {
          "shard": 3,
          "check": "cd7d0dfeaa983a1651bb2d899d6b3fb1"
        }
    """
    data = encode(record)
    if len(data) <= _MAX_INDENTED_BYTES:
        data = msgspec.json.format(data)
    head = data[:-1].rstrip()
    return head + _tail(head)


def unseal(kind: type[_T], data: bytes, newest: int | None = None) -> _T:
    """Return the record in the bytes of a sealed file; ValueError if they are damaged, StoreError for a newer format.

    `newest` is the newest `format_version` that this bertfeat reads; None for records without one.
    """
    head = memoryview(data)[: -len(_tail(b""))]
    if data[len(head) :] != _tail(head):
        raise ValueError("damaged or edited: its bytes do not match its check value")
    if newest is not None and (version := decode(_Version, data).format_version) > newest:
        raise StoreError(f"format_version {version}, this bertfeat reads up to {newest}; upgrade bertfeat")
    return decode(kind, data)


def read_record(kind: type[_T], folder: Path, what: str, newest: int, remedy: str) -> _T:
    """Return the record in the file that identifies a folder; every failure is a UserError.

    `what` is the kind of folder among `KINDS`, `newest` the newest `format_version` that this bertfeat reads.
    """
    path = folder / KINDS[what][0]
    try:
        return unseal(kind, read_small(path), newest)
    except (FileNotFoundError, NotADirectoryError):
        missing = f"{other_kind(folder, what)}not {named_kind(what)}: it has no {path.name}"
        reason = missing if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {reason}; give the folder of {named_kind(what)}") from None
    except StoreError as error:
        raise UserError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        raise UserError(f"{path}: {reason}; {remedy}") from None


def read_checked(path: Path, wanted: FileDigest, remedy: str) -> bytes:
    """Return a file whose size and digest are known; UserError if it is missing or damaged."""
    try:
        data = read_small(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}; {remedy}") from None
    if FileDigest(len(data), xxhash.xxh3_128_hexdigest(data)) != wanted:
        raise UserError(f"{path}: damaged or edited: its bytes do not match their digest; {remedy}")
    return data


def _plain(value: Any) -> Any:
    """Return a number or array of NumPy as a JSON value."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r:.60} is not a JSON value")


def _tail(head: bytes | memoryview) -> bytes:
    return f',\n  "check": "{xxhash.xxh3_128_hexdigest(head)}"\n}}\n'.encode()
