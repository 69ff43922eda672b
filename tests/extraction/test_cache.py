"""A cache across runs: the same stores, and only what is new goes through the encoder."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertfeat
from bertfeat.records import Pack
from bertfeat.store.reader import Store
from tests.support.command_line import refused
from tests.support.drill import Zygote, result_files, run_killed_at, run_pooled
from tests.support.families import SENTENCES, build_model
from tests.support.store_fakes import write_jsonl

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")

# The tiny vocabulary has no numbers: six words count.
COUNTED = [[("river", "sea")[n >> bit & 1] for bit in range(6)] for n in range(64)]
# Texts of several lengths; some need several windows of 28 tokens, one has no token, some are there twice.
TEXTS = [f"{SENTENCES[n % len(SENTENCES)]} {' '.join(COUNTED[n])} {'and on ' * (n % 4) ** 2}" for n in range(30)]
TEXTS[7] = ""
TEXTS[20:23] = TEXTS[10:13]
ONE_LEVEL: dict[str, Any] = {"levels": "sentence", "layers": "-1"}


def corpus(path: Path, texts: list[str]) -> str:
    return str(write_jsonl(path, [{"id": f"{path.stem}-{n}", "text": text} for n, text in enumerate(texts)]))


def assert_same(store: Store, expected: Store) -> None:
    """Compare all columns exactly, and vectors within the last bits, since packs differ."""
    assert replace(store.manifest.totals, n_bytes={}) == replace(expected.manifest.totals, n_bytes={})
    for level in expected.levels:
        features = [feature.name for feature in expected.features(level)]
        assert store.scan(level).drop(features).collect().equals(expected.scan(level).drop(features).collect())
        tolerance = 1e-5 if expected.plan.fields["store_dtype"] == "float32" else 2e-3
        for name in features:
            assert np.array_equal(store.valid(level, name), expected.valid(level, name))
            valid = expected.valid(level, name)
            found, wanted = store.numpy(level, name)[valid], expected.numpy(level, name)[valid]
            np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=tolerance)


def cached_documents(store: Store) -> int:
    return sum(receipt.notes["n_cached_documents"] for receipt in store.receipts())


@pytest.mark.promise("cached")
@pytest.mark.numeric
@pytest.mark.parametrize(
    "changed",
    [
        {"levels": "token,word,sentence", "layers": "1,2", "combine": "none,concat", "store_dtype": "float32"},
        {"levels": "token,sentence", "prompt": "query: ", "on_overlong": "truncate", "vector_encoding": "binary"},
        {"levels": "sentence", "pooling": "pooler"},
        {"levels": "sentence", "pooling": "max", "include_special_tokens": True},
    ],
    ids=["all levels", "prompt", "pooler", "max"],
)
def test_stores_are_equal_with_and_without_a_cache(
    tmp_path: Path, model: Path, packs: list[Pack], changed: Any
) -> None:
    settings = {"model": str(model), "id_column": "id", "max_length": 28, "layers": "-1", "shard_bytes": 20_000}
    settings |= changed
    first, second = corpus(tmp_path / "a.jsonl", TEXTS[:25]), corpus(tmp_path / "b.jsonl", TEXTS[5:])
    cached = settings | {"cache": tmp_path / "cache"}
    plain = bertfeat.extract(first, tmp_path / "plain", **settings)
    empty = bertfeat.extract(first, tmp_path / "empty", **cached)
    # With nothing in the cache, not a bit differs.
    assert result_files(empty.path) == result_files(plain.path)
    assert len(plain.plan.shards) > 1
    expected = bertfeat.extract(second, tmp_path / "expected", **settings)
    packs.clear()
    store = bertfeat.extract(second, tmp_path / "store", **cached)
    assert_same(store, expected)
    assert cached_documents(store) == 20
    n_all = expected.manifest.totals.counts["n_encoded_tokens"]
    n_tokens = sum(pack.n_tokens for pack in packs)
    assert n_tokens == n_all - sum(receipt.notes["n_cached_tokens"] for receipt in store.receipts())
    assert 0 < n_tokens < n_all * 0.6
    packs.clear()
    again = bertfeat.extract(second, tmp_path / "again", **cached)
    assert packs == []
    assert result_files(again.path) == result_files(store.path)


@pytest.mark.promise("cached")
@pytest.mark.numeric
def test_words_that_are_given(tmp_path: Path, model: Path) -> None:
    """They are other documents than the same words as a text."""
    settings = {"model": str(model), "levels": "word,sentence", "layers": "-1"}
    (tmp_path / "a.txt").write_text("\n".join(" ".join(COUNTED[n]) for n in range(6)) + "\n")
    for name, numbers in (("a", range(6)), ("b", range(3, 9))):
        sentences = ["".join(f"{word} O\n" for word in COUNTED[n]) for n in numbers]
        (tmp_path / f"{name}.conll").write_text("\n".join(sentences))
    for name in ("a.txt", "a.conll", "b.conll"):
        store = bertfeat.extract(str(tmp_path / name), tmp_path / f"{name}-store", cache=tmp_path / "cache", **settings)
        assert_same(store, bertfeat.extract(str(tmp_path / name), tmp_path / f"{name}-expected", **settings))
        assert cached_documents(store) == (3 if name == "b.conll" else 0)


@pytest.mark.promise("cached")
@pytest.mark.numeric
def test_the_models_own_embedding_and_pairs(tmp_path: Path, model: Path, minilm_folder: Path) -> None:
    texts = [f"{text} ||| {other}" for text, other in itertools.pairwise(TEXTS[:7])]
    (tmp_path / "a.txt").write_text("\n".join(texts[:4]) + "\n")
    (tmp_path / "b.txt").write_text("\n".join(texts[2:]) + "\n")
    for name, folder, changes in (
        ("own", minilm_folder, {"pooling": "model"}),
        ("pairs", model, {"text_pairs": True, "layers": "-1"}),
    ):
        settings = {"model": str(folder), "levels": "sentence", **changes}
        cached = settings | {"cache": tmp_path / "cache"}
        bertfeat.extract(str(tmp_path / "a.txt"), tmp_path / f"{name}-a", **cached)
        expected = bertfeat.extract(str(tmp_path / "b.txt"), tmp_path / f"{name}-expected", **settings)
        store = bertfeat.extract(str(tmp_path / "b.txt"), tmp_path / f"{name}-b", **cached)
        assert_same(store, expected)
        assert cached_documents(store) == 2


@pytest.mark.promise("other-cache")
def test_another_setting_finds_nothing(tmp_path: Path, model: Path) -> None:
    settings = {"model": str(model), **ONE_LEVEL, "max_length": 28, "cache": tmp_path / "cache"}
    texts = corpus(tmp_path / "a.jsonl", TEXTS[:9])
    bertfeat.extract(texts, tmp_path / "first", **settings)
    changes: list[dict[str, Any]] = [
        {"layers": "1"},
        {"levels": "word"},
        {"combine": "concat", "layers": "1,2"},
        {"pooling": "max"},
        {"store_dtype": "float32"},
        {"compute_dtype": "bfloat16"},
        {"max_length": 26},
        {"prompt": "a "},
    ]
    for number, changed in enumerate(changes):
        store = bertfeat.extract(texts, tmp_path / str(number), **(settings | changed))
        assert cached_documents(store) == 0, changed
    # What decides no vector finds all.
    same = {"max_batch_tokens": 300, "vector_encoding": "binary", "keep_columns": "id", "shard_bytes": 1, "limit": 8}
    store = bertfeat.extract(texts, tmp_path / "same", **(settings | same))
    assert cached_documents(store) == 8


@pytest.mark.promise("other-cache")
def test_another_model_finds_nothing(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other weights, another config.json, which decides what is computed with them, or another version."""
    settings = ONE_LEVEL | {"cache": tmp_path / "cache"}
    texts = corpus(tmp_path / "a.jsonl", TEXTS[:9])
    bertfeat.extract(texts, tmp_path / "first", model=str(model), **settings)
    copied = shutil.copytree(model, tmp_path / "model")
    assert cached_documents(bertfeat.extract(texts, tmp_path / "copied", model=str(copied), **settings)) == 9
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.5}))
    weights = build_model("bert", tmp_path / "weights", num_hidden_layers=2, seed=5)
    for name, folder in (("config", copied), ("seed", weights), ("version", model)):
        if name == "version":
            monkeypatch.setattr("bertfeat.extraction.plan.__version__", "0.0.1")
        store = bertfeat.extract(texts, tmp_path / f"{name}-store", model=str(folder), **settings)
        assert cached_documents(store) == 0, name


