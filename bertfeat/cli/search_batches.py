"""The hits of many queries, streamed to Parquet or CSV batch by batch."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.cli.progress import counted, human_time
from bertfeat.cli.search_output import split_names
from bertfeat.errors import UserError
from bertfeat.search.hitrows import DEFAULT_COLUMNS
from bertfeat.search.queryfiles import Query, QueryFile
from bertfeat.storage import local_path
from bertfeat.store.files import Sink, sync_folder, write_errors

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
    check_output(out, overwrite=settings["overwrite"])
    file = QueryFile(
        queries,
        text_column=settings["text_column"],
        id_column=settings["id_column"],
        batch_size=_QUERIES_AT_ONCE,
    )
    n_hits = 0
    with HitWriter(out) as writer:
        for batch in file.batches():
            frame = _search(index, batch, settings)
            writer.write(frame)
            n_hits += len(frame)
    if not settings["quiet"]:
        seconds = time.monotonic() - started
        rate = file.n_queries / max(seconds, 1e-9)
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        done = f"{counted(n_hits, 'hit')} of {file.n_queries:,} queries in {human_time(seconds)}"
        click.echo(f"{out}: {done}, {speed} queries/s")


def _search(index: Index, batch: list[Query], settings: dict[str, Any]) -> pl.DataFrame:
    encoded = index.encode([query.text for query in batch], [query.name for query in batch])
    frame = index.search(
        encoded,
        settings["k"],
        where=settings["where"],
        same_word=settings["same_word"],
        exclude_same_word=settings["exclude_same_word"],
        columns=list(dict.fromkeys([*DEFAULT_COLUMNS[index.level], *split_names(settings["columns"])])),
    )
    ids = pl.Series("query_id", [query.query_id for query in batch])
    return frame.select(ids.gather(frame["query"]).alias("query_id"), pl.exclude("query"))


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuse a place where no file can or may be written.

    Raises:
        UserError: The name has another ending, there is such a file already, or the folder does not exist.
    """
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name a file for the hits")
    if path.suffix.lower() not in _ENDINGS:
        raise UserError(f"{path}: hits are written as Parquet or CSV; name a file that ends in .parquet or .csv")
    if os.path.lexists(path) and not overwrite:
        raise UserError(f"{path}: is there already; name another file, or pass --overwrite")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: no folder {path.absolute().parent}; make it first")


class HitWriter:
    """Writer of frames with equal columns to one Parquet or CSV file, which gets its name once it is on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._sink: Sink | None = None
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def write(self, frame: pl.DataFrame) -> None:
        """Write the rows of a frame.

        Raises:
            UserError: CSV cannot hold a column.
            RunError: The system refused.
        """
        if self._sink is None:
            with self._errors():
                self._sink = Sink(self._tmp)
        if self._path.suffix.lower() == _CSV:
            lines = self._csv_lines(frame, with_header=not self._sink.n_bytes)
            with self._errors():
                self._sink.write(lines)
            return
        table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
        with self._errors():
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._sink, table.schema, compression="zstd")
            self._writer.write_table(table)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._sink is not None:
                with self._errors():
                    if self._writer is not None:
                        self._writer.close()
                    self._sink.sync()
                    self._tmp.replace(self._path)
                    sync_folder(self._path.parent)
        finally:
            self._give_up()

    def _csv_lines(self, frame: pl.DataFrame, *, with_header: bool) -> bytes:
        try:
            return frame.write_csv(include_header=with_header).encode()
        except pl.exceptions.ComputeError:
            kinds = {name: kind for name, kind in frame.schema.items() if kind.is_nested() or kind in _NOT_IN_CSV}
            shown = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
            raise UserError(f"{self._path}: CSV cannot hold {shown}; name a file that ends in .parquet") from None

    def _errors(self) -> AbstractContextManager[None]:
        return write_errors(self._path.parent, self._path.name, self._sink)

    def _give_up(self) -> None:
        """Close the file, and remove it where it has not got its name."""
        if self._writer is not None:
            # Without this it would write the end of the unwanted file when it is garbage-collected.
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
        if self._sink is not None:
            self._sink.close()
            self._tmp.unlink(missing_ok=True)
