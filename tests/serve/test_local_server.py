"""The server of the search page on a socket of this machine: requests that no browser sends, mistakes, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bertfeat
from bertfeat.serve.answers import Answers
from bertfeat.serve.page import search_page, web_server
from tests.support.command_line import refused
from tests.support.places import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")
HOST = b"Host: 127.0.0.1\r\n"


@pytest.fixture(scope="module")
def index(index_folders: dict[str, Path]) -> Path:
    return index_folders["sentence"]


@contextlib.contextmanager
def served(index: Path) -> Iterator[int]:
    """Run a server in a thread of this process, and give its port."""
    with bertfeat.open_index(index) as opened, socket.create_server(("127.0.0.1", 0)) as listener:
        made = web_server(search_page(Answers(opened), {}))
        thread = threading.Thread(target=made.run, kwargs={"sockets": [listener]})
        thread.start()
        yield int(listener.getsockname()[1])
        made.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def port(index: Path) -> Iterator[int]:
    with served(index) as found:
        yield found


def sent(port: int, data: bytes, end: bytes = b"") -> bytes:
    """Return what the server answers to some bytes on a connection of their own, up to `end` or to its close."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        answer = b""
        # The server may close it before all is sent.
        with contextlib.suppress(ConnectionError):
            client.sendall(data)
        with contextlib.suppress(ConnectionError):
            while not (end and end in answer) and (part := client.recv(1 << 16)):
                answer += part
        return answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + HOST, 200),
        (b"GET / HTTP/1.1\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: 127.0.0.1\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Origin: http://127.0.0.1\r\nOrigin: http://evil.example\r\n", 403),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Origin: http://a.b\r\nUpgrade: websocket\r\nConnection: upgrade\r\n", 403),
        (b"GET /?q=" + b"x" * 40_000 + b" HTTP/1.1\r\n" + HOST, 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000000000\r\n", 405),
    ],
)  # fmt: skip
def test_requests_that_no_browser_sends(port: int, request_bytes: bytes, status: int) -> None:
    answer = sent(port, request_bytes + b"\r\n", end=b"\r\n\r\n")
    assert answer.split(b" ", 2)[1] == str(status).encode(), answer[:200]
    if status in (403, 405) or b"Invalid host" in answer:
        assert b"content-security-policy: default-src 'none'" in answer
    assert b"\r\nserver:" not in answer
    assert b"access-control" not in answer


@pytest.mark.promise("pages")
def test_requests_beyond_the_bound_are_refused_until_connections_end(index: Path) -> None:
    request = b"GET /page.js HTTP/1.1\r\n" + HOST + b"\r\n"
    with served(index) as port:
        many = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(99)]
        wait_for(lambda: b"503" in sent(port, request, b"\r\n"))
        for client in many:
            client.close()
        wait_for(lambda: b"200 OK" in sent(port, request, b"\r\n"))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_says_what_to_install(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert "pip install 'bertfeat[serve]'" in refused("serve", index, "--port", "0")


# A search for `slow` takes longer than the server waits for answers.
_SLOW = """
import time
from bertfeat.cli import main
from bertfeat.serve.answers import Answers
plain = Answers.objects
Answers.objects = lambda self, query: plain(self, query) if query.q != "slow" else time.sleep(5)
main()
"""


@pytest.mark.long
@pytest.mark.parametrize(("number", "text"), [(signal.SIGINT, "spring"), (signal.SIGTERM, "slow")])
def test_a_signal_ends_it(index: Path, number: signal.Signals, text: str) -> None:
    """An open connection, half a request and a search without an end do not hold it up."""
    command = [sys.executable, "-c", _SLOW, "serve", str(index), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            about, address = process.stdout.readline(), process.stdout.readline()
            assert "24 vectors of 32 dimensions" in about
            assert address.startswith("http://127.0.0.1:")
            assert address.endswith("/  (Ctrl-C ends it)\n")
            port = int(address.split("/")[2].partition(":")[2])
            idle, half = (socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2))
            with idle, half:
                idle.sendall(b"GET /api/search?q=%s&k=3 HTTP/1.1\r\n%s\r\n" % (text.encode(), HOST))
                assert text == "slow" or b"200 OK" in idle.recv(1 << 16)
                half.sendall(b"GET / HTTP/1.1\r\nHost: 127")
                assert "pass another --port" in refused("serve", index, "--port", str(port))
                process.send_signal(number)
                out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "", "")
