"""Server of the search page on 127.0.0.1: its socket, its connections, and its end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertfeat.devices import n_cpus
from bertfeat.errors import UserError
from bertfeat.search.index import Index
from bertfeat.serving.answers import Answers
from bertfeat.serving.boundedwork import BoundedWork
from bertfeat.serving.searchpage import MAX_PARAMETERS_BYTES, SearchPage

_HOST = "127.0.0.1"
_MAX_THREADS = 4
_MAX_WAITING = 50
_MAX_CONNECTIONS = 100
_TIMEOUT_S = 30.0
# After this time a connection must have moved on if it waits for its client.
_PATIENCE_S = 10.0
# Seconds that answers have to reach their readers after Ctrl-C.
_LAST_SECONDS = 3


def serve(index: Index, info: Mapping[str, Any], port: int, ready: Callable[[str], None]) -> bool:
    """Serve the search page of an index until SIGINT or SIGTERM; the model is loaded before the first request.

    Args:
        index: The index.
        info: What `/api/info` returns.
        port: The port; 0 takes a free one.
        ready: Receives the address of the page when the page can be opened.

    Returns:
        Whether all searches have ended. If not, a thread is still at work, and Python would wait for it at its exit.

    Raises:
        UserError: The port is taken, the rows have no texts to show, or the store or the model is not the one of the
            index.
    """
    with _bound(port) as listener:
        answers = Answers(index)
        index.load_model()
        work = BoundedWork(max(2, min(_MAX_THREADS, n_cpus())), _MAX_WAITING, _TIMEOUT_S)
        server = web_server(SearchPage(answers, info, work).application())
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            ready(f"http://{_HOST}:{listener.getsockname()[1]}/")
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            # uvicorn raises it after all is closed: this is how the server ends.
            pass
        finally:
            signal.signal(signal.SIGTERM, before)
            has_ended = work.close()
        return has_ended


def _bound(port: int) -> socket.socket:
    """Return a socket that has the port; it does not accept yet."""
    listener = socket.socket()
    # A port whose last connections are still closing is free.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UserError(f"port {port} of {_HOST}: {error.strerror}; pass another `port`, or 0 for a free one") from None
    return listener


def web_server(application: Any) -> uvicorn.Server:
    """Return a server of an ASGI application that writes nothing and bounds its connections."""
    return uvicorn.Server(
        uvicorn.Config(
            application,
            loop="asyncio",
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            # Accepted in one step, before the first of them can be counted.
            backlog=_MAX_CONNECTIONS // 4,
            h11_max_incomplete_event_size=2 * MAX_PARAMETERS_BYTES,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=_LAST_SECONDS,
        )
    )


class _Connection(H11Protocol):  # type: ignore[misc]
    """A connection that is cut if there are too many, or its client neither ends its request nor reads the answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > _MAX_CONNECTIONS:
            transport.abort()
            return
        self._waited_for: tuple[object, int] | None = None
        self.loop.call_later(_PATIENCE_S, self._check)

    def _check(self) -> None:
        n_unread = self.transport.get_write_buffer_size()
        if self not in self.connections and not n_unread:
            return
        waits = n_unread > 0 or self.cycle is None or self.cycle.response_complete
        now = (self.cycle, n_unread) if waits else None
        if now is not None and now == self._waited_for:
            self.transport.abort()
            return
        self._waited_for = now
        self.loop.call_later(_PATIENCE_S, self._check)
