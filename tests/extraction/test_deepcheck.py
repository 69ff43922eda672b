"""`verify --deep`: documents encoded again and compared with the stored vectors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bertfeat.errors import InputError, PlanMismatch
from bertfeat.extraction.deep_check import recheck
from bertfeat.extraction.run import extract
from bertfeat.records import LevelTable, ShardResult
from bertfeat.store.commit import commit_shard
from bertfeat.store.reader import Store
from bertfeat.store.verification import verify
from bertfeat.store.writer import open_for_writing
from tests.support.command_line import run_cli
from tests.support.drill import three_shards


@pytest.fixture(scope="module")
def settings(tmp_path_factory, model) -> dict[str, Any]:
    changes = {"levels": "token,word,span,sentence", "layers": "1,2", "max_length": 12, "shard_bytes": 60_000}
    return three_shards(tmp_path_factory.mktemp("deep"), model) | changes


@pytest.fixture(scope="module")
def made(tmp_path_factory, settings) -> Store:
    return extract(output=tmp_path_factory.mktemp("made") / "s", **settings)


@pytest.mark.parametrize(
    "change",
    [
        {"store_dtype": "float32", "vector_encoding": "binary", "id_column": None},
        {"compute_dtype": "bfloat16", "on_overlong": "truncate", "pooling": "cls"},
    ],
)
def test_a_good_store_is_good_in_depth(tmp_path, settings, change):
    store = extract(output=tmp_path / "s", **settings | change)
    report = recheck(store.path, n_documents=7)
    assert report.problems == ()
    assert report.n_parts == len(store.levels) * min(7, len(store.plan.shards))
    n_rows = {str(level): store.n_rows(level) for level in store.levels}
    assert 7 < report.n_rows < sum(n_rows.values())
    assert recheck(store.path, n_documents=10_000).n_rows == sum(n_rows.values())


def forge(store: Store, root: Path, feature: str) -> None:
    """Make a store with correct digests in which two rows of a shard have exchanged vectors."""
    plan = store.plan
    with open_for_writing(root, plan) as writer:
        for shard in plan.shards:
            part = store.shard(shard.index)
            tables = {}
            for level in store.levels:
                names = [column.name for column in store.schema(level).columns]
                vectors = {f.name: part.numpy(level, f.name) for f in store.features(level)}
                if level == "word" and shard.index == 0:
                    vectors[feature][[0, 1]] = vectors[feature][[1, 0]]
                columns = {name: part.polars(level, [name])[name].to_list() for name in names}
                tables[level] = LevelTable(level, part.n_rows(level), columns, vectors)
            commit_shard(root, plan, shard, ShardResult(tables, (), {}, {}))
        writer.complete()


@pytest.mark.promise("verify")
def test_vectors_of_another_row_are_found_though_every_digest_is_right(made, tmp_path):
    forge(made, tmp_path / "forged", "layer_02")
    assert verify(tmp_path / "forged").is_good
    problems = recheck(tmp_path / "forged").problems
    assert [(p.shard, p.part) for p in problems] == [(0, made.parts("word")[0].path)]
    exit_code, printed, errors = run_cli("verify", str(tmp_path / "forged"), "--deep")
    assert (exit_code, len(errors)) == (1, 1)
    assert printed.startswith(f"{made.parts('word')[0].path}: layer_02 differs by")
    exit_code, printed, errors = run_cli("verify", str(made.path), "--deep", "--documents", "3", "--json")
    assert (exit_code, errors) == (0, [])
    assert json.loads(printed)["n_rows_encoded_again"] > 0


def test_inputs_that_are_gone_moved_or_changed(made, settings, tmp_path):
    corpus = Path(settings["inputs"])
    kept = corpus.rename(tmp_path / "moved.jsonl")
    try:
        with pytest.raises(InputError, match=f"{corpus}: no such file"):
            recheck(made.path)
        assert recheck(made.path, [kept]).is_good
        corpus.write_text(kept.read_text().replace("the", "thE", 1))
        with pytest.raises(PlanMismatch, match=r"inputs or the model changed: .*corpus.jsonl has changed since"):
            recheck(made.path)
    finally:
        shutil.move(kept, corpus)
