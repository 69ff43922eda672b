"""The hits of one query or of many: aligned columns, words in context, JSON, or a file."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import polars as pl

from bertfeat.cli.failures import with_flags
from bertfeat.cli.options import show
from bertfeat.config import names_in
from bertfeat.corpus.line_streams import read_lines, strip_line_end
from bertfeat.display import counted, display_width, first_columns, padded, printable, table_cells
from bertfeat.durable.output_check import check_file, check_folder_above
from bertfeat.durable.publication import publish_file
from bertfeat.errors import UserError
from bertfeat.exports.frame_files import ENDINGS, frame_writer
from bertfeat.levels import LEVELS
from bertfeat.search.hits import Context, hit_object, met_places, passage
from bertfeat.search.query_files import QueryFile
from bertfeat.search.query_vectors import EncodedQueries
from bertfeat.storage import local_path

if TYPE_CHECKING:
    from bertfeat.search.index import Index

_QUERIES_AT_ONCE = 1024
_MAX_CELL = 40
_FILTERS = ("where", "same_word", "exclude_same_word")


def hit_lines(index: Index, query: str | EncodedQueries, settings: dict[str, Any]) -> Iterator[str]:
    """Search for one query and yield the lines to print: a table, or with `--json` a line for each hit."""
    if settings["as_json"]:
        yield from (json.dumps(hit, default=str) for hit in hit_objects(index, query, settings))
        return
    hits, contexts = _hits(index, query, settings)
    if len(hits) < settings["k"]:
        fits = "fits the filters" if any(settings[name] for name in _FILTERS) else "is in the index"
        found_all = f"{counted(len(hits), 'hit')}; nothing else {fits}" if hits else f"nothing {fits}"
        click.echo(f"bertfeat: {index.path}: {found_all}", err=True)
    if hits:
        yield from _table(hits, contexts, settings)


def hit_objects(index: Index, query: str | EncodedQueries, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Search for one query and return its hits as JSON objects."""
    hits, contexts = _hits(index, query, settings)
    return [hit_object(hit, contexts[n] if contexts else None, len(hits)) for n, hit in enumerate(hits)]


def _hits(
    index: Index, query: str | EncodedQueries, settings: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[Context] | None]:
    """Return the hits of one query, and their contexts if they are words or tokens."""
    matches = index.origin.rerank is not None and settings["rerank"] != "none"
    frame = _found(index, query, settings, "row", matches=matches)
    contexts = index.contexts(frame["row"].to_numpy(), settings["context"]) if index.has_contexts else None
    return list(frame.drop("query", *({"row"} - {*names_in(settings["columns"])})).iter_rows(named=True)), contexts


def _found(
    index: Index, queries: str | EncodedQueries, settings: dict[str, Any], *columns: str, matches: bool = False
) -> pl.DataFrame:
    """Search with the values of the flags; hits have the shown columns, those of `--columns`, and further ones."""
    chosen = {name: settings[name] for name in (*_FILTERS, "rerank", "candidates", "group_by")}
    names = dict.fromkeys([*LEVELS[index.level].shown, *names_in(settings["columns"]), *columns])
    return index.search(queries, settings["k"], columns=list(names), matches=matches, **chosen)


def _table(hits: list[dict[str, Any]], contexts: list[Context] | None, settings: dict[str, Any]) -> Iterator[str]:
    """Yield a header and a line for each hit; the last column is the text."""
    names = dict.fromkeys(["rank", "score", "doc_id", *names_in(settings["columns"])])
    is_cut = sys.stdout.isatty() and not settings["full"]
    limit = shutil.get_terminal_size().columns if is_cut else sys.maxsize
    if contexts is None:
        names.pop("text", None)
        last, texts = "text", [_text(hit, limit) for hit in hits]
    else:
        reach = max(display_width(context.left) for context in contexts)
        last, texts = "context", [context.aligned(min(reach, settings["context"])) for context in contexts]

    def cell(name: str, value: object) -> object:
        return value if name == "score" else first_columns(printable("" if value is None else str(value)), _MAX_CELL)

    cells, is_right = table_cells(list(names), [[cell(name, hit[name]) for name in names] for hit in hits])
    widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
    for line, text in zip(cells, [last, *texts], strict=True):
        yield first_columns("  ".join([*map(padded, line, widths, is_right), text]), limit).rstrip()


def _text(hit: dict[str, Any], width: int) -> str:
    """Return the text of a hit, or a passage of it, with the words that a query met in brackets."""
    text = hit["text"] or ""
    if not hit.get("matches"):
        return text
    pieces = passage(text, met_places(hit["matches"]), width, width // 4)
    return "".join(f"[{piece.text}]" if piece.is_marked else piece.text for piece in pieces)


def search_file(index: Index, queries: str, settings: dict[str, Any]) -> None:
    """Search for every query of a file and write the hits; the file appears when it is whole."""
    started = time.monotonic()
    out = local_path(settings["output"], "a file of hits")
    check_file(out, overwrite=settings["overwrite"], endings=ENDINGS)
    check_folder_above(out)
    columns = {name: settings[name] for name in ("text_column", "id_column")}
    file = QueryFile(queries, **columns, batch_size=_QUERIES_AT_ONCE)
    n_hits = 0
    with publish_file(out) as sink, frame_writer(out, sink) as write:
        for batch in file.batches():
            encoded = index.encode([query.text for query in batch], [query.name for query in batch])
            frame = _found(index, encoded, settings)
            ids = pl.Series("query_id", [query.query_id for query in batch])
            write(frame.select(ids.gather(frame["query"]).alias("query_id"), pl.exclude("query")))
            n_hits += len(frame)
    values = {"output": str(out), "n_queries": file.n_queries, "n_hits": n_hits, "seconds": time.monotonic() - started}
    show(values, as_json=settings["as_json"], quiet=settings["quiet"])


def answer_queries(index: Index, settings: dict[str, Any]) -> None:
    """Answer each line of standard input that has text, before the next is read.

    With `--json` an answer is one line, else the lines of its hits and an empty one. A query that cannot be used is
    reported on standard error, and the others are answered.
    """
    if sys.stdin is None:
        raise UserError("standard input is closed; pipe in one query per line")
    # A wrong flag is reported now, and not once per query.
    _found(index, EncodedQueries(np.zeros((0, index.spec.dim), index.spec.store_dtype), (), ()), settings)
    index.load_model()
    n_failed = 0
    for _, number, line in read_lines(sys.stdin.buffer, 0, 1):
        if line.isspace():
            continue
        query: EncodedQueries | None = None
        answer: dict[str, Any] = {}
        try:
            query = index.encode([strip_line_end(line).decode()], [f"<stdin>:{number}: query"])
        except (UserError, UnicodeDecodeError) as failure:
            place = "" if isinstance(failure, UserError) else f"<stdin>:{number}: not UTF-8: "
            answer, n_failed = {"error": place + with_flags(str(failure))}, n_failed + 1
            click.echo(f"bertfeat: {answer['error']}", err=True)
        if settings["as_json"]:
            answer |= {} if query is None else {"hits": hit_objects(index, query, settings)}
            said = {"query_id": number - 1, "query": strip_line_end(line).decode(errors="replace"), **answer}
            click.echo(json.dumps(said, default=str))
        else:
            lines = [] if query is None else hit_lines(index, query, settings)
            click.echo("".join(f"{text}\n" for text in lines))
    if n_failed:
        # Each answer has said it, so there is no further one for this error.
        ends = f"{counted(n_failed, 'line')} of standard input could not be used; see above"
        click.echo(f"bertfeat: {ends}", err=True)
        sys.exit(UserError.exit_code)
