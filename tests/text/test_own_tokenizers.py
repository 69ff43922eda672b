"""Tokenizers of a family's own have the ids of transformers; the cache gives the same ones while files are the same."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, EsmTokenizer, GemmaTokenizer, LlamaTokenizer

from bertfeat.durable.records import seal
from bertfeat.text import backend
from bertfeat.text.backend import load_backend
from bertfeat.text.tokenizer import Tokenizer
from tests.support.fakes import texts
from tests.support.families import build_model, build_tokenizer

AMINO_ACIDS = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
TRIPLETS = [*AMINO_ACIDS[:4], "<mask>", *map("".join, product("ACGT", repeat=3)), *"ACGTN"]
# Residues, unknown characters and whitespace, which Python and Rust define differently.
PARTS = (*"LAGVSEACGTNACGTNACGTN.-", *" \t\n\x1c\x1f\x85\u00a0\u2003\u200b", *"jé人<l", "<mask>", "<null_1>", " <eos> ")


def esm(folder: Path, vocabulary: Sequence[str], **tokens: str | None) -> Path:
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "esm", "vocab_size": len(vocabulary)}))
    EsmTokenizer(str(folder / "vocab.txt"), **tokens).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("vocabulary", [AMINO_ACIDS, TRIPLETS], ids=["amino acids", "triplets"])
def test_ids_of_esm_equal_transformers(tmp_path: Path, vocabulary: list[str]) -> None:
    folder = esm(tmp_path / "esm", vocabulary)
    reference = AutoTokenizer.from_pretrained(str(folder))
    assert not reference.is_fast
    backend, cls_id = load_backend(folder)
    assert cls_id == reference.cls_token_id
    rng = random.Random(0)
    for _ in range(500):
        first, second = ("".join(rng.choices(PARTS, k=rng.randrange(25))) for _ in range(2))
        assert backend.encode(first).ids == reference(first)["input_ids"], first
        assert backend.encode(first, second).ids == reference(first, second)["input_ids"], (first, second)
        words = [word for word in first.split(" ") if word]
        if words:
            given = reference(words, is_split_into_words=True)["input_ids"]
            assert backend.encode(words, is_pretokenized=True).ids == given, words


def test_nucleotide_transformer_has_no_token_at_the_end(tmp_path: Path) -> None:
    folder = esm(tmp_path / "nucleotides", TRIPLETS, eos_token=None)
    reference = AutoTokenizer.from_pretrained(str(folder))
    for text in ("ACGTNACGTACGT", "acgtACG", "A"):
        assert load_backend(folder)[0].encode(text).ids == reference(text)["input_ids"]
    tokens = Tokenizer.load(folder).encode(texts("ACGTNACGTACGT"))
    assert tokens.char_start.tolist() == [0, 3, 4, 5, 8, 11, 12]


@pytest.mark.parametrize("kind", [None, LlamaTokenizer, GemmaTokenizer])
def test_words_of_tokenizers_that_split_none_are_between_whitespace(tmp_path: Path, kind: type[Any] | None) -> None:
    """A space that is a token of its own belongs to the next word, and so do the bytes of a character."""
    folder = build_tokenizer("sentencepiece", tmp_path / "plain")
    if kind is not None:
        model = json.loads((folder / "tokenizer.json").read_text())["model"]
        pieces = dict.fromkeys([*model["vocab"], "<pad>", "<bos>", "<eos>"])
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        folder = tmp_path / "own"
        kind(vocab=vocabulary, merges=[tuple(merge) for merge in model["merges"]]).save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    found = ["The quick  brown fox\njumps over naïve café.", "", " a é\tb", "中文 字"]
    tokens, reference = Tokenizer.load(folder).encode(texts(*found)), AutoTokenizer.from_pretrained(str(folder))
    words = []
    for number, text in enumerate(found):
        span = slice(tokens.starts[number], tokens.starts[number + 1])
        assert tokens.ids[span].tolist() == reference(text, add_special_tokens=False)["input_ids"]
        bounds = zip(tokens.word[span], tokens.char_start[span], tokens.char_end[span], strict=True)
        grouped = [[(start, end) for _, start, end in group] for _, group in groupby(bounds, key=lambda row: row[0])]
        words.append(["".join(dict.fromkeys(text[start:end] for start, end in one)).lstrip(" ") for one in grouped])
    assert words[0] == ["The", "quick", "brown", "fox", "\n", "jumps", "over", "naïve", "café."]
    assert words[1:] == [[], ["a", "é", "\t", "b"], ["中文", "字"]]


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
