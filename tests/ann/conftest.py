"""Fixtures of the tests of indexes."""

from __future__ import annotations

from collections.abc import Iterator

import faiss
import pytest


@pytest.fixture(autouse=True)
def one_faiss_thread() -> Iterator[None]:
    """Search on one thread: tiny indexes are slower when they are shared out among several."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)
