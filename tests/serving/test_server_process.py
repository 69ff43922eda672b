"""`bertfeat serve` as a command: a process that Ctrl-C ends, and mistakes in one line."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import bertfeat
from bertfeat.serving import localserver
from tests.support.command_line import refused
from tests.support.index_stores import known_store, tiny_store
from tests.support.places import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    store = tiny_store(folder / "tiny", tiny_folder, levels="sentence")
    bertfeat.build_index(store, folder / "index", threads=1).close()
    return folder / "index"


@pytest.mark.long
def test_ctrl_c_ends_it(index: Path) -> None:
    """A connection that is kept open and half a request do not hold it up."""
    command = [sys.executable, "-m", "bertfeat", "serve", str(index), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            about, address = server.stdout.readline(), server.stdout.readline()
            assert "24 vectors of 32 dimensions" in about
            assert address.startswith("http://127.0.0.1:")
            assert address.endswith("/  (Ctrl-C ends it)\n")
            port = int(address.split("/")[2].partition(":")[2])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/api/search?q=spring&k=3")
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("server")) == (200, None)
            assert answer.read().count(b'"rank"') == 3
            with socket.create_connection(("127.0.0.1", port)) as half:
                half.sendall(b"GET / HTTP/1.1\r\nHost: 127")
                assert "Address already in use; pass another --port" in refused("serve", index, "--port", str(port))
                server.send_signal(signal.SIGINT)
                out, err = server.communicate(timeout=60)
            connection.close()
        finally:
            server.kill()
    assert (server.returncode, out, err) == (0, "", "")


def test_mistakes_are_one_line(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such" in refused("serve", tmp_path / "none")
    assert "--port" in refused("serve", index, "--port", "70000")
    other = known_store(tmp_path / "other", [[1.0, 0.0]])
    assert "hold different features" in refused("serve", index, "--port", "0", "--store", str(other.path))
    # The model of this store does not exist.
    bertfeat.build_index(other, tmp_path / "known", threads=1).close()
    assert "known" in refused("serve", tmp_path / "known", "--port", "0")
    monkeypatch.setattr(localserver, "find_spec", lambda name: None if name != "jinja2" else name)
    said = refused("serve", index, "--port", "0")
    assert "needs starlette and uvicorn: pip install 'bertfeat[serve]'" in said
