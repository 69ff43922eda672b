"""Requests that the search page answers, by many clients at once: how many are lost, and how long each takes.

    python -m benchmarks.serving INDEX [--requests 1000] [--clients 20] [--json FILE]
    python -m benchmarks.serving --rows 500000

With `--rows` the index is made first: texts of random words with static vectors of 384 numbers, and three columns.

Starts `bertfeat serve INDEX` on a free port and sends texts of its own store, or single words in an index of words, to
`/api/search`. A client sends its next request when it has the answer to the last one. A request counts as lost if
it has no answer, another status than 200, or no hits. At the end the server gets SIGINT and must end with code 0.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import psutil

import bertfeat
from benchmarks.machine import report

_N_TEXTS = 200
_MAX_CHARS = 200


def queries(index: str) -> list[str]:
    """Return texts of the store of an index, or words of it."""
    with bertfeat.open_index(index) as opened:
        column = "text" if opened.level == "sentence" else opened.level
        rows = opened.rows[:: max(1, len(opened.rows) // _N_TEXTS)]
        texts = opened.store.rows(opened.level, rows, [column])[column].to_list()
    found = [text[:_MAX_CHARS] for text in texts if text and text.strip()]
    return found if column == "text" else [text for text in found if text.isalnum()]


def random_index(folder: Path, n_rows: int) -> str:
    """Make an index of texts of 5 to 30 random words out of 3,000, with the columns label, n and source."""
    drawn, words = random.Random(0), [f"word{number}" for number in range(3000)]
    vectors = np.random.default_rng(0).normal(size=(len(words), 384))
    with (folder / "glove.txt").open("w", encoding="utf-8") as model:
        for word, vector in zip(words, vectors, strict=True):
            model.write(f"{word} {' '.join(f'{value:.4f}' for value in vector)}\n")
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as corpus:
        for number in range(n_rows):
            text = " ".join(drawn.choices(words, k=drawn.randint(5, 30)))
            columns = {"label": drawn.choice("abcdefgh"), "n": number % 1000, "source": f"file{number}"}
            corpus.write(json.dumps({"text": text, **columns}) + "\n")
    store = bertfeat.extract(
        folder / "corpus.jsonl",
        folder / "store",
        model=str(folder / "glove.txt"),
        levels="sentence",
        keep_columns="label,n,source",
    )
    bertfeat.build_index(store, folder / "index").close()
    return str(folder / "index")


def requests(address: str, texts: Sequence[str]) -> tuple[list[float], list[str]]:
    """Send requests one after the other on one connection; return the seconds of each, and the lost ones."""
    connection = HTTPConnection(urlsplit(address).netloc, timeout=60)
    seconds, lost = [], []
    for text in texts:
        started = time.perf_counter()
        try:
            connection.request("GET", f"/api/search?{urlencode({'q': text, 'k': 10})}")
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200 or not json.loads(body)["hits"]:
                lost.append(f"{answer.status} {body[:200]!r}")
        except (OSError, HTTPException, ValueError) as error:
            lost.append(repr(error))
            connection.close()
        seconds.append(time.perf_counter() - started)
    connection.close()
    return seconds, lost


def measure(index: str, n_requests: int, n_clients: int) -> dict[str, Any]:
    """Run the server and the clients; return counts and seconds."""
    texts = queries(index)
    command = [sys.executable, "-m", "bertfeat", "serve", index, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(found[0] for line in server.stdout if (found := re.match(r"http://\S+", line)))
            process = psutil.Process(server.pid)
            ready_s, started = _processor_seconds(process), time.perf_counter()
            shares = [[texts[at % len(texts)] for at in range(n, n_requests, n_clients)] for n in range(n_clients)]
            with ThreadPoolExecutor(n_clients) as clients:
                answers = list(clients.map(partial(requests, address), shares))
            seconds = time.perf_counter() - started
            work_s, n_bytes = _processor_seconds(process) - ready_s, process.memory_info().rss
        finally:
            server.send_signal(signal.SIGINT)
        code = server.wait(timeout=60)
    taken = sorted(second for each, _ in answers for second in each)
    lost = [reason for _, each in answers for reason in each]
    return {
        "requests": len(taken),
        "clients": n_clients,
        "lost": len(lost),
        "reasons": lost[:5],
        "seconds": round(seconds, 3),
        "requests_per_s": round(len(taken) / seconds, 1),
        "median_ms": round(1000 * statistics.median(taken), 1),
        "p95_ms": round(1000 * taken[int(0.95 * (len(taken) - 1))], 1),
        "max_ms": round(1000 * taken[-1], 1),
        "processor_ms_per_request": round(1000 * work_s / len(taken), 1),
        "processor_s_until_ready": round(ready_s, 1),
        "memory_mb": round(n_bytes / 1e6),
        "exit_code": code,
    }


def _processor_seconds(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", nargs="?")
    parser.add_argument("--rows", type=int, help="make an index of this many rows")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if (given.index is None) == (given.rows is None):
        parser.error("give an index, or --rows")
    with tempfile.TemporaryDirectory() as folder:
        result = measure(given.index or random_index(Path(folder), given.rows), given.requests, given.clients)
    report(result, given.json)
    sys.exit(bool(result["lost"] or result["exit_code"]))


if __name__ == "__main__":
    main()
