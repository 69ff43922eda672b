"""A small BERT in a folder, for tests that change its files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertfeat.encoder import pickleprocess
from tests.support.families import build_model
from tests.support.pickle_reader import Reader, reader


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model("bert", tmp_path_factory.mktemp("good") / "bert")


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))


@pytest.fixture(scope="session")
def process() -> Iterator[Reader]:
    with reader() as made:
        yield made


@pytest.fixture
def forked(process: Reader, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Pickle files are read in forks of one process, each with its own limits."""
    monkeypatch.setattr(pickleprocess, "_run", process.run)
    yield process
    process.further = {}
