"""Fixtures of the tests of searches: stores that all of them share and none changes."""

from __future__ import annotations

import pytest

from bertfeat.store.reader import Store
from tests.support.index_stores import shared_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store of every level, encoded by MiniLM."""
    return shared_store(tmp_path_factory)
