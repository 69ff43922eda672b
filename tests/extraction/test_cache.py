"""A cache across runs: the same stores, and only what is new goes through the encoder."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertfeat
from bertfeat.config import ExtractConfig
from bertfeat.encoder.encoder import PackEncoder
from bertfeat.errors import ConfigError
from bertfeat.extraction.estimation import estimate
from bertfeat.records import Pack
from bertfeat.store.reader import Store
from tests.support.command_line import good, refused
from tests.support.drill import Zygote, result_files, run_killed_at, run_pooled
from tests.support.families import SENTENCES, build_model

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")

# The tiny vocabulary has no numbers: six words count.
COUNTED = [[("river", "sea")[n >> bit & 1] for bit in range(6)] for n in range(64)]
# Texts of several lengths; some need several windows of 28 tokens, one has no token, some are there twice.
TEXTS = [f"{SENTENCES[n % len(SENTENCES)]} {' '.join(COUNTED[n])} {'and on ' * (n % 7) ** 2}" for n in range(60)]
TEXTS[7] = ""
TEXTS[40:43] = TEXTS[10:13]

SETTINGS: dict[str, dict[str, Any]] = {
    "token": {"levels": "token", "layers": "0..2"},
    "word, first, concat and mean": {"levels": "word", "combine": "concat,mean", "layers": "1,2"},
    "all levels, float32": {"levels": "token,word,sentence", "layers": "1,2", "combine": "none,concat,sum"}
    | {"store_dtype": "float32"},
    "sentence, pooler": {"levels": "sentence", "pooling": "pooler", "layers": "-1"},
    "sentence, max with special tokens": {"levels": "sentence", "pooling": "max", "include_special_tokens": True},
    "truncated": {"levels": "word,sentence", "on_overlong": "truncate", "layers": "-1"},
    "a prompt": {"levels": "token,sentence", "prompt": "query: ", "layers": "-1", "vector_encoding": "binary"},
}
COMMON: dict[str, Any] = {"max_length": 28, "layers": "all", "shard_bytes": 60_000}


@pytest.fixture
def n_tokens(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each pack that the encoder is given."""
    plain = PackEncoder.encode_parts
    found: list[int] = []

    def encode_parts(self: PackEncoder, pack: Pack) -> Any:
        found.append(pack.n_tokens)
        return plain(self, pack)

    monkeypatch.setattr(PackEncoder, "encode_parts", encode_parts)
    return found


