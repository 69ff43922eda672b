"""A rival in its own process: one JSON line per command on standard input, one per answer on standard output.

    {"do": "load", "peer": NAME, "task": {...}}                      -> {"load_s", "batches", "versions"}
    {"do": "run", "corpus": PATH, "output": PATH, "batch": N}        -> {"wall_s", "cpu_s", "peak_bytes", ...}
    {"do": "embed", "corpus": PATH, "output": PATH, "batch": N}      -> the same; the vectors are saved after the time

It runs with the Python that the rival needs, so that it imports nothing but what every environment has. Whatever a
library prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import measured
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
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["do"] == "load":
                peer, load_s = loaded(asked["peer"], Task(**asked["task"]))
                answer = {"load_s": load_s, "batches": peer.BATCHES, "versions": versions()}
            else:
                answer = timed(peer, asked)
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
        vectors, figures = measured.timed(lambda: peer.embed(texts, asked["batch"]))
        import numpy as np

        with output.open("wb") as file:
            np.save(file, vectors)
        return figures
    extra, figures = measured.timed(lambda: peer.run(corpus, output, asked["batch"]))
    return figures | (extra or {})


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
