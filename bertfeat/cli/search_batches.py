"""The hits of many queries, streamed to Parquet or CSV batch by batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import polars as pl
import pyarrow.parquet as pq

from bertfeat.cli.progress import counted, human_time
from bertfeat.cli.search_output import found
from bertfeat.durable.files import Sink
from bertfeat.durable.placecheck import check_file, check_folder_above
from bertfeat.durable.publication import publish_file
from bertfeat.errors import UserError
from bertfeat.search.queryfiles import Query, QueryFile
from bertfeat.storage import local_path

if TYPE_CHECKING:
    from bertfeat.search.index import Index

_QUERIES_AT_ONCE = 1024
_CSV = ".csv"
_ENDINGS = (".parquet", _CSV)
_NOT_IN_CSV = (pl.Binary, pl.Duration)


def search_file(index: Index, queries: str, settings: dict[str, Any]) -> None:
    """Search for every query of a file and write the hits; the file appears when it is whole.

    Raises:
        UserError: The queries, a flag or the place of the hits cannot be used; nothing is written.
        RunError: The hits cannot be written.
    """
    started = time.monotonic()
    out = local_path(settings["out"], "a file of hits")
    check_file(out, overwrite=settings["overwrite"], endings=_ENDINGS, instead="another --out")
    check_folder_above(out)
    file = QueryFile(
        queries, text_column=settings["text_column"], id_column=settings["id_column"], batch_size=_QUERIES_AT_ONCE
    )
    n_hits = 0
    with publish_file(out) as sink, hit_writer(out, sink) as write:
        for batch in file.batches():
            frame = _search(index, batch, settings)
            write(frame)
            n_hits += len(frame)
    if not settings["quiet"]:
        seconds = time.monotonic() - started
        rate = file.n_queries / max(seconds, 1e-9)
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        done = f"{counted(n_hits, 'hit')} of {file.n_queries:,} queries in {human_time(seconds)}"
        click.echo(f"{out}: {done}, {speed} queries/s")


def _search(index: Index, batch: list[Query], settings: dict[str, Any]) -> pl.DataFrame:
    encoded = index.encode([query.text for query in batch], [query.name for query in batch])
    frame = found(index, encoded, settings)
    ids = pl.Series("query_id", [query.query_id for query in batch])
    return frame.select(ids.gather(frame["query"]).alias("query_id"), pl.exclude("query"))


@contextmanager
def hit_writer(path: Path, sink: Sink) -> Iterator[Callable[[pl.DataFrame], object]]:
    """Return a function that writes frames with equal columns to the sink of a Parquet or CSV file.

    Raises:
        UserError: CSV cannot hold a column.
        OSError: The system refused.
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