def corpus(path: Path, texts: list[str], first: int = 0) -> str:
    rows = [{"id": f"{path.stem}-{first + n}", "text": text} for n, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


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


@pytest.mark.numeric
@pytest.mark.parametrize("name", SETTINGS)
def test_stores_are_equal_with_and_without_a_cache(tmp_path: Path, model: Path, n_tokens: list[int], name: str) -> None:
    settings = COMMON | {"model": str(model), "id_column": "id"} | SETTINGS[name]
    first, second = corpus(tmp_path / "a.jsonl", TEXTS[:45]), corpus(tmp_path / "b.jsonl", TEXTS[5:])
    cached = settings | {"cache": tmp_path / "cache"}
    plain = bertfeat.extract(first, tmp_path / "plain", **settings)
    empty = bertfeat.extract(first, tmp_path / "empty", **cached)
    # With nothing in the cache, not a bit differs.
    assert result_files(empty.path) == result_files(plain.path)
    assert len(plain.plan.shards) > 1
    expected = bertfeat.extract(second, tmp_path / "expected", **settings)
    n_tokens.clear()
    store = bertfeat.extract(second, tmp_path / "store", **cached)
    assert_same(store, expected)
    assert cached_documents(store) == 40
    n_all = expected.manifest.totals.counts["n_encoded_tokens"]
    assert sum(n_tokens) == n_all - sum(receipt.notes["n_cached_tokens"] for receipt in store.receipts())
    assert 0 < sum(n_tokens) < n_all * 0.6
    n_tokens.clear()
    again = bertfeat.extract(second, tmp_path / "again", **cached)
    assert n_tokens == []
    assert result_files(again.path) == result_files(store.path)


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


@pytest.mark.numeric
def test_the_models_own_embedding_and_pairs(tmp_path: Path, minilm_folder: Path) -> None:
    settings = {"model": str(minilm_folder), "levels": "sentence", "pooling": "model"}
    texts = [f"{text} ||| {other}" for text, other in itertools.pairwise(TEXTS[:7])]
    (tmp_path / "a.txt").write_text("\n".join(texts[:4]) + "\n")
    (tmp_path / "b.txt").write_text("\n".join(texts[2:]) + "\n")
    for extra in ({}, {"text_pairs": True, "pooling": "mean"}):
        both = settings | extra
        bertfeat.extract(str(tmp_path / "a.txt"), tmp_path / f"a{len(extra)}", cache=tmp_path / "cache", **both)
        expected = bertfeat.extract(str(tmp_path / "b.txt"), tmp_path / f"e{len(extra)}", **both)
        store = bertfeat.extract(str(tmp_path / "b.txt"), tmp_path / f"s{len(extra)}", cache=tmp_path / "cache", **both)
        assert_same(store, expected)
        assert cached_documents(store) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"layers": "1"},
        {"levels": "word"},
        {"combine": "concat", "layers": "1,2"},
        {"pooling": "max"},
        {"include_special_tokens": True},
        {"store_dtype": "float32"},
        {"compute_dtype": "bfloat16"},
        {"max_length": 26},
        {"stride": 3},
        {"prompt": "a "},
    ],
    ids=str,
)
def test_another_setting_finds_nothing(tmp_path: Path, model: Path, changed: dict[str, Any]) -> None:
    settings = {
        "model": str(model),
        "levels": "sentence",
        "layers": "-1",
        "max_length": 28,
        "cache": tmp_path / "cache",
    }
    texts = corpus(tmp_path / "a.jsonl", TEXTS[:9])
    bertfeat.extract(texts, tmp_path / "first", **settings)
    store = bertfeat.extract(texts, tmp_path / "other", **(settings | changed))
    assert cached_documents(store) == 0
    # What decides no vector finds all.
    same = {"max_batch_tokens": 300, "vector_encoding": "binary", "keep_columns": "id", "shard_bytes": 1, "limit": 8}
    store = bertfeat.extract(texts, tmp_path / "same", **(settings | same))
    assert cached_documents(store) == 8


@pytest.mark.parametrize("kind", ["weights", "config", "versions"])
def test_another_model_finds_nothing(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """config.json too, which decides what is computed with the weights."""
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    settings = {"levels": "sentence", "layers": "-1", "cache": tmp_path / "cache"}
    texts = corpus(tmp_path / "a.jsonl", TEXTS[:9])
    bertfeat.extract(texts, tmp_path / "first", model=str(model), **settings)
    assert cached_documents(bertfeat.extract(texts, tmp_path / "copied", model=str(folder), **settings)) == 9
    if kind == "weights":
        folder = build_model("bert", tmp_path / "other", num_hidden_layers=2, seed=5)
    elif kind == "config":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.5}))
    else:
        monkeypatch.setattr("bertfeat.extraction.plan.__version__", "0.0.1")
    store = bertfeat.extract(texts, tmp_path / "other-store", model=str(folder), **settings)
    assert cached_documents(store) == 0
    assert_same(
        store, bertfeat.extract(texts, tmp_path / "expected", model=str(folder), **(settings | {"cache": None}))
    )


