"""Every stored vector of every layer against plain transformers, one window at a time."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import bertfeat
from bertfeat.store.reader import Store
from tests.support.oracle import Oracle, assert_close
from tests.support.places import ROOT

DATA = ROOT / "examples" / "data"
MAX_LENGTH, STRIDE = 512, 128
LAYERS = range(7)

Expected = Callable[[int], tuple[list[int], np.ndarray]]


def real_texts() -> list[str]:
    """300 real sentences and paragraphs, and five documents of about 600 to 3,000 tokens."""
    paragraphs = (DATA / "peps.txt").read_text(encoding="utf-8").splitlines()
    tweets: list[list[str]] = [[]]
    for line in (DATA / "wnut17_dev.conll").read_text(encoding="utf-8").splitlines():
        if line.strip():
            tweets[-1].append(line.split("\t")[0])
        else:
            tweets.append([])
    short = paragraphs[:180] + [" ".join(words) for words in tweets[:120]]
    assert len(short) == 300
    long = [" ".join(paragraphs[start : start + n]) for start, n in ((0, 16), (20, 24), (50, 30), (90, 40), (130, 48))]
    return short + long


@pytest.fixture(scope="module")
def expected(minilm_folder: Path) -> Expected:
    """Token ids and states of a text by its number, computed when first asked for."""
    oracle, texts = Oracle(minilm_folder), real_texts()
    return functools.cache(lambda number: oracle.document(texts[number], MAX_LENGTH, STRIDE))


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """A function that sets the number of threads of torch for a test: a model is loaded for as many lanes."""
    n_threads = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(n_threads)


def write_corpus(path: Path, order: list[int]) -> Path:
    texts = real_texts()
    path.write_text("".join(json.dumps({"id": i, "text": texts[i]}) + "\n" for i in order), encoding="utf-8")
    return path


def check(store: Store, expected: Expected, order: list[int], stored: str) -> None:
    rows = store.polars("token", ["doc_id", "token_id"])
    assert rows["doc_id"].unique(maintain_order=True).to_list() == order
    ids = rows["token_id"].to_numpy()
    starts = np.flatnonzero(np.diff(rows["doc_id"].to_numpy(), prepend=-1))
    bounds = dict(zip(order, zip(starts, [*starts[1:], len(ids)], strict=True), strict=True))
    for layer in LAYERS:
        vectors = store.numpy("token", f"layer_{layer:02d}")
        for number in order:
            first, last = bounds[number]
            assert ids[first:last].tolist() == expected(number)[0]
            assert_close(vectors[first:last], expected(number)[1][layer], stored=stored)


@pytest.mark.promise("equal")
@pytest.mark.parametrize(
    ("every", "runs"),
    [
        (4, [(2048, 1, "float16"), (700, 2, "float32")]),
        pytest.param(1, [(2048, 1, "float16"), (20_000, 1, "float32")], marks=pytest.mark.long),
    ],
)
def test_every_layer_equals_the_naive_loop(
    tmp_path: Path,
    expected: Expected,
    set_threads: Callable[[int], None],
    every: int,
    runs: list[tuple[int, int, str]],
) -> None:
    """A quarter of the short texts, shuffled, at several sizes of a pack, also in two lanes."""
    order = [*range(0, 300, every), *range(300, 305)]
    lengths = [len(expected(number)[0]) for number in order[-5:]]
    assert min(lengths) >= 600
    assert max(lengths) >= 3000
    if every > 1:
        random.Random(2048).shuffle(order)
    corpus = write_corpus(tmp_path / "corpus.jsonl", order)
    for max_batch_tokens, n_threads, stored in runs:
        set_threads(n_threads)
        store = bertfeat.extract(
            corpus,
            tmp_path / stored,
            id_column="id",
            layers="all",
            combine="none",
            max_batch_tokens=max_batch_tokens,
            store_dtype=stored,
            shard_bytes=10_000_000,
        )
        assert len(store.plan.shards) > 1
        check(store, expected, order, stored)


@pytest.mark.numeric
def test_every_layer_of_some_texts_equals_the_naive_loop(tmp_path: Path, expected: Expected) -> None:
    """Few enough for every setting of `make test-cpus`: thirty short texts, and one of several windows."""
    order = [*range(0, 300, 10), 300]
    corpus = write_corpus(tmp_path / "corpus.jsonl", order)
    store = bertfeat.extract(
        corpus, tmp_path / "features", id_column="id", layers="all", combine="none", store_dtype="float32"
    )
    check(store, expected, order, "float32")


def test_concat_is_its_layers_bit_for_bit(tmp_path: Path) -> None:
    (tmp_path / "paragraphs.txt").write_text("\n".join(real_texts()[:40]), encoding="utf-8")
    store = bertfeat.extract(tmp_path / "paragraphs.txt", tmp_path / "features", levels="token,word,sentence")
    hidden = 384
    for level in store.levels:
        concat = store.numpy(level, "concat_last4")
        for k, layer in enumerate((3, 4, 5, 6)):
            part = concat[:, k * hidden : (k + 1) * hidden]
            np.testing.assert_array_equal(
                part.view(np.uint16), store.numpy(level, f"layer_{layer:02d}").view(np.uint16)
            )
