"""Output folder of a recipe: one process writes to it, and each file appears whole or not at all."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from bertfeat.durable.filelock import folder_lock
from bertfeat.durable.files import make_parents, remove_empty
from bertfeat.durable.publication import publish_bytes

_LOCK = ".lock"


@contextlib.contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Make a folder and lock it during the block; what is empty in the end is removed.

    The lock ends with its process, so after a kill the next run takes it.
    """
    path = out / _LOCK
    made = make_parents(path)
    try:
        with folder_lock(out, _LOCK, "is running a recipe with this --out"):
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    path.unlink()
    finally:
        remove_empty(made)


def write(path: Path, content: str | Mapping[str, Any] | pl.DataFrame) -> None:
    """Publish a text, values as JSON, or a table as Parquet, CSV or JSON lines; the folder is made if missing."""
    if isinstance(content, pl.DataFrame):
        data = io.BytesIO()
        if path.suffix == ".parquet":
            content.write_parquet(data)
        elif path.suffix == ".csv":
            content.write_csv(data)
        else:
            content.write_ndjson(data)
        written = data.getvalue()
    else:
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        written = text.encode()
    make_parents(path)
    publish_bytes(path, written)
