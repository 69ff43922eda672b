"""A process that has imported torch, whose forks read pickle files with the limits of `bertfeat convert`.

It replaces the new process of each conversion, which takes more than a second to start. A line of JSON, the settings,
comes in for each conversion; its exit code goes out.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertfeat.durable import steps
from bertfeat.encoder import conversion, pickleprocess, picklereader
from tests.support.kills import die_at
from tests.support.places import ROOT

_SERVE = "import sys; sys.path[:0] = sys.argv[1:]; from tests.support.pickle_reader import serve; serve()"


def serve() -> None:
    """Fork for every line of settings; must be the first use of torch in the process."""
    has_left = picklereader.leave_system()
    import numpy as np
    import torch

    assert torch.ones(1).numpy().dtype == np.float32
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _read(json.loads(line), has_left)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _read(settings: dict[str, Any], has_left: bool) -> None:
    """Do as `picklereader.main`; with `tried`, try to break out in place of reading."""
    code = 1
    try:
        os.chdir(settings["folder"])
        if "tried" in settings:
            libc, tried = ctypes.CDLL(None), settings["tried"]
            # Found before Python refuses to look for them.
            assert all((libc.open, libc.mkdir, libc.socket, libc.connect, libc.sendto, libc.chroot, libc.execv))
            picklereader._convert = lambda _: _break_out(libc, tried, has_left)
        # Those that a new process would have: the standard library's, and those of the settings.
        own = [place for place in sys.path if place.startswith(sys.base_prefix)]
        sys.path[:] = [*own, *settings["import_path"]]
        report = picklereader.work(settings, has_left=has_left)
        Path("report").write_text(json.dumps(report), encoding="utf-8")
        code = 0
    finally:
        os._exit(code)


def _break_out(libc: Any, tried: dict[str, Any], has_left: bool) -> dict[str, Any]:
    """Try what code of a pickle might: by the system's own calls, and by Python."""
    secret, canary = tried["secret"].encode(), tried["canary"].encode()
    address = socket.AF_INET.to_bytes(2, sys.byteorder) + tried["port"].to_bytes(2, "big") + bytes([127, 0, 0, 1])
    connection, datagrams = (libc.socket(socket.AF_INET, kind, 0) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM))
    by_system = {
        "read": libc.open(secret, os.O_RDONLY),
        "write": libc.open(canary, os.O_WRONLY | os.O_CREAT, 0o600),
        "folder": libc.mkdir(canary, 0o700),
        "new file": libc.open(b"another", os.O_WRONLY | os.O_CREAT, 0o600),
        "connect": libc.connect(connection, address.ljust(16, b"\0"), 16),
        # Landlock knows no datagrams.
        "datagram": libc.sendto(datagrams, b"x", 1, 0, address.ljust(16, b"\0"), 16) if has_left else -1,
        "root": libc.chroot(b"."),
        "run": libc.execv(b"/bin/true", (ctypes.c_char_p * 2)(b"/bin/true", None)),
    }
    by_python = {
        "write": lambda: Path(tried["canary"]).write_text("x"),
        "connect": lambda: socket.create_connection(("127.0.0.1", tried["port"])),
        "run": lambda: subprocess.run(["/bin/true"], check=True),
        "system": lambda: os.system("true"),
        "fork": os.fork,
        "remove": Path("report").unlink,
        "native": lambda: ctypes.CDLL(None),
    }
    said = {}
    for name, attempt in by_python.items():
        try:
            attempt()
            said[name] = "done"
        except Exception as error:
            said[name] = type(error).__name__
    return {"error": json.dumps({"system": by_system, "python": said})}


class Reader:
    """The process as seen by a test; `run` does what `pickleprocess._run` does."""

    def __init__(self) -> None:
        # In no terminal's group: a Ctrl-C is for the tests.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.further: dict[str, Any] = {}

    def run(self, settings: dict[str, Any], cpu_s: int) -> int:
        """Read in a fork, and return its exit code."""
        assert settings["cpu_s"] == cpu_s
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({**settings, **self.further}), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def read_here(settings: dict[str, Any], cpu_s: int) -> int:
    """Read in this process, without limits; does what `pickleprocess._run` does."""
    assert settings["cpu_s"] == cpu_s
    here = Path.cwd()
    os.chdir(settings["folder"])
    report = {**picklereader._convert(settings), "missing": []}
    Path("report").write_text(json.dumps(report), encoding="utf-8")
    os.chdir(here)
    steps.step("pickles.read")
    return 0


def convert_and_die(step: str, folder: str, out: str) -> None:
    """Convert a model in a process that dies at a step."""
    pickleprocess._run = read_here
    die_at(step)
    conversion.convert(folder, out)


@contextlib.contextmanager
def reader() -> Iterator[Reader]:
    """Start the process, and end it."""
    made = Reader()
    try:
        yield made
    finally:
        made.close()
