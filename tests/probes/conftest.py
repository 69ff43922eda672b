"""Small real stores that the tests of probes share, and probes that are fitted once."""

from __future__ import annotations

import pytest

from bertfeat import fit_probe
from bertfeat.probes.fitted import FittedProbe
from tests.support.probe_stores import Stores, make_stores


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return make_stores(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def sentences(stores: Stores) -> FittedProbe:
    """A sum that is not stored, so that it has to be added up from rounded layers."""
    return fit_probe(stores.train, "domain", feature="mean_05_06")
