"""Starter of the process that reads pickle files (`picklereader`): its limits, its end, and what it says.

The process has no network, no environment, no rights of root, and may write only into files that this module made. Each
limit is what the system offers; docs/models.md says which system offers what.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfeat.display import printable
from bertfeat.encoder.weights import read_json
from bertfeat.errors import CheckpointError, RunError

_READER = Path(__file__).resolve().with_name("picklereader.py")
_ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Where a system keeps libraries in places of its own, torch is not found without these.
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# A file holds shared tensors once, and safetensors each of them; one tensor at a time is copied.
_MAX_GROWTH = 2
_SLACK_BYTES = 1 << 20
# Characters of what the process says in one message.
_MAX_SAID = 600


@dataclass(frozen=True, slots=True)
class Limits:
    """What the process may use.

    Attributes:
        extra_bytes: Memory beyond what Python and torch take and twice the largest file.
        base_s: Seconds of computing beyond those of reading and writing.
        bytes_per_s: The speed of reading and writing that is expected at least.
        shard_bytes: The size of tensors from which on a further file is begun.
    """

    extra_bytes: int = 1 << 30
    base_s: int = 120
    bytes_per_s: int = 20_000_000
    shard_bytes: int = 4_000_000_000


@dataclass(frozen=True, slots=True)
class Written:
    """What the process wrote.

    Attributes:
        shards: The files with the tensors of each pickle file.
        left_out: The names of entries other than tensors.
        missing_limits: What this system could not limit: memory, files and programs, network.
    """

    shards: tuple[tuple[Path, ...], ...]
    left_out: tuple[str, ...]
    missing_limits: tuple[str, ...]


def read_pickles(pickles: Sequence[Path], folder: Path, limits: Limits) -> Written:
    """Write the tensors of pickle files as safetensors, in a process with limits.

    Args:
        pickles: The files, resolved.
        folder: A new folder for what it writes.
        limits: What the process may use.

    Raises:
        CheckpointError: A file holds something other than tensors, or reading it takes more than the limits.
        RunError: The process cannot be started.
    """
    sizes = [path.stat().st_size for path in pickles]
    # Two neighbouring shards hold together more than one shard's bytes.
    n_files = sum(2 * _MAX_GROWTH * size // limits.shard_bytes + 2 for size in sizes)
    cpu_s = limits.base_s + sum(sizes) // limits.bytes_per_s
    for name in [*range(n_files), "report"]:
        (folder / str(name)).touch()
    settings = {
        "pickles": [str(path) for path in pickles],
        "folder": str(folder.resolve()),
        "import_path": [place for place in sys.path if _holds_packages(Path(place))],
        "libraries": [place for name in _KEPT for place in os.environ.get(name, "").split(":") if place],
        "n_files": n_files,
        "shard_bytes": limits.shard_bytes,
        "max_bytes": _MAX_GROWTH * max(sizes) + limits.extra_bytes,
        "max_output_bytes": _MAX_GROWTH * sum(sizes) + _SLACK_BYTES,
        "cpu_s": cpu_s,
    }
    source = pickles[0].parent
    if (code := _run(settings, cpu_s)) != 0:
        reason = _how_it_ended(code, cpu_s)
        raise CheckpointError(
            f"{source}: the process that reads its pickle files {reason}; they are damaged or hostile"
        )
    report = _report(folder / "report", len(pickles), n_files)
    if "not_started" in report:
        reason = _shown(report["not_started"])
        raise RunError(f"{source}: the process that reads its pickle files does not start: {reason}")
    if "error" in report:
        raise CheckpointError(_shown(report["error"]))
    return Written(
        tuple(tuple(folder / str(int(number)) for number in shards) for shards in report["shards"]),
        tuple(_shown(name) for name in report["left_out"]),
        tuple(_shown(name) for name in report["missing"]),
    )


def _holds_packages(place: Path) -> bool:
    """Return whether packages are installed there: the process reads there, and never in the folder of a script."""
    return place.is_absolute() and (any(place.glob("*.dist-info")) or (place / "torch").is_dir())


def _run(settings: dict[str, Any], cpu_s: int) -> int | None:
    """Run the process to its end, and return its exit code; None if it took too long.

    It ends with this process, and no process that it started stays.
    """
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(_READER), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**_ENVIRONMENT, **{name: os.environ[name] for name in _KEPT if name in os.environ}},
            # A Ctrl-C is for this process, which ends the other one.
            start_new_session=True,
        )
    except OSError as error:
        raise RunError(f"the process that reads pickle files does not start: {error.strerror or error}") from error
    try:
        # A process that waits for a disk, or whose computing time the system does not limit, has five times as long.
        return process.wait(5 * cpu_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _how_it_ended(code: int | None, cpu_s: int) -> str:
    if code is None or code == -signal.SIGXCPU:
        return f"took longer than its limit of {cpu_s} seconds"
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL), perhaps because memory ran out"
    if code > 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"crashed ({name})"


def _report(path: Path, n_pickles: int, n_files: int) -> dict[str, Any]:
    """Read what the process says; the numbers of its files must be those from 0 on."""
    try:
        report = read_json(path)
        if "error" in report or "not_started" in report:
            return report
        numbers = [number for shard in report["shards"] for number in shard]
        if len(report["shards"]) == n_pickles and numbers == list(range(len(numbers))) and len(numbers) <= n_files:
            return {"shards": report["shards"], **{key: list(report[key]) for key in ("left_out", "missing")}}
    except (CheckpointError, KeyError, TypeError):
        pass
    raise CheckpointError(f"{path}: the process that reads pickle files gave no report; the files are hostile")


def _shown(said: object) -> str:
    return printable(str(said)[:_MAX_SAID])
