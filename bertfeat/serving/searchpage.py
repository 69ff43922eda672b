"""Application of the search page: the page, the JSON routes, and the checks of every request."""

from __future__ import annotations

import dataclasses
import json
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bertfeat.choices import Level
from bertfeat.display import printable
from bertfeat.errors import BertfeatError, StoreError, UserError
from bertfeat.serving.answers import Answers
from bertfeat.serving.boundedwork import BoundedWork, Busy
from bertfeat.serving.pagequery import MAX_HITS, MAX_QUERY, MAX_VALUE, WORDS, PageQuery

# More than a query of the longest characters takes in a URL.
MAX_PARAMETERS_BYTES = 32_000
_PAGES = Path(__file__).parent / "pages"
_FILES = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_HOSTS = ("127.0.0.1", "localhost")
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
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


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

    def application(self) -> Application:
        """Return the ASGI application."""
        files = [Route(f"/{name}", _file(name, kind)) for name, kind in _FILES.items()]
        routes = [Route("/", self._page), Route("/api/search", self._search), Route("/api/info", self._about), *files]
        return guarded(Starlette(routes=routes, exception_handlers={HTTPException: _no_such_page}))

    async def _page(self, request: Request) -> Response:
        query, status = PageQuery(), 200
        try:
            query = self._parse(request)
            html = await self._work.run(lambda: self._render(query))
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
            return _json(await self._work.run(lambda: {"query": asked, "hits": self._answers.objects(query)}))
        except Exception as failure:
            status, error = _failure(failure)
            return _json({"error": error}, status)

    async def _about(self, request: Request) -> Response:  # noqa: ARG002
        filters = {name: list(facet.choices) or None for name, facet in self._answers.facets.items()}
        return _json({**self._info, "filters": filters})

    def _parse(self, request: Request) -> PageQuery:
        if len(request.scope["query_string"]) > MAX_PARAMETERS_BYTES:
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


def guarded(app: Application) -> Application:
    """Check where each request comes from, and add headers that keep other sites out of the answer.

    A page elsewhere can make a browser send requests here, under a name of its own that leads to this machine too (DNS
    rebinding). So the Host must be this machine's, and a request that another origin's page makes is refused; only a
    link to the page may be followed from anywhere.
    """

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
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
        >>> refusal(Headers({"host": "127.0.0.1:8000"})), refusal(Headers({"host": "evil.example:8000"}))
        ('', 'the Host is not 127.0.0.1 or localhost')
    """
    host = headers.get("host", "").lower()
    name, _, port = host.partition(":")
    # Through a tunnel the port is another one.
    if name not in _HOSTS or (port and not port.isdecimal()):
        return "the Host is not 127.0.0.1 or localhost"
    if any(origin != f"http://{host}" for origin in headers.getlist("origin")):
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


def _json(value: object, status: int = 200) -> Response:
    return _response(json.dumps(value, default=str, ensure_ascii=False, allow_nan=False), status, "application/json")


def _response(text: str, status: int, kind: str) -> Response:
    # The name of a file need not be Unicode.
    return Response(text.encode(errors="replace"), status, {"retry-after": "1"} if status == 503 else None, kind)


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    content = (_PAGES / name).read_bytes()

    async def answer(request: Request) -> Response:  # noqa: ARG001
        return Response(content, media_type=kind)

    return answer


async def _no_such_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    there = "there are GET /, /api/search and /api/info"
    message = f"{request.method:.20} {request.url.path:.100}: {error.detail}; {there}"
    answer = _json({"error": _failure(UserError(message))[1]}, error.status_code)
    answer.headers.update(error.headers or {})
    return answer
