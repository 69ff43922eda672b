"""A local server for S3, and a proxy in front of it that fails on purpose."""

from __future__ import annotations

import contextlib
import http.client
import importlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

BUCKET = "features"


@contextlib.contextmanager
def s3_server(**environment: str) -> Iterator[str]:
    """Run moto's server in a process of its own; give its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=os.environ | environment, **quiet) as process:  # type: ignore[call-overload]
        try:
            deadline = time.monotonic() + 60
            while True:
                assert process.poll() is None, "the server ended"
                assert time.monotonic() < deadline, "the server does not start"
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def point_at(patch: pytest.MonkeyPatch, url: str) -> None:
    """Have everything in this process, and in its children, use a server."""
    forget_clients()
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "an-id",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():
        patch.setenv(name, value)


def forget_clients() -> None:
    """Make the next use of an object store read the environment again."""
    from s3fs import S3FileSystem

    from bertfeat.storage import filesystems

    importlib.reload(filesystems)
    S3FileSystem.clear_instance_cache()


def bucket() -> Any:
    """Return the file system, to look at what is there."""
    import fsspec

    return fsspec.filesystem("s3", use_listings_cache=False)


def make_bucket() -> None:
    if not bucket().exists(BUCKET):
        bucket().mkdir(BUCKET)


def upload(path: Path, url: str) -> str:
    bucket().pipe_file(url, path.read_bytes())
    return url


def objects(url: str) -> dict[str, bytes]:
    """Everything below a URL, by relative name."""
    files = bucket()
    start = len(url.removeprefix("s3://")) + 1
    return {name[start:]: files.cat_file(name) for name in sorted(files.find(url))}


def result_objects(url: str) -> dict[str, bytes]:
    """Everything of a store that is reproducible: what `drill.result_files` gives of a local one."""
    return {
        name: data
        for name, data in objects(url).items()
        if name.endswith((".parquet", ".jsonl", "/plan.json")) or name.startswith("manifests/")
    }


# What the proxy does with a request: the answer is lost, late, or cut in half; the request is lost ("dropped"); or the
# answer is an error, with the request carried out ("after 500 InternalError") or not ("503 SlowDown").
FAULTS = (
    "lost",
    "late",
    "cut",
    "dropped",
    "500 InternalError",
    "503 SlowDown",
    "409 ConditionalRequestConflict",
    "after 500 InternalError",
    "after 503 SlowDown",
    "after 404 NoSuchUpload",
)
_LATE_S = 0.3
# Removes headers, or returns the name of a fault, "" for no fault.
Change = Callable[[str, str, dict[str, str]], str]


class _Handler(BaseHTTPRequestHandler):
    """Forwards requests, unless `change` returns a fault."""

    protocol_version = "HTTP/1.1"
    target = ""
    change: Change

    def handle_request(self) -> None:
        headers = dict(self.headers.items())
        n_bytes = int(headers.get("Content-Length", 0))
        body = self.rfile.read(n_bytes) if n_bytes else None
        fault = type(self).change(self.command, self.path, headers)
        error = fault.removeprefix("after ") if " " in fault else ""
        if fault == "dropped" or (error and not fault.startswith("after ")):
            self.fail(error)
            return
        connection = http.client.HTTPConnection(self.target)
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if fault == "lost" or error:
            self.fail(error)
            return
        if fault == "late":
            time.sleep(_LATE_S)
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"content-length", "connection", "transfer-encoding", "date", "server"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
        self.close_connection = self.close_connection or fault == "cut"

    def fail(self, error: str) -> None:
        """Answer with an error, or not at all."""
        if not error:
            self.close_connection = True
            return
        status, _, code = error.partition(" ")
        data = f"<Error><Code>{code}</Code><Message>the proxy says {code}</Message></Error>".encode()
        self.send_response(int(status))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@contextlib.contextmanager
def proxy(url: str, change: Change) -> Iterator[str]:
    """Run a proxy before a server; give its URL."""
    handler = type("Handler", (_Handler,), {"target": url.removeprefix("http://"), "change": staticmethod(change)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def without_conditions(command: str, path: str, headers: dict[str, str]) -> str:
    """Be a server that knows no conditional requests."""
    for name in [name for name in headers if name.lower() == "if-none-match"]:
        del headers[name]
    return ""
