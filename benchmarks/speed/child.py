"""A rival in its own process: one JSON line per command on standard input, one per answer on standard output.

    {"do": "load", "peer": NAME, "task": {...}}                      -> {"load_s", "batches", "versions"}
    {"do": "run", "corpus": PATH, "output": PATH, "batch": N}        -> {"wall_s", "cpu_s", "peak_bytes", ...}
    {"do": "embed", "corpus": PATH, "output": PATH, "batch": N}      -> the same; the vectors are saved after the time

It runs with the Python that the rival needs, so that it imports nothing but what every environment has. Whatever a
library prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.speed.peers import Task, make_peer, read_corpus

_LIBRARIES = (
    *("torch", "transformers", "sentence-transformers", "flair", "onnxruntime", "openvino", "nncf", "ctranslate2"),
    *("pyarrow", "polars"),
)


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    peer: Any = None
    device = "cpu"
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["do"] == "load":
                device = asked["task"]["device"]
                peer, load_s = loaded(asked["peer"], Task(**asked["task"]))
                answer = {"load_s": load_s, "batches": peer.BATCHES, "versions": versions()}
            else:
                with busy_share(device) as busy:
                    answer = timed(peer, asked)
                answer |= busy
        except Exception as error:
            # The other side must receive every failure, whatever the library raises.
            answer = {"error": f"{type(error).__name__}: {error}".split("\n")[0][:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def loaded(name: str, task: Task) -> tuple[Any, float]:
    """Load a rival twice and time the second: the first imports its libraries, and exports a model if needed."""
    make_peer(name, task)
    start = time.perf_counter()
    peer = make_peer(name, task)
    return peer, time.perf_counter() - start


def timed(peer: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Run once; processor seconds are those of all threads and of child processes."""
    corpus, output = Path(asked["corpus"]), Path(asked["output"])
    if asked["do"] == "embed":
        texts = read_corpus(corpus)
        measured, vectors = _measured(lambda: peer.embed(texts, asked["batch"]))
        import numpy as np

        with output.open("wb") as file:
            np.save(file, vectors)
        return measured
    measured, extra = _measured(lambda: peer.run(corpus, output, asked["batch"]))
    return measured | (extra or {})


@contextlib.contextmanager
def busy_share(device: str) -> Iterator[dict[str, float]]:
    """Measure the share of time in which a CUDA device runs kernels; it is known after the block."""
    found: dict[str, float] = {}
    if not device.startswith("cuda"):
        yield found
        return
    import torch

    # nvidia-smi numbers all devices of the machine, torch only those in CUDA_VISIBLE_DEVICES.
    uuid = torch.cuda.get_device_properties(device).uuid
    query = [
        "nvidia-smi",
        f"--id=GPU-{uuid}",
        "--query-gpu=utilization.gpu",
        "--format=csv,noheader,nounits",
        "-lms",
        "100",
    ]
    with subprocess.Popen(query, stdout=subprocess.PIPE, text=True) as sampler:
        try:
            yield found
        finally:
            sampler.terminate()
        assert sampler.stdout is not None
        samples = [float(line) for line in sampler.stdout.read().split() if line.isdigit()]
    if samples:
        found["gpu_busy"] = sum(samples) / len(samples) / 100


def _measured(call: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    cpu, start = _cpu_seconds(), time.perf_counter()
    result = call()
    wall_s = time.perf_counter() - start
    return {"wall_s": wall_s, "cpu_s": _cpu_seconds() - cpu, "peak_bytes": _peak_bytes()}, result


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        # macOS counts in bytes.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = status.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def versions() -> dict[str, str]:
    """Return the versions of the libraries that are in this environment."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
