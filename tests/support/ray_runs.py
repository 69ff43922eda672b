"""A local Ray cluster for the tests, and runs on it in separate processes, as a user starts them.

`python -m tests.support.ray_runs ADDRESS OUTPUT` writes a store of synthetic results: a real run without a model.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bertfeat.choices import Level
from bertfeat.errors import BertfeatError
from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardResult, ShardSpec
from bertfeat.runners.dispatch import run_shards
from bertfeat.runners.ray import OnRay
from bertfeat.storage import as_path
from bertfeat.store.commit import commit_shard
from bertfeat.store.writer import open_for_writing
from tests.support.places import ROOT
from tests.support.runner_fakes import is_alive, wait_until
from tests.support.store_fakes import make_plan, make_result

_HEAD = "from ray.scripts.scripts import main; main()"
_DRIVE = """
import json, sys
from pathlib import Path
from tests.support.runner_fakes import Heard, MakeFake, make_shards
from bertfeat.errors import BertfeatError
from bertfeat.runners.dispatch import run_shards
from bertfeat.runners.ray import OnRay
address, folder, n_shards, deeds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
heard, error = Heard(), None
try:
    run_shards(MakeFake(folder / "notes", deeds), make_shards(n_shards), OnRay(address, 2, False), heard)
except BertfeatError as raised:
    error = [type(raised).__name__, str(raised), raised.exit_code]
print("HEARD " + json.dumps({"shards": sorted(heard.shards), "error": error}))
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@dataclass(frozen=True)
class Cluster:
    """A head with two CPUs; `environment` is that of its clients."""

    address: str
    client_address: str
    environment: Mapping[str, str]
    head: int

    def driver(self, n_shards: int, folder: Path, deeds: str = "{}") -> list[str]:
        """Return the command of a run with fakes, which write their notes into `folder`."""
        (folder / "notes").mkdir(exist_ok=True)
        return [sys.executable, "-c", _DRIVE, self.address, str(folder), str(n_shards), deeds]

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=dict(self.environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def actors(self) -> list[int]:
        """Return the processes of actors that run shards."""
        return actors_under(self.head)


def actors_under(pid: int) -> list[int]:
    """Return the processes of actors that run shards, of a Ray that the process `pid` started."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "ShardActor" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start a head, and end it with all its processes."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    port, client_port = free_port(), free_port()
    flags = [f"--port={port}", f"--ray-client-server-port={client_port}", "--node-ip-address=127.0.0.1"]
    flags += ["--num-cpus=2", "--object-store-memory=100000000", "--include-dashboard=false", "--disable-usage-stats"]
    with (folder / "head.log").open("wb") as log:
        head = subprocess.Popen(
            [sys.executable, "-c", _HEAD, "start", "--head", "--block", *flags],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: "Ray runtime started" in (folder / "head.log").read_text() or head.poll() is not None)
        assert head.poll() is None, (folder / "head.log").read_text()
        yield Cluster(f"127.0.0.1:{port}", f"ray://127.0.0.1:{client_port}", environment, head.pid)
    finally:
        processes = [head, *(psutil.Process(head.pid).children(recursive=True) if head.poll() is None else [])]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        head.wait()
        wait_until(lambda: not any(is_alive(process.pid) for process in processes))


PLAN = make_plan((3,) * 30, levels=(Level.TOKEN, Level.SENTENCE), combine="none")


class CommitTask:
    """A task with known results that takes some time."""

    n_writers = 1

    def __init__(self, root: Any, worker: int, n_workers: int) -> None:
        self._root = root

    def prepare(self, shard: ShardSpec) -> ShardSpec:
        time.sleep(0.05)
        return shard

    def encode(self, prepared: ShardSpec, report: Any) -> ShardResult:
        return make_result(PLAN, prepared, n_bad=1)

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        return commit_shard(self._root, PLAN, shard, result)


def run(output: str | Path, address: str | None = None) -> None:
    """Make the store; without an address, in this process."""
    root = as_path(output)
    with open_for_writing(root, PLAN) as writer:
        if not writer.is_complete:
            workers = 1 if address is None else OnRay(address, 2, False)
            run_shards(partial(CommitTask, root), writer.pending(), workers, Progress())
            writer.complete()


def main() -> None:
    # Workers import the task from here by name.
    from tests.support.ray_runs import run as run_as_module

    try:
        run_as_module(sys.argv[2], sys.argv[1])
    except BertfeatError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
