"""Server of the search page on 127.0.0.1: its socket, its threads, and its end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from bertfeat.errors import UserError
from bertfeat.search.index import Index

_HOST = "127.0.0.1"
_PACKAGES = ("jinja2", "starlette", "uvicorn")
_MAX_THREADS = 4
_MAX_WAITING = 100
_MAX_CONNECTIONS = 500
_TIMEOUT_S = 30.0
# Seconds that answers have to reach their readers after Ctrl-C.
_LAST_SECONDS = 3


def serve(index: Index, info: Mapping[str, Any], port: int, ready: Callable[[str], None]) -> None:
    """Serve the search page of an index until SIGINT; the model and the index are loaded before the first request.

    Args:
        index: The index.
        info: What `/api/info` returns.
        port: The port; 0 takes a free one.
        ready: Receives the address of the page when the page can be opened.

    Raises:
        UserError: A package is missing, the port is taken, the rows have no texts to show, or the store or the model is
            not the one of the index.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(f"the search page needs {' and '.join(missing)}: pip install 'bertfeat[serve]'")
    from bertfeat.serving.answers import Answers

    with _bound(port) as listener:
        answers = Answers(index)
        index.load_model()
        # Imported when all has been checked.
        from bertfeat.serving.boundedwork import BoundedWork
        from bertfeat.serving.searchpage import SearchPage

        n_threads = max(2, min(_MAX_THREADS, os.cpu_count() or 1))
        work = BoundedWork(n_threads, _MAX_WAITING, _TIMEOUT_S)
        try:
            _run(SearchPage(answers, info, work).application(), listener, ready)
        finally:
            work.close()


def _bound(port: int) -> socket.socket:
    """Return a socket that has the port; it does not listen yet."""
    listener = socket.socket()
    # A port whose last connections are still closing is free.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UserError(f"port {port} of {_HOST}: {error.strerror}; pass another --port, or 0 for a free one") from None
    return listener


def _run(application: Any, listener: socket.socket, ready: Callable[[str], None]) -> None:
    import uvicorn

    config = uvicorn.Config(
        application,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=_LAST_SECONDS,
    )
    ready(f"http://{_HOST}:{listener.getsockname()[1]}/")
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        # uvicorn raises it after all is closed: this is how the server ends.
        return
