"""Processes that put values into a cache of vectors, for `drill.Zygote`."""

from __future__ import annotations

import hashlib
import random
from contextlib import closing

from bertfeat.extraction.vectorcache import VectorCache
from tests.support.kills import die_at


def value_of(number: int, size: int) -> tuple[bytes, bytes]:
    """Return a key and its value, which follow from a number."""
    key = hashlib.sha256(f"{number} {size}".encode()).digest()[:16]
    return key, random.Random(number).randbytes(size)


def put_killed_at(point: int, folder: str, n_values: int, size: int) -> None:
    """Put values, and die at the step of this number."""
    die_at(point)
    with closing(VectorCache(folder, 100_000_000)) as cache:
        for first in range(0, n_values, 20):
            cache.put(value_of(number, size) for number in range(first, min(first + 20, n_values)))


def put_some(folder: str, max_bytes: int, seed: int) -> None:
    """Put and read values of 400 numbers, in an order of the seed, and check those that are read."""
    lucky = random.Random(seed)
    for _ in range(12):
        some = dict(value_of(lucky.randrange(400), 1500) for _ in range(100))
        large = dict(value_of(lucky.randrange(40), 40_000) for _ in range(5))
        with closing(VectorCache(folder, max_bytes)) as cache:
            cache.put((some | large).items())
            read = dict(cache.get({key: len(value) for key, value in (some | large).items()}))
            assert read.items() <= (some | large).items()
