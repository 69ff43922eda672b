"""The hits of one query: aligned columns, words in context, or JSON."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from bertfeat.cli.progress import counted
from bertfeat.display import display_width, first_columns, padded, printable
from bertfeat.levels import LEVELS
from bertfeat.search.hitrows import hit_object
from bertfeat.search.kwic import Context

if TYPE_CHECKING:
    import polars as pl

    from bertfeat.search.index import Index
    from bertfeat.search.queryvectors import EncodedQueries

_MAX_CELL = 40
_FILTERS = ("where", "same_word", "exclude_same_word")


def hit_lines(index: Index, query: str | EncodedQueries, settings: dict[str, Any]) -> Iterator[str]:
    """Search for one query and yield the lines to print: a table, or with `--json` a line for each hit.

    Raises:
        UserError: The query or a flag cannot be used.
    """
    if settings["as_json"]:
        yield from (json.dumps(hit, default=str) for hit in hit_objects(index, query, settings))
        return
    hits, contexts = _hits(index, query, settings)
    if len(hits) < settings["k"]:
        fits = "fits the filters" if any(settings[name] for name in _FILTERS) else "is in the index"
        found_all = f"{counted(len(hits), 'hit')}; nothing else {fits}" if hits else f"nothing {fits}"
        click.echo(f"bertfeat: {index.path}: {found_all}", err=True)
    if hits:
        yield from _table(hits, contexts, _further(settings), settings)


def hit_objects(index: Index, query: str | EncodedQueries, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Search for one query and return its hits as JSON objects.

    Raises:
        UserError: The query or a flag cannot be used.
    """
    hits, contexts = _hits(index, query, settings)
    each = enumerate(hits)
    return [hit_object(hit, None if contexts is None else contexts[n], len(hits)) for n, hit in each]


def _hits(
    index: Index, query: str | EncodedQueries, settings: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[Context] | None]:
    """Return the hits of one query, and their contexts if they are words or tokens."""
    frame = found(index, query, settings, "row")
    contexts = None if index.level == "sentence" else index.contexts(frame["row"].to_numpy(), settings["context"])
    return list(frame.drop("query", *({"row"} - {*_further(settings)})).iter_rows(named=True)), contexts


def found(index: Index, queries: str | EncodedQueries, settings: dict[str, Any], *columns: str) -> pl.DataFrame:
    """Search with the values of the flags; hits have the shown columns, those of `--columns`, and further ones."""
    filters = {name: settings[name] for name in _FILTERS}
    names = dict.fromkeys([*LEVELS[index.level].shown, *_further(settings), *columns])
    return index.search(queries, settings["k"], columns=list(names), **filters)


def _further(settings: dict[str, Any]) -> list[str]:
    """Return the names in `--columns`."""
    return [name.strip() for name in (settings["columns"] or "").split(",") if name.strip()]


def _table(
    hits: list[dict[str, Any]], contexts: list[Context] | None, further: list[str], settings: dict[str, Any]
) -> Iterator[str]:
    """Yield a header and a line for each hit; the last column, the text, is not padded."""
    columns = {
        "rank": [str(hit["rank"]) for hit in hits],
        "score": [f"{hit['score']:.4f}" for hit in hits],
        **{name: [_cell(hit[name]) for hit in hits] for name in dict.fromkeys(["doc_id", *further])},
    }
    if contexts is None:
        columns.pop("text", None)
        last, texts = "text", [printable(hit["text"] or "") for hit in hits]
    else:
        reach = max(display_width(context.left) for context in contexts)
        last, texts = "context", [context.aligned(min(reach, settings["context"])) for context in contexts]
    widths = [max(map(display_width, [name, *cells])) for name, cells in columns.items()]
    is_right = [name in ("rank", "score") for name in columns]
    is_cut = sys.stdout.isatty() and not settings["full"]
    limit = shutil.get_terminal_size().columns if is_cut else sys.maxsize
    rows = [list(columns), *map(list, zip(*columns.values(), strict=True))]
    for cells, text in zip(rows, [last, *texts], strict=True):
        yield first_columns("  ".join([*map(padded, cells, widths, is_right), text]), limit).rstrip()


def _cell(value: object) -> str:
    return first_columns("" if value is None else printable(str(value)), _MAX_CELL)
