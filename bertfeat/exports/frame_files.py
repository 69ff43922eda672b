"""Writer of frames to one Parquet or CSV file, one after the other, in memory that stays flat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from bertfeat.durable.files import Sink
from bertfeat.errors import UserError

#: The endings of names that `frame_writer` takes.
ENDINGS = (".parquet", ".csv")


@contextmanager
def frame_writer(path: Path, sink: Sink) -> Iterator[Callable[[pl.DataFrame], None]]:
    """Return a function that writes frames with equal columns to the sink of a Parquet or CSV file."""
    with ExitStack() as stack:
        parquet: pq.ParquetWriter | None = None

        def write(frame: pl.DataFrame) -> None:
            nonlocal parquet
            if path.suffix.lower() == ".csv":
                try:
                    sink.write(frame.write_csv(include_header=not sink.n_bytes).encode())
                except pl.exceptions.ComputeError as error:
                    reason = str(error).splitlines()[0]
                    raise UserError(f"{path}: {reason}; name a file that ends in .parquet") from None
                return
            table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
            if parquet is None:
                parquet = stack.enter_context(pq.ParquetWriter(sink, table.schema, compression="zstd"))
            parquet.write_table(table)

        yield write
