"""`bertfeat serve`: a search page on this machine."""

from __future__ import annotations

import contextlib
import signal
from importlib.util import find_spec

import click

from bertfeat.cli.options import RUN, GroupedCommand, option
from bertfeat.errors import UserError

_PACKAGES = ("jinja2", "starlette", "uvicorn")


@click.command(name="serve", cls=GroupedCommand)
@click.argument("index", metavar="INDEX")
@option(
    RUN,
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    default=8000,
    show_default=True,
    help="Port on 127.0.0.1; 0 takes a free one.",
)
@click.option("--store", metavar="STORE", help="Where the store is now.")
def command(index: str, port: int, store: str | None) -> None:
    """Search INDEX in a browser: a page on 127.0.0.1, which only this machine can open.

    The page has filters on the columns of the corpus, and for each hit a link to what is most similar to it. GET
    /api/search?q=TEXT&k=10 answers in JSON, with the fields of `bertfeat search --json`; /api/info describes the index.
    Ctrl-C ends it.
    """
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise UserError(f"the search page needs {' and '.join(missing)}: pip install 'bertfeat[serve]'")
    from bertfeat.cli.search_summary import index_summary, result_line
    from bertfeat.search.index import open_index
    from bertfeat.serving.searchpage import serve

    with open_index(index, store=store) as opened:

        def ready(address: str) -> None:
            click.echo(result_line(opened, ""))
            click.echo(f"{address}  (Ctrl-C ends it)")

        # SIGTERM ends it as Ctrl-C does: the index is closed, and the exit code is 0.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            serve(opened, index_summary(opened), port, ready)
