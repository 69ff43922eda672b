"""Stopwatch that adds up the seconds of the stages of a shard."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

ItemT = TypeVar("ItemT")


class Stopwatch:
    """Adds up the seconds of named stages."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the wall-clock seconds of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start

    def each(self, stage: str, items: Iterable[ItemT]) -> Iterator[ItemT]:
        """Yield items, and add the time of waiting for them to a stage."""
        following = iter(items)
        while True:
            with self.time(stage):
                try:
                    item = next(following)
                except StopIteration:
                    return
            yield item
            # Free it before the next one is made: on a GPU, hidden states take most of the memory.
            del item
