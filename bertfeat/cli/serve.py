"""`bertfeat serve`: a search page on this machine."""

from __future__ import annotations

import contextlib
import signal

import click

from bertfeat.cli.options import RUN, GroupedCommand, Printed, count, output_options, show, value
from bertfeat.errors import require


@click.command(name="serve", cls=GroupedCommand)
@click.argument("index", metavar="INDEX")
@count(RUN, "--port", 8000, "Port on 127.0.0.1; 0 takes a free one.", most=65535)
@value(RUN, "--store", "STORE", "Where the store is now.")
@output_options
def serve(index: str, port: int, store: str | None, as_json: bool, quiet: bool) -> None:
    """Search INDEX in a browser: a page on 127.0.0.1, which only this machine can open.

    The page has filters on the columns of the corpus, and for each hit a link to what is most similar to it. GET
    /api/search?q=TEXT&k=10 answers in JSON, with the fields of `bertfeat search --json`; /api/info describes the index.
    Ctrl-C ends it.
    """
    require("jinja2", "starlette", "uvicorn", what="the search page needs")
    from bertfeat.cli.index import index_summary
    from bertfeat.search.index import open_index
    from bertfeat.serving import searchpage

    with open_index(index, store=store) as opened:
        summary = index_summary(opened.path, opened.description)

        def ready(address: str) -> None:
            about = f"{opened.path}: {summary['n_vectors']:,} vectors of {summary['dim']} dimensions"
            text = f"{about}\n{address}  (Ctrl-C ends it)"
            show(Printed({"address": address, **summary}, text), as_json=as_json, quiet=quiet)

        # SIGTERM ends it as Ctrl-C does: the index is closed, and the exit code is 0.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            searchpage.serve(opened, summary, port, ready)
