"""Writer of frames to one Parquet or CSV file, one after the other, in memory that stays flat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from bertfeat.durable.files import Sink
from bertfeat.errors import UserError

_CSV = ".csv"
#: The endings of names that `frame_writer` takes.
ENDINGS = (".parquet", _CSV)
_NOT_IN_CSV = (pl.Binary, pl.Duration)


@contextmanager
def frame_writer(path: Path, sink: Sink) -> Iterator[Callable[[pl.DataFrame], object]]:
    """Return a function that writes frames with equal columns to the sink of a Parquet or CSV file.

    It raises a UserError if CSV cannot hold a column.
    """
    if path.suffix.lower() == _CSV:
        yield lambda frame: sink.write(_csv_lines(path, frame, with_header=not sink.n_bytes))
        return
    with ExitStack() as stack:
        writer: pq.ParquetWriter | None = None

        def write(frame: pl.DataFrame) -> None:
            nonlocal writer
            table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(sink, table.schema, compression="zstd"))
            writer.write_table(table)

        yield write


def _csv_lines(path: Path, frame: pl.DataFrame, *, with_header: bool) -> bytes:
    try:
        return frame.write_csv(include_header=with_header).encode()
    except pl.exceptions.ComputeError:
        kinds = {name: kind for name, kind in frame.schema.items() if kind.is_nested() or kind in _NOT_IN_CSV}
        shown = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        raise UserError(f"{path}: CSV cannot hold {shown}; name a file that ends in .parquet") from None
