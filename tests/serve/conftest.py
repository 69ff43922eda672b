"""Indexes of sentences and of words of a small store, which the tests of the search page share."""

from __future__ import annotations

from pathlib import Path

import pytest

import bertfeat
from tests.support.index_stores import tiny_store


@pytest.fixture(scope="session")
def index_folders(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> dict[str, Path]:
    """The index of each level."""
    folder = tmp_path_factory.mktemp("serving")
    store = tiny_store(folder / "tiny", tiny_folder, levels="sentence,word")
    for level in store.levels:
        bertfeat.build_index(store, folder / level, level=level, threads=1).close()
    return {str(level): folder / level for level in store.levels}
