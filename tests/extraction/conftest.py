"""Small models for whole extractions, and the settings of a small one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertfeat.records import Pack
from tests.support.drill import three_shards
from tests.support.families import SENTENCES, build_model, note_packs
from tests.support.static_files import write_vectors


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of two layers, which no test may change."""
    return build_model("bert", tmp_path_factory.mktemp("model") / "bert", num_hidden_layers=2)


@pytest.fixture(scope="session")
def glove(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors for the words of `SENTENCES`, which load in a moment."""
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    vectors = {word: [number + k / 8 for k in range(32)] for number, word in enumerate(words)}
    return write_vectors(tmp_path_factory.mktemp("vectors") / "glove.txt", vectors)


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[Pack]:
    """The packs that encoders are given during the test."""
    return note_packs(monkeypatch)


@pytest.fixture
def settings(tmp_path: Path, model: Path) -> dict[str, Any]:
    """The settings of an extraction in three shards, without its output."""
    return three_shards(tmp_path, model)
