"""The hits of many queries, streamed to Parquet or CSV batch by batch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
import polars as pl

from bertfeat.cli.progress import counted, human_time
from bertfeat.cli.search_output import found
from bertfeat.durable.placecheck import check_file, check_folder_above
from bertfeat.durable.publication import publish_file
from bertfeat.exports.framefiles import ENDINGS, frame_writer
from bertfeat.search.queryfiles import Query, QueryFile
from bertfeat.storage import local_path

if TYPE_CHECKING:
    from bertfeat.search.index import Index

_QUERIES_AT_ONCE = 1024


def search_file(index: Index, queries: str, settings: dict[str, Any]) -> None:
    """Search for every query of a file and write the hits; the file appears when it is whole.

    Raises:
        UserError: The queries, a flag or the place of the hits cannot be used; nothing is written.
        RunError: The hits cannot be written.
    """
    started = time.monotonic()
    out = local_path(settings["out"], "a file of hits")
    check_file(out, overwrite=settings["overwrite"], endings=ENDINGS, instead="another --out")
    check_folder_above(out)
    file = QueryFile(
        queries, text_column=settings["text_column"], id_column=settings["id_column"], batch_size=_QUERIES_AT_ONCE
    )
    n_hits = 0
    with publish_file(out) as sink, frame_writer(out, sink) as write:
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
