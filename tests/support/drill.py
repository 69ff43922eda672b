"""Real extractions in processes that can be killed, without paying seconds of imports for each.

A zygote imports everything that an extraction uses and computes nothing, so that no thread is lost when it forks.
Its children are real processes, really killed. Requests come over a socket, so that a child can ask for workers.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

from tests.support.families import SENTENCES
from tests.support.places import ROOT
from tests.support.runner_fakes import die_at

# The steps of an extraction into a folder.
STEPS = {
    f"{kind}.{stage}"
    for kind in ("plan", "part", "quarantine", "receipt", "manifest")
    for stage in ("opened", "written", "synced", "renamed", "durable")
}
_ALARM_S = 120
_SERVE = "import sys; sys.path[:0] = sys.argv[2:]; from tests.support.drill import serve; serve(sys.argv[1])"


class Zygote:
    """The zygote as seen by a test; `address` can be given to children."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.address = str(folder / "zygote")
        command = [sys.executable, "-c", _SERVE, self.address, str(ROOT)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        # Only a first run shows what an extraction imports.
        self._ready()
        pid = self.fork(list_modules, str(folder / "warm-up"), str(folder / "modules"), settings)
        assert self.wait(pid) == 0
        assert self.wait(ask(self.address, None, (str(folder / "modules"),))) == 0

    def _ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            assert self._process.poll() is None, "the zygote ended"
            assert time.monotonic() < deadline, "the zygote does not start"
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                ask(self.address, int, ())
                return
            time.sleep(0.02)

    def fork(self, function: Callable[..., Any], *arguments: Any) -> int:
        return ask(self.address, function, arguments)

    def wait(self, pid: int) -> int:
        return wait_for(self.address, pid)

    def run(self, function: Callable[..., Any], *arguments: Any) -> int:
        """Run a function in a child; return 0, an exit code, or minus the signal that ended it."""
        return self.wait(self.fork(function, *arguments))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def ask(address: str, function: Callable[..., Any] | None, arguments: tuple[Any, ...], fd: int | None = None) -> int:
    """Run a function in a fork of the zygote, with a file descriptor if one is given; return its process id."""
    with Client(address) as connection:
        connection.send_bytes(pickle.dumps((function, arguments, fd is not None)))
        if fd is not None:
            send_handle(connection, fd, None)
        return int(connection.recv())


def wait_for(address: str, pid: int, timeout_s: float = _ALARM_S) -> int:
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(timeout_s * 1000):
                raise subprocess.TimeoutExpired("a forked child", timeout_s)
        finally:
            os.close(pidfd)
    return ask(address, os.waitpid, (pid,))


def _load() -> None:
    """Import what an extraction takes most seconds to import, and build what transformers keeps for a process."""
    import transformers.models.bert.modeling_bert  # noqa: F401
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    import bertfeat.encoder.loading
    import bertfeat.extraction.run  # noqa: F401

    get_checkpoint_conversion_mapping("bert")


def serve(address: str) -> None:
    """Be the zygote: fork a child for each request, until killed."""
    _load()
    statuses: dict[int, int] = {}
    with Listener(address, backlog=64) as listener:
        while True:
            # The client may be killed between any two bytes.
            with listener.accept() as connection, contextlib.suppress(EOFError, ConnectionError):
                function, arguments, has_fd = pickle.loads(connection.recv_bytes())
                if function is os.waitpid:
                    pid = arguments[0]
                    if pid not in statuses:
                        statuses[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    connection.send(statuses[pid])
                    continue
                if function is None:
                    for name in json.loads(Path(arguments[0]).read_text()):
                        with contextlib.suppress(Exception):
                            importlib.import_module(name)
                    function, arguments = int, ()
                fd = recv_handle(connection) if has_fd else None
                pid = os.fork()
                if pid == 0:
                    # `listener.close` would remove the file of the socket.
                    os.close(listener._listener._socket.fileno())  # type: ignore[attr-defined]
                    _child(function, arguments, fd)
                if fd is not None:
                    os.close(fd)
                connection.send(pid)


def _child(function: Callable[..., Any], arguments: tuple[Any, ...], fd: int | None) -> None:
    signal.alarm(_ALARM_S)
    # A kill does not lose the page cache, so the disk need not be waited for.
    os.fsync = lambda fd: None
    code = 0
    try:
        function(*arguments, *([] if fd is None else [fd]))
    except BaseException as error:
        code = getattr(error, "exit_code", 99)
        if code == 99:
            traceback.print_exc()
    os._exit(code)


def list_modules(root: str, names: str, settings: dict[str, Any]) -> None:
    run_extract(root, settings)
    Path(names).write_text(json.dumps(sorted(name for name in sys.modules if name != "__main__")))


def run_extract(root: str, settings: dict[str, Any]) -> None:
    import torch

    from bertfeat.extraction.run import extract

    torch.set_num_threads(1)
    extract(output=root, **settings)


def run_killed_at(point: int, root: str, settings: dict[str, Any]) -> None:
    """Extract, and die at the step of this number."""
    die_at(point)
    run_extract(root, settings)


class _Forked:
    """The methods of `subprocess.Popen` that a runner needs, for a worker that the zygote forked."""

    def __init__(self, address: str, pid: int) -> None:
        self.address, self.pid = address, pid

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        return wait_for(self.address, self.pid)


def run_pooled(
    address: str, pids: str, root: str, settings: Any, run: Callable[[str, Any], None] = run_extract
) -> None:
    """Extract with workers that the zygote forks; their process ids appear as files in the folder `pids`."""

    def start(command: object, *, pass_fds: list[int], **options: Any) -> _Forked:
        process = _Forked(address, ask(address, run_worker, (), pass_fds[0]))
        Path(pids, str(process.pid)).touch()
        return process

    subprocess.Popen = start  # type: ignore[assignment, misc]
    run(root, settings)


def run_worker(fd: int) -> None:
    import torch

    from bertfeat.runners.processes import work

    torch.set_num_threads(1)
    pipe: Connection[Any, Any] = Connection(fd)
    work(pipe)


@contextlib.contextmanager
def zygote(folder: Path, settings: dict[str, Any]) -> Iterator[Zygote]:
    made = Zygote(folder, settings)
    try:
        yield made
    finally:
        made.close()


def result_files(root: Path) -> dict[str, bytes]:
    """Return the files of a store that are reproducible and that a reader may see."""
    return {
        file.relative_to(root).as_posix(): file.read_bytes()
        for file in sorted(root.rglob("*"))
        if file.is_file()
        and (file.suffix in {".parquet", ".jsonl"} or file.name == "plan.json" or file.parent.name == "manifests")
    }


def orphans(root: Path) -> list[str]:
    """Return the files that a finished store must not hold."""
    kept = set(result_files(root)) | {"_bertfeat/lock"}
    found = (file.relative_to(root).as_posix() for file in root.rglob("*") if not file.is_dir())
    return sorted(n for n in found if n not in kept and not re.fullmatch(r"_bertfeat/work/[0-9a-f]{64}/\d+\.json", n))


def write_corpus(path: Path, n_rows: int, *, bad_every: int | None = None) -> Path:
    """Write JSON lines of different lengths; with `bad_every`, some are cut short."""
    words = SENTENCES[0].split() + SENTENCES[2].split()
    with path.open("w") as file:
        for n in range(n_rows):
            line = json.dumps(
                {"id": f"d{n}", "text": " ".join(words[(n * k) % len(words)] for k in range(1, 4 + n % 9))}
            )
            file.write((line[:-3] if bad_every and n % bad_every == 1 else line) + "\n")
    return path


def three_shards(folder: Path, model: Path) -> dict[str, Any]:
    """Write a corpus into `folder` and return the arguments of `extract`, without the output."""
    return {
        "inputs": str(write_corpus(folder / "corpus.jsonl", 24)),
        "model": str(model),
        "id_column": "id",
        "levels": ["word", "span", "sentence"],
        "chunk": "tokens:3:1",
        "layers": "-1",
        "shard_bytes": 65_000,
    }
