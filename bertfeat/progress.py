"""What a run tells of itself while it runs, and the stopwatch of its stages."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from bertfeat.records import Plan, Receipt

ItemT = TypeVar("ItemT")


class Progress(Protocol):
    """Hears of a run; every method may be called from several threads."""

    def stage(self, text: str) -> None:
        """A stage without a measure begins: reading the corpus, loading the model."""

    def start(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        """The shards begin; `receipts` are those of an earlier run."""

    def encoded(self, n_tokens: int) -> None:
        """A pack went through the encoder."""

    def committed(self, receipt: Receipt) -> None:
        """A shard is safely on disk."""


class Silent:
    """A progress that says nothing."""

    def stage(self, text: str) -> None:
        """Say nothing."""

    def start(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        """Say nothing."""

    def encoded(self, n_tokens: int) -> None:
        """Say nothing."""

    def committed(self, receipt: Receipt) -> None:
        """Say nothing."""


class Stopwatch:
    """Adds up the seconds of named stages."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Time a stage; wall-clock seconds."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start

    def each(self, stage: str, items: Iterable[ItemT]) -> Iterator[ItemT]:
        """Yield items, and time how long they are waited for."""
        following = iter(items)
        while True:
            with self.time(stage):
                try:
                    item = next(following)
                except StopIteration:
                    return
            yield item
            # Not kept while the next one is made: on a GPU, hidden states take most of the memory.
            del item