class TestKills:
    @pytest.fixture
    def settings(self, tmp_path: Path, tiny_folder: Path) -> dict[str, Any]:
        """A few shards, with documents that are in several of them, and a cache that holds some documents."""
        settings = {"model": str(tiny_folder), "levels": ["word", "sentence"], "layers": "-1", "shard_bytes": 450_000}
        texts = [*TEXTS[:20], *TEXTS[10:30], *TEXTS[:30]]
        some = corpus(tmp_path / "some.jsonl", TEXTS[5:15])
        bertfeat.extract(some, tmp_path / "some", cache=str(tmp_path / "cache"), **settings)
        return settings | {"inputs": corpus(tmp_path / "all.jsonl", texts), "id_column": "id"}

    @pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.long)])
    def test_a_kill_at_every_step_and_then_a_run_gives_the_same_bytes(
        self, tmp_path: Path, settings: dict[str, Any], warm: Zygote, every: int
    ) -> None:
        shutil.copytree(tmp_path / "cache", tmp_path / "cache-whole")
        whole = bertfeat.extract(output=tmp_path / "whole", cache=str(tmp_path / "cache-whole"), **settings)
        assert len(whole.plan.shards) > 1
        assert 0 < cached_documents(whole) < 70
        n_kills, point = 0, 1
        while True:
            root, cache = tmp_path / f"killed-{point}", tmp_path / f"cache-{point}"
            shutil.copytree(tmp_path / "cache", cache)
            cached = settings | {"cache": str(cache)}
            ended = warm.run(run_killed_at, point, str(root), cached)
            bertfeat.extract(output=root, **cached)
            assert result_files(root) == result_files(whole.path)
            if ended == 0:
                break
            assert ended == -signal.SIGKILL
            n_kills += 1
            point += every
        assert n_kills > 30 // every

    @pytest.mark.numeric
    def test_workers_share_a_cache_and_change_no_byte(
        self, tmp_path: Path, settings: dict[str, Any], warm: Zygote
    ) -> None:
        many = settings | {"shard_bytes": 150_000}
        shutil.copytree(tmp_path / "cache", tmp_path / "cache-whole")
        whole = bertfeat.extract(output=tmp_path / "whole", cache=str(tmp_path / "cache-whole"), **many)
        assert len(whole.plan.shards) > 4
        (tmp_path / "pids").mkdir()
        pooled = many | {"workers": 3, "cache": str(tmp_path / "cache")}
        assert warm.run(run_pooled, warm.address, str(tmp_path / "pids"), str(tmp_path / "s"), pooled) == 0
        assert result_files(tmp_path / "s") == result_files(whole.path)
        n_before = cached_documents(bertfeat.open_store(tmp_path / "s"))
        again = bertfeat.extract(output=tmp_path / "again", cache=str(tmp_path / "cache"), **many)
        assert cached_documents(again) == 70 > n_before


class TestMistakes:
    def test_a_place_that_cannot_be_used_is_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a.txt").write_text("one text\n")
        (tmp_path / "file").write_text("")
        before = sorted(Path().iterdir())
        for flags, said in (
            (["--cache", "file"], "file: not a folder"),
            (["--cache", "file/inside"], "file/inside: cannot create the folder: not a directory"),
            (["--cache", "s3://bucket/cache"], "a cache must be in a local folder"),
            (["--cache", "out/cache"], "out/cache: is inside the store"),
            (["--cache", "out"], "out: is inside the store"),
            (["--cache", ""], "--cache '' is not the name of a folder"),
            (["--cache", "new", "--document-context"], "--cache cannot be used with --document-context"),
            (["--cache", "new", "--cache-size", "10kB"], "--cache-size 10000 is below 1000000"),
            (["--cache", "new", "--cache-size", "much"], "'much' is not a size"),
        ):
            assert said in refused("extract", "a.txt", "-o", "out", *flags)
            assert sorted(Path().iterdir()) == before
        with pytest.raises(ConfigError, match="`cache` 7 is not the name of a folder"):
            ExtractConfig.from_dict({"cache": 7})
        assert ExtractConfig(cache=Path("here")).cache == "here"


def test_the_estimate_and_the_summary_say_what_is_in_the_cache(tmp_path: Path, model: Path) -> None:
    flags = ["--model", str(model), "--level", "sentence", "--layers=-1"]
    first, second = corpus(tmp_path / "a.jsonl", TEXTS[:20]), corpus(tmp_path / "b.jsonl", TEXTS[:30])
    cache = ["--cache", str(tmp_path / "cache")]
    assert good("extract", second, *flags, *cache, "--dry-run", "--json").json["n_cached_documents"] == 0
    assert not (tmp_path / "cache").exists()
    assert re.search(r"documents from the cache +0\n", good("extract", first, "-o", tmp_path / "a", *flags, *cache).out)
    assert good("extract", second, *flags, *cache, "--dry-run", "--json").json["n_cached_documents"] == 20
    config = ExtractConfig.from_dict({"model": str(model), "levels": "sentence", "layers": "-1"})
    assert estimate(second, config).n_cached_documents is None
    assert re.search(
        r"documents from the cache +20\n", good("extract", second, "-o", tmp_path / "b", *flags, *cache).out
    )
    assert good("inspect", tmp_path / "b", "--json").json["n_cached_documents"] == 20
