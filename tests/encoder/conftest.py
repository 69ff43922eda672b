"""A small BERT in a folder, for tests that change its files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.families import build_model


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model("bert", tmp_path_factory.mktemp("good") / "bert")


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))
