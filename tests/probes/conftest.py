"""Small real stores that the tests of probes share."""

from __future__ import annotations

import pytest

from tests.support.probe_stores import Stores, make_stores


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return make_stores(tmp_path_factory.getbasetemp())
