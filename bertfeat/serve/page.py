"""Search page of an index on this machine: the page, the JSON routes, the checks of every request, and the server."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from bertfeat.display import printable
from bertfeat.errors import BertfeatError, StoreError, UserError
from bertfeat.levels import LEVELS
from bertfeat.search.index import Index
from bertfeat.serve.answers import MAX_HITS, MAX_QUERY, MAX_VALUE, WORDS, Answers, PageQuery

_HOST = "127.0.0.1"
_MAX_CONNECTIONS = 100
# More than a query of the longest characters takes in a URL, with the other headers.
_MAX_HEADERS_BYTES = 64_000
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
    """Serve the search page until a signal; `ready` receives its address, `info` is what `/api/info` returns."""
    try:
        listener = socket.create_server((_HOST, port))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UserError(f"port {port} of {_HOST}: {reason}; pass another `port`, or 0 for a free one") from None
    with listener:
        application = search_page(Answers(index), info)
        index.load_model()
        ready(f"http://{_HOST}:{listener.getsockname()[1]}/")
        web_server(application).run(sockets=[listener])


def web_server(application: Any) -> uvicorn.Server:
    """Return a server of an ASGI application that writes nothing and bounds its connections."""
    return uvicorn.Server(
        uvicorn.Config(
            application,
            http="h11",
            ws="none",
            log_config=None,
            log_level="critical",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
            h11_max_incomplete_event_size=_MAX_HEADERS_BYTES,
            # Seconds that answers have to reach their readers after Ctrl-C.
            timeout_graceful_shutdown=3,
        )
    )


def search_page(answers: Answers, info: Mapping[str, Any]) -> Any:
    """Return the ASGI application of an index; `info` is what `/api/info` returns."""
    pages = Environment(loader=FileSystemLoader(_PAGES), autoescape=True, undefined=StrictUndefined)
    index, template = answers.index, pages.get_template("search.html")

    # Starlette runs these functions in threads.
    def page(request: Request) -> Response:
        query, found, status = PageQuery(q=request.query_params.get("q", "")[:MAX_QUERY]), None, 200
        error: dict[str, Any] = {}
        try:
            query = PageQuery.parse(request.query_params.multi_items(), answers.facets)
            found = None if query.is_empty else answers.shown(query)
        except Exception as failure:
            status, error = _failure(failure)
        html = template.render(
            query=query,
            error=error.get("message"),
            found=found,
            index=index,
            name=printable(index.path.name),
            facets=answers.facets.values(),
            is_words=bool(LEVELS[index.level].surface),
            words=WORDS,
            numbers=sorted({10, 20, 50, MAX_HITS, query.k}),
            limits={"q": MAX_QUERY, "value": MAX_VALUE},
        )
        return HTMLResponse(html, status)

    def search(request: Request) -> Response:
        try:
            query = PageQuery.parse(request.query_params.multi_items(), answers.facets)
            if query.is_empty:
                raise UserError("nothing to search for; pass q=TEXT or like=ROW")
            asked = {name: value for name, value in dataclasses.asdict(query).items() if value not in ("", None)}
            # Decimals become text, as with `bertfeat search --json`.
            text = json.dumps({"query": asked, "hits": answers.objects(query)}, default=str)
            return Response(text, media_type="application/json")
        except Exception as failure:
            status, error = _failure(failure)
            return JSONResponse({"error": error}, status)

    def about(_: Request) -> Response:
        filters = {name: list(facet.choices) or None for name, facet in answers.facets.items()}
        return JSONResponse({**info, "filters": filters})

    routes = [Route("/", page), Route("/api/search", search), Route("/api/info", about)]
    files = [FileResponse(_PAGES / name) for name in ("page.css", "page.js", "icon.svg")]
    routes += [Route(f"/{Path(file.path).name}", file, methods=["GET"]) for file in files]
    return guarded(TrustedHostMiddleware(Starlette(routes=routes), allowed_hosts=[_HOST, "localhost"]))


def guarded(app: Any) -> Any:
    """Refuse requests of other origins' pages, but not links, and keep other sites out of the answer."""

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
    """Return why a request with these headers is refused; empty if it is not."""
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
