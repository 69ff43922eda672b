"""Word and sentence features of real sentences against independent implementations: transformers, flair, and others."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bertfeat
from bertfeat.store.reader import Store
from tests.support.oracle import Array, Oracle, assert_close
from tests.support.places import TESTS

FILES = ("wnut17_test.conll", "bc5cdr_test.tsv")
LAYERS = (0, 3, 4, 5, 6)


def blocks(name: str, n: int) -> list[list[str]]:
    """Return the lines of the first `n` sentences of a file, read in the plainest way."""
    found: list[list[str]] = [[]]
    for line in (TESTS / "data" / "ner" / name).read_text(encoding="utf-8").split("\n"):
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [lines for lines in found if lines][:n]


def sentences(name: str, n: int) -> list[list[str]]:
    return [[line.split("\t")[0] for line in lines] for lines in blocks(name, n)]


def naive_words(oracle: Oracle, words: list[str]) -> tuple[Array, Array]:
    """Return the first and the mean state of each word, float32 (n_layers + 1, n_words, hidden)."""
    encoded = oracle.tokenizer(words, is_split_into_words=True)
    states = oracle.states(encoded["input_ids"], encoded["token_type_ids"])
    places: list[list[int]] = [[] for _ in words]
    for place, word in enumerate(encoded.word_ids()):
        if word is not None:
            places[word].append(place)
    first = np.stack([states[:, found[0]] for found in places], axis=1)
    mean = np.stack([states[:, found].mean(axis=1) for found in places], axis=1)
    return first, mean


def words_store(folder: Path, name: str, n: int, word_pooling: str, stored: str) -> Store:
    path = folder / name
    path.write_text("".join("".join(line + "\n" for line in lines) + "\n" for lines in blocks(name, n)), "utf-8")
    return bertfeat.extract(
        path,
        folder / word_pooling,
        format="conll",
        levels="word",
        layers="0,3..6",
        combine="none",
        word_pooling=word_pooling,
        store_dtype=stored,
    )


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("n", [40, pytest.param(250, marks=pytest.mark.long)])
def test_words_equal_a_naive_loop_over_transformers(tmp_path: Path, minilm_folder: Path, name: str, n: int) -> None:
    oracle, lists = Oracle(minilm_folder), sentences(name, n)
    assert len(lists) == n
    found = [naive_words(oracle, words) for words in lists]
    for which, (word_pooling, stored) in enumerate((("first", "float16"), ("mean", "float32"))):
        expected = np.concatenate([pair[which] for pair in found], axis=1)
        store = words_store(tmp_path, name, n, word_pooling, stored)
        assert store.arrow("word")["word"].to_pylist() == [word for words in lists for word in words]
        for layer in LAYERS:
            assert_close(store.numpy("word", f"layer_{layer:02d}"), expected[layer], stored=stored)


def test_sentences_equal_sentence_transformers(tmp_path: Path, minilm_folder: Path) -> None:
    peers = pytest.importorskip("sentence_transformers")
    lines = [" ".join(words) for name in FILES for words in sentences(name, 20)]
    lines += ["x", "naïve café 人工智能 👩‍👧", " ".join(lines[:20])]
    path = tmp_path / "lines.txt"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    store = bertfeat.extract(
        path, tmp_path / "store", levels="sentence", layers="-1", combine="none", include_special_tokens=True
    )
    # By default its tokenizer cuts at 128 pieces.
    peer = peers.SentenceTransformer(str(minilm_folder), device="cpu")
    peer.max_seq_length = 512
    expected = peer.encode(lines, normalize_embeddings=True, show_progress_bar=False)
    vectors = store.numpy("sentence", "layer_06").astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert max(store.arrow("sentence")["n_tokens"].to_pylist()) > 256
    assert (vectors * expected).sum(axis=1).min() >= 0.9999


@pytest.mark.peer
@pytest.mark.parametrize("name", FILES)
def test_words_equal_flair(tmp_path: Path, minilm_folder: Path, name: str) -> None:
    """`FLAIR_PYTHON` names the interpreter of an environment that has flair."""
    python = os.environ.get("FLAIR_PYTHON") or (sys.executable if importlib.util.find_spec("flair") else None)
    if python is None:
        pytest.skip("flair is not installed; point FLAIR_PYTHON at the python of an environment that has it")
    lists = sentences(name, 250)
    words, out = tmp_path / "words.json", tmp_path / "vectors.npy"
    words.write_text(json.dumps(lists), encoding="utf-8")
    script = TESTS / "peers" / "flair_words.py"
    subprocess.run([python, str(script), str(minilm_folder), str(words), str(out)], check=True, timeout=600)
    store = words_store(tmp_path, name, 250, "first", "float16")
    layers = [store.numpy("word", f"layer_{layer:02d}") for layer in (3, 4, 5, 6)]
    assert_close(np.concatenate(layers, axis=1), np.load(out), stored="float16")