@pytest.fixture
def partly(tmp_path: Path, tiny_folder: Path) -> dict[str, Any]:
    """Settings of a few shards, with documents that are in several of them, and a cache that holds some documents."""
    settings = {"model": str(tiny_folder), "levels": ["word", "sentence"], "layers": "-1", "shard_bytes": 120_000}
    some = corpus(tmp_path / "some.jsonl", TEXTS[5:10])
    bertfeat.extract(some, tmp_path / "some", cache=str(tmp_path / "cache"), **settings)
    texts = [*TEXTS[:10], *TEXTS[5:15], *TEXTS[:15]]
    return settings | {"inputs": corpus(tmp_path / "all.jsonl", texts), "id_column": "id"}


@pytest.mark.promise("kill-cache")
@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_at_every_step_and_then_a_run_gives_the_same_bytes(
    tmp_path: Path, partly: dict[str, Any], warm: Zygote, every: int
) -> None:
    shutil.copytree(tmp_path / "cache", tmp_path / "cache-whole")
    whole = bertfeat.extract(output=tmp_path / "whole", cache=str(tmp_path / "cache-whole"), **partly)
    assert len(whole.plan.shards) > 1
    assert 0 < cached_documents(whole) < 35
    n_kills, ended = 0, -signal.SIGKILL
    while ended:
        point = 1 + n_kills * every
        root, cache = tmp_path / f"killed-{point}", tmp_path / f"cache-{point}"
        shutil.copytree(tmp_path / "cache", cache)
        cached = partly | {"cache": str(cache)}
        ended = warm.run(run_killed_at, point, str(root), cached)
        assert ended in (0, -signal.SIGKILL)
        bertfeat.extract(output=root, **cached)
        assert result_files(root) == result_files(whole.path)
        n_kills += ended != 0
    assert n_kills > 30 // every


