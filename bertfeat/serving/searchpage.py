"""Search page of an index on this machine: the page, the JSON routes, the checks of every request, and the server."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import socket
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from bertfeat.choices import Level
from bertfeat.devices import n_cpus
from bertfeat.display import printable
from bertfeat.errors import BertfeatError, StoreError, UserError
from bertfeat.search.index import Index
from bertfeat.serving.answers import Answers
from bertfeat.serving.pagequery import MAX_HITS, MAX_QUERY, MAX_VALUE, WORDS, PageQuery

_HOST = "127.0.0.1"
_MAX_THREADS = 4
_MAX_CONNECTIONS = 100
# More than a query of the longest characters takes in a URL.
_MAX_PARAMETERS_BYTES = 32_000
_PAGES = Path(__file__).parent / "pages"
# Of the browser's own words for where a request comes from, those of this page and of the address bar.
_OWN_SITES = ("", "none", "same-origin")
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    # Texts of the corpus stay out of the browser's files.
    "cache-control": "no-store",
}


def serve(index: Index, info: Mapping[str, Any], port: int, ready: Callable[[str], None]) -> None:
    """Serve the search page of an index until a signal ends it; the model is loaded before the first request.

    `info` is what `/api/info` returns; `ready` receives the address of the page when it can be opened; port 0 takes a
    free one.

    Raises:
        UserError: The port is taken, the rows have no texts to show, or the store or the model is not the one of the
            index.
        KeyboardInterrupt: SIGINT has ended it, after the requests were answered.
    """
    try:
        listener = socket.create_server((_HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(f"port {port} of {_HOST}: {reason}; pass another `port`, or 0 for a free one") from None
    with listener:
        page = SearchPage(Answers(index), info)
        index.load_model()
        ready(f"http://{_HOST}:{listener.getsockname()[1]}/")
        web_server(page.application()).run(sockets=[listener])


def web_server(application: Any) -> uvicorn.Server:
    """Return a server of an ASGI application that writes nothing and bounds its connections."""
    return uvicorn.Server(
        uvicorn.Config(
            application,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
            h11_max_incomplete_event_size=2 * _MAX_PARAMETERS_BYTES,
            timeout_keep_alive=5,
            # Seconds that answers have to reach their readers after Ctrl-C.
            timeout_graceful_shutdown=3,
        )
    )


class SearchPage:
    """The routes of one index; `info` is what `/api/info` returns."""

    def __init__(self, answers: Answers, info: Mapping[str, Any]) -> None:
        self._answers, self._info = answers, info
        limiter = anyio.CapacityLimiter(max(2, min(_MAX_THREADS, n_cpus())))
        self._run = functools.partial(anyio.to_thread.run_sync, limiter=limiter)
        pages = Environment(loader=FileSystemLoader(_PAGES), autoescape=True, undefined=StrictUndefined)
        self._template = pages.get_template("search.html")

    def application(self) -> Any:
        """Return the ASGI application."""
        files = [Route(f"/{name}", functools.partial(_file, name)) for name in ("page.css", "page.js", "icon.svg")]
        routes = [Route("/", self._page), Route("/api/search", self._search), Route("/api/info", self._about), *files]
        return guarded(TrustedHostMiddleware(Starlette(routes=routes), allowed_hosts=[_HOST, "localhost"]))

    async def _page(self, request: Request) -> Response:
        query, status = PageQuery(), 200
        try:
            query = self._parse(request)
            html = await self._run(lambda: self._render(query))
        except Exception as failure:
            status, error = _failure(failure)
            query = query if not query.is_empty else PageQuery(q=request.query_params.get("q", "")[:MAX_QUERY])
            html = self._render(query, error["message"])
        return _response(html, status, "text/html")

    async def _search(self, request: Request) -> Response:
        try:
            query = self._parse(request)
            if query.is_empty:
                raise UserError("nothing to search for; pass q=TEXT or like=ROW")
            asked = {name: value for name, value in dataclasses.asdict(query).items() if value not in ("", None)}
            return _json({"query": asked, "hits": await self._run(lambda: self._answers.objects(query))})
        except Exception as failure:
            status, error = _failure(failure)
            return _json({"error": error}, status)

    async def _about(self, _: Request) -> Response:
        filters = {name: list(facet.choices) or None for name, facet in self._answers.facets.items()}
        return _json({**self._info, "filters": filters})

    def _parse(self, request: Request) -> PageQuery:
        if len(request.scope["query_string"]) > _MAX_PARAMETERS_BYTES:
            raise UserError("the address is too long; write a shorter text")
        return PageQuery.parse(request.query_params.multi_items(), self._answers.facets)

    def _render(self, query: PageQuery, error: str = "") -> str:
        """Return the page: the form, with the hits of a query that is not empty, or with an error."""
        index = self._answers.index
        html: str = self._template.render(
            query=query,
            error=error,
            found=None if error or query.is_empty else self._answers.shown(query),
            index=index,
            name=printable(index.path.name),
            facets=self._answers.facets.values(),
            is_words=index.level is not Level.SENTENCE,
            words=WORDS,
            numbers=sorted({10, 20, 50, MAX_HITS, query.k}),
            limits={"q": MAX_QUERY, "value": MAX_VALUE},
        )
        return html


def guarded(app: Any) -> Any:
    """Refuse requests that another origin's page makes, and add headers that keep other sites out of the answer.

    Only a link to the page may be followed from anywhere. TrustedHostMiddleware refuses names of other sites that lead
    to this machine (DNS rebinding).
    """

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        reason = refusal(Headers(scope=scope)) if scope["type"] == "http" else ""
        chosen = PlainTextResponse(f"{reason}\n", 403) if reason else app
        await chosen(scope, receive, send_guarded)

    return answer


def refusal(headers: Headers) -> str:
    """Return why a request with these headers is refused; empty if it is not.

    Examples:
        >>> refusal(Headers({"host": "127.0.0.1:8000", "origin": "http://evil.example"}))
        'the page of another origin may not read this'
    """
    if any(origin != f"http://{headers.get('host', '').lower()}" for origin in headers.getlist("origin")):
        return "the page of another origin may not read this"
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if headers.get("sec-fetch-site", "") not in _OWN_SITES and not is_link:
        return "the page of another site may not read this"
    return ""


def _failure(failure: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status of an error, and the object that `--json` prints for it."""
    status = 400 if isinstance(failure, UserError) and not isinstance(failure, StoreError) else 500
    message = " ".join(str(failure).split())
    if not isinstance(failure, BertfeatError):
        # A bug: the traceback is for the report.
        traceback.print_exception(failure)
        message = "this should not have happened; please report what the terminal shows"
    place = {"path": getattr(failure, "path", None), "row": getattr(failure, "row", None)}
    return status, {"kind": type(failure).__name__, "message": message, **place}


def _json(value: object, status: int = 200) -> Response:
    return _response(json.dumps(value, default=str, ensure_ascii=False, allow_nan=False), status, "application/json")


def _response(text: str, status: int, kind: str) -> Response:
    # The name of a file need not be Unicode.
    return Response(text.encode(errors="replace"), status, media_type=kind)


async def _file(name: str, _: Request) -> Response:
    return FileResponse(_PAGES / name)
