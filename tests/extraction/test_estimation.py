"""The dry run: its counts are those of the real run, and it leaves no files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bertfeat import ExtractConfig, extract
from bertfeat.extraction.estimation import estimate
from tests.support.store_fakes import write_jsonl

SETTINGS: dict[str, dict[str, Any]] = {
    "several shards": {"levels": "token", "shard_bytes": 100_000},
    "windows": {"levels": "token,word,sentence", "max_length": 16, "stride": 5},
    "bad rows aside": {"levels": "sentence", "bad_rows": "quarantine"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_counts_are_those_of_the_run(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    config = ExtractConfig(model=str(tiny_folder), layers="all", store_dtype="float32", **SETTINGS[name])
    rows = [{"text": "she sells sea shells " * (n % 17)} for n in range(60)]
    corpus = write_jsonl(tmp_path / "corpus.jsonl", rows)
    if name == "bad rows aside":
        corpus.write_text(corpus.read_text() + "no json\n" * 3)
    expected = estimate(corpus, config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl"], "a dry run writes nothing"
    totals = extract(corpus, tmp_path / "out", config).manifest.totals
    assert expected.is_exact
    assert expected.n_documents == totals.counts["n_documents"] == 60
    assert expected.n_bad_rows == totals.n_bad_rows == (3 if name == "bad rows aside" else 0)
    assert expected.n_tokens == totals.counts["n_tokens"]
    assert expected.n_encoded_tokens == totals.counts["n_encoded_tokens"]
    assert expected.n_shards == totals.n_shards
    assert (expected.n_shards > 1) == (name == "several shards")
    assert json.loads(json.dumps(dataclasses.asdict(expected)))["n_rows"] == totals.n_rows
    if name == "windows":
        assert expected.n_bytes == pytest.approx(sum(totals.n_bytes.values()), rel=0.1)


def test_a_large_corpus_is_sampled(tiny_folder: Path, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "corpus.jsonl", [{"text": "she sells sea shells"}] * 60)
    found = estimate(corpus, ExtractConfig(model=str(tiny_folder), layers="-1", shard_bytes=1))
    assert not found.is_exact
    assert (found.n_shards, found.n_documents, found.n_tokens) == (60, 60, 60 * 5)
