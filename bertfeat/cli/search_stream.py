"""Queries from standard input, one per line, each answered on standard output before the next is read."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from bertfeat.cli.failures import with_flags
from bertfeat.cli.progress import counted
from bertfeat.cli.search_output import found, hit_lines, hit_objects
from bertfeat.corpus.content import RowError, decode
from bertfeat.corpus.linestreams import read_lines, strip_line_end
from bertfeat.errors import UserError
from bertfeat.search.queryvectors import EncodedQueries

if TYPE_CHECKING:
    from bertfeat.search.index import Index


def answer_queries(index: Index, settings: dict[str, Any]) -> None:
    """Answer each line of standard input that has text.

    With `--json` an answer is one line, else the lines of its hits and an empty one. A query that cannot be used is
    reported on standard error, and the others are answered.

    Raises:
        UserError: A flag or the model cannot be used, or standard input is closed.
        SystemExit: At the end: a query was refused.
    """
    if sys.stdin is None:
        raise UserError("standard input is closed; pipe in one query per line")
    # A wrong flag is reported now, and not once per query.
    found(index, EncodedQueries(np.zeros((0, index.spec.dim), index.spec.store_dtype), ()), settings)
    index.load_model()
    n_failed = 0
    for _, number, line in read_lines(sys.stdin.buffer, 0, 1):
        if line.isspace():
            continue
        try:
            query, error = _encoded(index, line, f"<stdin>:{number}"), None
        except UserError as failure:
            query, error, n_failed = None, with_flags(str(failure)), n_failed + 1
            click.echo(f"bertfeat: {error}", err=True)
        if settings["as_json"]:
            answer = {"error": error} if query is None else {"hits": hit_objects(index, query, settings)}
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


def _encoded(index: Index, line: bytes, place: str) -> EncodedQueries:
    try:
        text = decode(strip_line_end(line))
    except RowError as error:
        raise UserError(f"{place}: {error}") from None
    return index.encode([text], [f"{place}: query"])
