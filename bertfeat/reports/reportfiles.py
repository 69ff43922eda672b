"""Report files, published whole."""

from __future__ import annotations

from pathlib import Path

from bertfeat.durable.placecheck import check_file, check_folder_above
from bertfeat.durable.publication import publish_bytes


def write_report(path: str | Path, data: bytes) -> Path:
    """Publish a file and return its path; an older file is replaced. A UserError says that there is no such folder."""
    target = Path(path)
    check_folder_above(target)
    check_file(target, overwrite=True, instead="another name")
    publish_bytes(target, data)
    return target
