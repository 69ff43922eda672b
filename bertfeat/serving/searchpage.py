"""Application of the search page: the page, the JSON routes, and the checks of every request."""

from __future__ import annotations

import json
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from bertfeat.choices import Level
from bertfeat.errors import BertfeatError, StoreError, UserError
from bertfeat.serving.answers import Answers
from bertfeat.serving.boundedwork import BoundedWork, Busy
from bertfeat.serving.pagequery import MAX_HITS, MAX_QUERY, MAX_WHERE, WORDS, PageQuery

_PAGES = Path(__file__).parent / "pages"
_FILES = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_HOSTS = ("127.0.0.1", "localhost")
# Of the browser's own words for where a request comes from, those of this page and of the address bar.
_OWN_SITES = ("", "none", "same-origin")
_MAX_PARAMETERS_BYTES = 32_000
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache, private",
}
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class SearchPage:
    """The routes of one index.

    Args:
        answers: The search.
        info: What `/api/info` returns.
        work: The threads that search.
    """

    def __init__(self, answers: Answers, info: Mapping[str, Any], work: BoundedWork) -> None:
        self._answers, self._info, self._work = answers, info, work
        pages = Environment(loader=FileSystemLoader(_PAGES), autoescape=True, undefined=StrictUndefined)
        self._template = pages.get_template("search.html")

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/", self._page),
            Route("/api/search", self._api_search),
            Route("/api/info", self._api_info),
            *(Route(f"/{name}", _file(name, kind)) for name, kind in _FILES.items()),
        ]
        # Other errors reach Starlette only from the routes above.
        handlers = {HTTPException: _not_found}
        return Starlette(routes=routes, middleware=[Middleware(Guard)], exception_handlers=handlers)

    async def _page(self, request: Request) -> Response:
        query, status, error = PageQuery(), 200, ""
        try:
            query = self._parse(request)
            html = await self._work.run(lambda: self._searched(query))
        except Exception as failure:
            status, reported = _failure(failure)
            error = reported["message"]
            query = query if not query.is_empty else PageQuery(q=request.query_params.get("q", "")[:MAX_QUERY])
            html = self._render(query, error=error)
        return HTMLResponse(html, status, headers=_retry(status))

    async def _api_search(self, request: Request) -> Response:
        try:
            query = self._parse(request)
            if query.is_empty:
                raise UserError("nothing to search for; pass q=TEXT or like=ROW")
            found = await self._work.run(lambda: _json({"query": _asked(query), "hits": self._objects(query)}))
        except Exception as failure:
            status, reported = _failure(failure)
            return _json_response(_json({"error": reported}), status)
        return _json_response(found)

    async def _api_info(self, request: Request) -> Response:  # noqa: ARG002
        filters = {name: list(facet.choices) or None for name, facet in self._answers.facets.items()}
        return _json_response(_json({**self._info, "filters": filters}))

    def _parse(self, request: Request) -> PageQuery:
        if len(request.scope["query_string"]) > _MAX_PARAMETERS_BYTES:
            raise UserError("the address is too long; write a shorter text")
        return PageQuery.parse(request.query_params.multi_items(), self._answers.facets)

    def _objects(self, query: PageQuery) -> list[dict[str, Any]]:
        return self._answers.answer(query).objects()

    def _searched(self, query: PageQuery) -> str:
        if query.is_empty:
            return self._render(query)
        answer = self._answers.answer(query)
        hits = self._answers.shown(answer, query)
        return self._render(query, hits=hits, source=answer.source, seconds=answer.seconds)

    def _render(self, query: PageQuery, **found: Any) -> str:
        values: dict[str, Any] = {"hits": None, "source": [], "seconds": 0.0, "error": "", **found}
        index = self._answers.index
        html: str = self._template.render(
            query=query,
            index=index,
            name=index.path.name,
            facets=self._answers.facets.values(),
            is_words=index.level is not Level.SENTENCE,
            words=WORDS,
            numbers=sorted({10, 20, 50, MAX_HITS, query.k}),
            limits={"q": MAX_QUERY, "where": MAX_WHERE},
            **values,
        )
        return html


class Guard:
    """Check of where a request comes from, and headers that keep other sites out.

    A page elsewhere can make a browser send requests here, under a name of its own that leads to this machine too (DNS
    rebinding). So the Host must be this machine's, and a request that another origin's page makes is refused; only a
    link to the page may be followed from anywhere.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        reason = refusal(Headers(scope=scope))
        answer = PlainTextResponse(f"{reason}\n", 403) if reason else self._app
        await answer(scope, receive, guarded)


def refusal(headers: Mapping[str, str]) -> str:
    """Return why a request with these headers is refused; empty if it is not.

    Examples:
        >>> refusal({"host": "127.0.0.1:8000"}), refusal({"host": "evil.example:8000"})
        ('', 'the Host is not 127.0.0.1 or localhost')
    """
    host = headers.get("host", "")
    name, _, port = host.partition(":")
    if name.lower() not in _HOSTS or (port and not port.isdecimal()):
        return "the Host is not 127.0.0.1 or localhost"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return "the page of another origin may not read this"
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if headers.get("sec-fetch-site", "") not in _OWN_SITES and not is_link:
        return "the page of another site may not read this"
    return ""


def _failure(failure: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status of an error, and the object that `--json` prints for it."""
    status = 500
    if isinstance(failure, Busy):
        status = 503
    elif isinstance(failure, UserError) and not isinstance(failure, StoreError):
        status = 400
    message = " ".join(str(failure).split())
    if not isinstance(failure, BertfeatError):
        # A bug: the traceback is for the report.
        traceback.print_exception(failure)
        message = "this should not have happened; please report what the terminal shows"
    place = {"path": getattr(failure, "path", None), "row": getattr(failure, "row", None)}
    return status, {"kind": type(failure).__name__, "message": message, **place}


def _asked(query: PageQuery) -> dict[str, Any]:
    """Return the parameters of a search."""
    given = {"q": query.q or None, "like": query.like, "k": query.k, "where": query.where or None}
    return {**given, "words": query.words or None, "columns": list(query.columns), "filters": dict(query.filters)}


def _json(value: object) -> str:
    return json.dumps(value, default=str, ensure_ascii=False, allow_nan=False)


def _json_response(text: str, status: int = 200) -> Response:
    return Response(text.encode(errors="replace"), status, _retry(status), "application/json")


def _retry(status: int) -> dict[str, str]:
    return {"retry-after": "1"} if status == 503 else {}


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:  # noqa: ARG001
        return FileResponse(_PAGES / name, media_type=kind)

    return answer


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = f"{request.method} {request.url.path:.100}: no such page; there are /, /api/search and /api/info"
    shown = {"kind": "UserError", "message": message, "path": None, "row": None}
    headers = getattr(error, "headers", None) or {}
    return Response(_json({"error": shown}), status, headers, "application/json")
