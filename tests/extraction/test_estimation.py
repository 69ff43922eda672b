"""The dry run: its counts are those of the real run, and it leaves no files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import bertfeat.extraction.estimation
import bertfeat.extraction.flow
from bertfeat import ExtractConfig, extract
from bertfeat.errors import InputError
from bertfeat.extraction.estimation import estimate
from tests.support.store_fakes import write_jsonl

SETTINGS: dict[str, dict[str, Any]] = {
    "every level": {"levels": "token,word,sentence"},
    "several shards": {"levels": "token", "shard_bytes": 100_000},
    "windows": {"levels": "token,sentence", "max_length": 16, "stride": 5},
    "cut off": {"levels": "token,word", "max_length": 16, "on_overlong": "truncate"},
    "bad rows aside": {"levels": "sentence", "bad_rows": "quarantine"},
}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus").mkdir()
    rows = [{"text": "she sells sea shells " * (n % 17)} for n in range(60)]
    return write_jsonl(tmp_path / "corpus" / "corpus.jsonl", rows)


@pytest.mark.parametrize("name", SETTINGS)
def test_counts_are_those_of_the_run(name: str, corpus: Path, tiny_folder: Path, tmp_path: Path) -> None:
    config = ExtractConfig(model=str(tiny_folder), layers="all", **SETTINGS[name])
    if name == "bad rows aside":
        corpus.write_text(corpus.read_text() + "no json\n" * 3)
    expected = estimate(corpus, config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus"], "a dry run writes nothing"
    store = extract(corpus, tmp_path / "out", config)
    totals = store.manifest.totals
    assert expected.is_exact
    assert expected.n_documents == totals.counts["n_documents"] == 60
    assert expected.n_bad_rows == totals.n_bad_rows == (3 if name == "bad rows aside" else 0)
    assert expected.n_tokens == totals.counts["n_tokens"]
    assert expected.n_encoded_tokens == totals.counts["n_encoded_tokens"]
    assert expected.n_shards == totals.n_shards
    assert (expected.n_shards > 1) == (name == "several shards")
    assert expected.seconds == pytest.approx(expected.n_encoded_tokens / expected.tokens_per_s)
    assert json.loads(json.dumps(dataclasses.asdict(expected)))["n_rows"] == totals.n_rows


def test_bfloat16_is_measured_where_it_could_be_chosen(
    corpus: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ExtractConfig(model=str(tiny_folder), levels="sentence", layers="-1")
    monkeypatch.setattr(bertfeat.extraction.estimation, "has_fast_bfloat16", lambda: True)
    rate = estimate(corpus, config).bfloat16_tokens_per_s
    assert rate is not None
    assert rate > 0
    assert estimate(corpus, dataclasses.replace(config, compute_dtype="bfloat16")).bfloat16_tokens_per_s is None
    monkeypatch.setattr(bertfeat.extraction.estimation, "has_fast_bfloat16", lambda: False)
    assert estimate(corpus, config).bfloat16_tokens_per_s is None


def test_bfloat16_is_measured_with_the_pooler(corpus: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, loaded = bertfeat.extraction.flow.load_encoder, []

    def load_and_note(*args: Any, **settings: Any) -> Any:
        loaded.append(settings["with_pooler"])
        return load(*args, **settings)

    monkeypatch.setattr(bertfeat.extraction.estimation, "has_fast_bfloat16", lambda: True)
    monkeypatch.setattr(bertfeat.extraction.flow, "load_encoder", load_and_note)
    for pooling in ("mean", "pooler"):
        estimate(corpus, ExtractConfig(model=str(tiny_folder), levels="sentence", layers="-1", pooling=pooling))
    assert loaded == [False, False, True, True]


def test_bytes_are_about_those_of_the_run(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("she sells sea shells by the sea shore\n" * 400)
    config = ExtractConfig(model=str(tiny_folder), levels="token,word", layers="all", store_dtype="float32")
    expected = estimate(tmp_path / "corpus.txt", config)
    store = extract(tmp_path / "corpus.txt", tmp_path / "out", config)
    assert expected.n_bytes == pytest.approx(sum(store.manifest.totals.n_bytes.values()), rel=0.1)


def test_a_large_corpus_is_sampled(
    corpus: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(corpus, [{"text": "she sells sea shells"}] * 60)
    config = ExtractConfig(model=str(tiny_folder), layers="-1", shard_bytes=1)
    exact = estimate(corpus, config)
    assert exact.n_shards == 60
    assert not exact.is_exact
    monkeypatch.setattr(bertfeat.extraction.estimation, "_MAX_SHARDS_READ", 60)
    whole = estimate(corpus, config)
    assert whole.is_exact
    assert (exact.n_documents, exact.n_tokens, exact.n_rows) == (whole.n_documents, whole.n_tokens, whole.n_rows)


def test_mistakes_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        estimate(tmp_path / "nowhere.txt", ExtractConfig(model=str(tiny_folder)))
