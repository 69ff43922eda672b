"""Processes that put values into a cache of vectors, for `drill.Zygote`."""

from __future__ import annotations

import hashlib
import random

from bertfeat.extraction.vector_cache import VectorCache
from tests.support.kills import die_at


def some(n: int, first: int = 0, size: int = 1500) -> dict[bytes, bytes]:
    """Return keys and values, which follow from their numbers."""
    return {
        hashlib.sha256(f"{number} {size}".encode()).digest()[:16]: random.Random(number).randbytes(size)
        for number in range(first, first + n)
    }


def put_killed_at(point: int, folder: str) -> None:
    """Put 40 values in two transactions, and die at the step of this number."""
    die_at(point)
    with VectorCache(folder, 100_000_000) as cache:
        for first in (0, 20):
            cache.put(some(20, first, 3000).items())


def put_some(folder: str, max_bytes: int, seed: int) -> None:
    """Put and read values in an order of the seed, some large, and check those that are read."""
    lucky = random.Random(seed)
    for _ in range(12):
        values = some(100, lucky.randrange(300)) | some(5, lucky.randrange(40), 40_000)
        with VectorCache(folder, max_bytes) as cache:
            cache.put(values.items())
            assert cache.get(values).items() <= values.items()
