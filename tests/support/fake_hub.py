"""A local server that answers what `huggingface_hub` asks of a hub about one data set, commit by commit."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

NAME = "owner/corpus"


@dataclass
class FakeHub:
    """The files of each commit of `owner/corpus`, and the commit of each branch; `main` is at the last one."""

    url: str = ""
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def commit(self, files: dict[str, bytes]) -> str:
        """Put files into a new commit, which `main` is then at."""
        sha = f"{len(self.commits) + 1:040x}"
        self.commits[sha] = files
        self.branches["main"] = sha
        return sha

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return the status, the code of an error, and the body of a request."""
        self.asked.append(path)
        if path.endswith(f"/{NAME}"):
            path += "/revision/main"
        if f"/{NAME}/" not in path:
            return 404, "RepoNotFound", b""
        what, _, rest = path.partition(f"/{NAME}/")[2].partition("/")
        revision, _, place = rest.partition("/")
        sha = self.branches.get(unquote(revision), unquote(revision))
        if sha not in self.commits:
            return 404, "RevisionNotFound", b""
        files, place = self.commits[sha], unquote(place)
        if what == "revision":
            return 200, "", json.dumps({"id": NAME, "sha": sha, "siblings": [], "tags": []}).encode()
        if what == "resolve":
            return (200, "", files[place]) if place in files else (404, "EntryNotFound", b"")
        assert what == "tree", path
        below = {name: data for name, data in files.items() if not place or name.startswith(f"{place}/")}
        if not below:
            return 404, "EntryNotFound", b""
        found = [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in below.items()]
        folders = {name.rpartition("/")[0] for name in below} - {place, ""}
        found += [{"type": "directory", "path": name, "size": 0, "oid": name} for name in folders]
        return 200, "", json.dumps(found).encode()


@contextlib.contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Run a hub in a thread."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, error, body = hub.answer(urlsplit(self.path).path)
            if status == 200 and (asked := self.headers.get("Range")):
                first, last = asked.removeprefix("bytes=").split("-")
                status, body = 206, body[int(first) : int(last) + 1]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if error:
                self.send_header("X-Error-Code", error)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