@pytest.mark.promise("kill-cache")
@pytest.mark.numeric
def test_workers_share_a_cache_and_change_no_byte(tmp_path: Path, partly: dict[str, Any], warm: Zygote) -> None:
    many = partly | {"shard_bytes": 40_000}
    shutil.copytree(tmp_path / "cache", tmp_path / "cache-whole")
    whole = bertfeat.extract(output=tmp_path / "whole", cache=str(tmp_path / "cache-whole"), **many)
    assert len(whole.plan.shards) > 4
    (tmp_path / "pids").mkdir()
    pooled = many | {"workers": 3, "cache": str(tmp_path / "cache")}
    assert warm.run(run_pooled, warm.address, str(tmp_path / "pids"), str(tmp_path / "s"), pooled) == 0
    assert result_files(tmp_path / "s") == result_files(whole.path)
    again = bertfeat.extract(output=tmp_path / "again", cache=str(tmp_path / "cache"), **many)
    assert cached_documents(again) == 35 > cached_documents(bertfeat.open_store(tmp_path / "s"))


def test_a_place_that_cannot_be_used_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one text\n")
    (tmp_path / "file").write_text("")
    for flags, said in (
        (["--cache", "file"], "file: not a folder"),
        (["--cache", "out/cache"], "out/cache: is inside the store"),
        (["--cache", "new", "--document-context"], "--cache cannot be used with --document-context"),
        (["--cache", "new", "--cache-size", "10kB"], "--cache-size 10000 is below 1000000"),
    ):
        assert said in refused("extract", "a.txt", "-o", "out", *flags)
    assert sorted(file.name for file in Path().iterdir()) == ["a.txt", "file"]
