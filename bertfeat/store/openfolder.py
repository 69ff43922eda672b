"""Choice of the folder class for a place: a local path, or a URL in an object store."""

from __future__ import annotations

from pathlib import Path

from bertfeat.storage import ObjectPath, as_path
from bertfeat.store.folder import Folder, Lease
from bertfeat.store.localfolder import LocalFolder
from bertfeat.store.objectfolder import ObjectFolder


def folder_at(place: str | Path | ObjectPath | Folder, lease: Lease | None = None) -> Folder:
    """Return a store's folder, under the lease of the process that has locked it.

    Raises:
        StorageError: The URL is of an unknown kind.
    """
    if isinstance(place, Folder):
        return place
    path = as_path(place)
    return ObjectFolder(path, lease) if isinstance(path, ObjectPath) else LocalFolder(path)
