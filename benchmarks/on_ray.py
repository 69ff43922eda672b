"""The cost of Ray: seconds per shard against the local loop, the start-up, and weak scaling from one actor to two.

The cost a shard is the slope over runs of more and fewer empty shards, and the start-up what is left of them. For weak
scaling MiniLM encodes one corpus with one actor and twice that with two, one thread each; parts are written for real.

    python -m benchmarks.on_ray [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Before torch is imported anywhere: the results of an actor must not depend on the number of actors.
os.environ["OMP_NUM_THREADS"] = "1"

import bertfeat
from benchmarks.empty_shards import EmptyTask
from benchmarks.machine import describe_machine
from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.dispatch import run_shards
from bertfeat.runners.ray import OnRay, connection

TEXT = Path(__file__).parent.parent / "examples" / "data" / "peps.txt"


class Clock(Progress):
    """Progress that records when shards were done, and their tokens."""

    def __init__(self) -> None:
        self.done: list[tuple[float, int]] = []

    def committed(self, receipt: Receipt) -> None:
        """Record a shard."""
        self.done.append((time.perf_counter(), receipt.counts.get("n_encoded_tokens", 0)))

    @property
    def tokens_per_s(self) -> float:
        """The rate after the first shards, when every actor has loaded its model."""
        n_first = max(1, len(self.done) // 4)
        seconds = self.done[-1][0] - self.done[n_first - 1][0]
        return sum(tokens for _, tokens in self.done[n_first:]) / seconds


def seconds_of(n_shards: int, workers: int | OnRay) -> float:
    start = time.perf_counter()
    run_shards(EmptyTask, [ShardSpec(n, n, 1, ()) for n in range(n_shards)], workers, Progress())
    return time.perf_counter() - start


def cost(sizes: Sequence[int]) -> dict[str, float]:
    few, many = sizes
    place = OnRay(None, 2, False)
    local = [seconds_of(n, 1) for n in sizes]
    ray = [seconds_of(n, place) for n in sizes]
    return {
        "local_ms_per_shard": 1e3 * (local[1] - local[0]) / (many - few),
        "ray_ms_per_shard": 1e3 * (ray[1] - ray[0]) / (many - few),
        "ray_s_before_the_first_shard": ray[0] - few * (ray[1] - ray[0]) / (many - few),
        f"ray_s_for_{many}": ray[1],
    }


def scaling(n_copies: int, folder: Path) -> dict[str, float]:
    found = {}
    for n_actors in (1, 2):
        corpus = folder / f"corpus-{n_actors}.txt"
        corpus.write_text(TEXT.read_text(encoding="utf-8") * (n_copies * n_actors), encoding="utf-8")
        for runner in ("local", "ray"):
            clock, start = Clock(), time.perf_counter()
            bertfeat.extract(
                corpus,
                folder / f"{runner}-{n_actors}",
                runner=runner,
                workers=n_actors,
                shard_bytes=8_000_000,
                progress=clock,
            )
            found[f"{runner}_{n_actors}_s"] = time.perf_counter() - start
            found[f"{runner}_{n_actors}_tokens_per_s"] = clock.tokens_per_s
            found[f"{runner}_{n_actors}_shards"] = len(clock.done)
        parts = [sorted((folder / f"{runner}-{n_actors}").rglob("part-*")) for runner in ("local", "ray")]
        assert [p.read_bytes() for p in parts[0]] == [p.read_bytes() for p in parts[1]]
    for runner in ("local", "ray"):
        found[f"{runner}_scaling"] = found[f"{runner}_2_tokens_per_s"] / found[f"{runner}_1_tokens_per_s"] / 2
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a run of a minute or two")
    parser.add_argument("--json", type=Path, help="where to write the result")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.perf_counter()
        with connection("local"):
            result: dict[str, Any] = {"machine": describe_machine(), "ray_start_s": time.perf_counter() - start}
            result |= cost((20, 100) if arguments.quick else (50, 1000))
            result |= scaling(1 if arguments.quick else 6, folder)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
