"""Local paths and object paths from what a user gives; a URL never becomes a `Path`, which would fold its slashes."""

from __future__ import annotations

import re
from pathlib import Path

from bertfeat.errors import StorageError
from bertfeat.storage.filesystems import HUB, PACKAGES
from bertfeat.storage.object_path import ObjectPath

AnyPath = Path | ObjectPath

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
# A URL after `Path`.
_FOLDED = re.compile(rf"({'|'.join(PACKAGES)}):/(?!/)")


def is_url(place: object) -> bool:
    """Return whether a place is an object and not a local file."""
    return isinstance(place, ObjectPath) or (isinstance(place, str) and _URL.match(place) is not None)


def as_path(place: str | Path | ObjectPath) -> AnyPath:
    """Return a place as a local path or, for a URL, as an object."""
    if isinstance(place, ObjectPath):
        return place
    match = _URL.match(place) if isinstance(place, str) else None
    if match is None:
        if _FOLDED.match(str(place)):
            raise StorageError(f"{place}: a URL that was made a Path, which folds its slashes; pass it as a string")
        return Path(place)
    scheme = match["scheme"].lower()
    if scheme not in PACKAGES:
        known = ", ".join(f"{name}://" for name in PACKAGES)
        raise StorageError(f"{place}: unknown object store; pass a path, or a URL with {known}")
    bucket, _, key = match["rest"].partition("/")
    key = key.rstrip("/")
    if not bucket or "" in key.split("/")[:-1] or "?" in key:
        raise StorageError(f"{place}: not a place in an object store; write {scheme}://BUCKET/NAME")
    if scheme == HUB and (bucket != "datasets" or key.count("/") < 2):
        raise StorageError(f"{place}: not a file of a data set; write {HUB}://datasets/OWNER/NAME/FILE")
    return ObjectPath(scheme, bucket, key)


def local_path(place: str | Path, what: str) -> Path:
    """Return a local path, for what cannot be in an object store; `what` names it in the message: `an index`."""
    path = as_path(place)
    if isinstance(path, ObjectPath):
        raise StorageError(
            f"{place}: {what} must be in a local folder; name one, and copy it with the store's own tools"
        )
    return path
