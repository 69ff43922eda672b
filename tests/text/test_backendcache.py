"""The cache of tokenizers: the same tokenizer without transformers, for as long as the files are the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bertfeat.durable.records import seal
from bertfeat.text import backend
from bertfeat.text.tokenizer import Tokenizer
from tests.support.families import build_model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTFEAT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenizers"


@pytest.fixture
def model(tmp_path: Path, tiny_folder: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


@pytest.mark.promise("cached")
@pytest.mark.parametrize("family", ["bert", "roberta", "esm"])
def test_the_second_load_gives_the_same_and_asks_no_transformers(
    family: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_model(family, tmp_path / family)
    fresh, cls_id = backend.load_backend(folder)
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: pytest.fail("transformers was asked"))
    kept, kept_cls_id = backend.load_backend(folder)
    assert (kept.to_str(), kept_cls_id) == (fresh.to_str(), cls_id)
    assert kept.encode("The bank.", "a 1").ids == fresh.encode("The bank.", "a 1").ids


@pytest.mark.promise("cached")
def test_a_changed_file_or_version_or_place_is_another_entry(
    model: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Tokenizer.load(model).cls_id is not None
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "cls_token": "[SEP]"}))
    assert Tokenizer.load(model).cls_id == Tokenizer.load(model).single.suffix.ids[-1]
    Tokenizer.load(Path(shutil.copytree(model, tmp_path / "copy")))
    monkeypatch.setattr(backend, "version", lambda _: "0")
    Tokenizer.load(model)
    monkeypatch.setattr(backend, "__version__", "0")
    Tokenizer.load(model)
    assert len(list(cache.iterdir())) == 5


def test_a_damaged_entry_is_made_again(model: Path, cache: Path) -> None:
    before = backend.load_backend(model)[0].to_str()
    (entry,) = cache.iterdir()
    good = entry.read_bytes()
    for damaged in (b"", good[:-1], good[:40] + bytes([good[40] ^ 1]) + good[41:], seal({"tokenizer": before})):
        entry.write_bytes(damaged)
        assert backend.load_backend(model)[0].to_str() == before
        assert entry.read_bytes() == good
