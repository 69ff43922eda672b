"""Parts as a polars frame that is read when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from bertfeat.storage import AnyPath, ObjectPath
from bertfeat.storage.clients import scan_options


def scan_parquet(paths: Sequence[AnyPath]) -> pl.LazyFrame:
    """Return Parquet files, of which there is one at least, as one lazy frame; objects are read by polars itself."""
    first = paths[0]
    if isinstance(first, ObjectPath):
        return pl.scan_parquet([str(path) for path in paths], glob=False, **scan_options(first))
    return pl.scan_parquet([path for path in paths if isinstance(path, Path)], glob=False)
