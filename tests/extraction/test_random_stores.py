"""Stores with random weights: recorded everywhere, never mixed with other weights, and worse than trained ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.encoder import randomweights
from bertfeat.errors import PlanMismatch, UserError
from bertfeat.extraction.deepcheck import recheck
from bertfeat.store.compaction import compact
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store
from tests.support.cli_runs import run_cli, three_shards
from tests.support.drill import write_corpus

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

TEXTS = ["one quick fox", "the slow sea", "a river bank"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict[str, Any]:
    return three_shards(tmp_path_factory.mktemp("random"), model) | {"random_weights": 7}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]) -> Store:
    return bertfeat.extract(output=tmp_path_factory.mktemp("made") / "s", **settings)


def labelled(store: Store, folder: Path) -> Path:
    ids = store.polars("sentence", ["doc_id"])["doc_id"]
    path = folder / "labels.csv"
    pl.DataFrame({"doc_id": ids, "label": ["a", "b"] * (len(ids) // 2)}).write_csv(path)
    return path


def test_the_seed_is_in_the_plan_the_parts_and_inspect(made: Store, settings: dict[str, Any], tmp_path: Path) -> None:
    trained = bertfeat.extract(output=tmp_path / "t", **settings | {"random_weights": None})
    assert trained.plan.fields["random_weights"] is None
    assert not {"random_weights", "initialiser"} & trained.metadata.keys()
    assert not np.array_equal(trained.numpy("word", -1), made.numpy("word", -1))
    drawn = {"random_weights": 7, "initialiser": randomweights.initialiser()}
    for recorded in (made.plan.fields, made.metadata, json.loads(pl.read_parquet_metadata(parts(made)[0])["bertfeat"])):
        assert {name: recorded[name] for name in drawn} == drawn
    assert made.metadata["weights_sha256"] != trained.metadata["weights_sha256"]
    lines = run_cli("inspect", str(made.path))[1]
    assert "with random weights of seed 7 (bert)" in lines
    assert f"{made.metadata['weights_sha256']}, drawn by transformers " in lines
    assert json.loads(run_cli("inspect", str(made.path), "--json")[1])["metadata"]["random_weights"] == 7
    assert "with random weights of seed 7" in made._repr_html_()


def parts(store: Store) -> list[Path]:
    return [Path(store.path) / part.path for part in store.parts("word")]


def test_a_dry_run_says_it(settings: dict[str, Any]) -> None:
    flags = [
        "extract",
        settings["inputs"],
        "--model",
        settings["model"],
        "--random-weights",
        "7",
        "--layers",
        "-1",
        "--dry-run",
    ]
    assert run_cli(*flags)[1].startswith("weights    random, of seed 7\n")
    assert json.loads(run_cli(*flags, "--json")[1])["random_weights"] == 7


def test_another_run_of_the_seed_gives_the_same_bytes(made: Store, settings: dict[str, Any], tmp_path: Path) -> None:
    again = bertfeat.extract(output=tmp_path / "s", **settings)
    assert [part.digest for part in again.parts("word")] == [part.digest for part in made.parts("word")]
    assert bertfeat.extract(output=tmp_path / "s", **settings).plan.plan_hash == made.plan.plan_hash
    for seed, said in ((8, "now 8"), (None, "now not set")):
        with pytest.raises(PlanMismatch, match=f"`random_weights` was 7, {said}"):
            bertfeat.extract(output=tmp_path / "s", **settings | {"random_weights": seed})


@pytest.mark.long
def test_worker_processes_draw_the_same(made: Store, settings: dict[str, Any], tmp_path: Path) -> None:
    store = bertfeat.extract(output=tmp_path / "s", **settings, workers=2)
    assert [part.digest for part in store.parts("word")] == [part.digest for part in made.parts("word")]


def test_a_store_grows_is_checked_in_depth_and_joined(settings: dict[str, Any], tmp_path: Path) -> None:
    store = bertfeat.extract(output=tmp_path / "s", **settings)
    lines = write_corpus(tmp_path / "all.jsonl", 30).read_text().splitlines(keepends=True)
    (tmp_path / "later.jsonl").write_text("".join(lines[24:]))
    with pytest.raises(PlanMismatch, match="`random_weights` was 7, now 8"):
        bertfeat.append(store, tmp_path / "later.jsonl", random_weights=8)
    grown = bertfeat.append(store, tmp_path / "later.jsonl")
    assert recheck(grown.path).is_good
    small = compact(grown, tmp_path / "small", shard_bytes="1MB")
    assert small.metadata["random_weights"] == 7
    assert recheck(small.path).is_good


def test_probes_label_texts_with_the_same_weights(
    made: Store, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = labelled(made, tmp_path)
    bertfeat.fit_probe(made, "label", level="sentence", labels=labels, head="ridge").save(tmp_path / "p")
    probe = bertfeat.load_probe(tmp_path / "p")
    rows = probe.predict(made)
    texts = made.polars("sentence", ["text"])["text"].to_list()
    assert probe.predict_texts(texts)["prediction"].to_list() == rows["prediction"].to_list()
    found = probe.predict_input(settings["inputs"], tmp_path / "o.parquet", id_column="id")
    assert found.n_rows == len(rows)
    assert pl.read_parquet(tmp_path / "o.parquet").equals(rows)
    assert "with random weights of seed 7" in run_cli("inspect", str(tmp_path / "p"))[1]
    assert json.loads(run_cli("inspect", str(tmp_path / "p"), "--json")[1])["spec"]["random_weights"] == 7
    other = bertfeat.extract(output=tmp_path / "other", **settings | {"random_weights": 8})
    with pytest.raises(UserError, match=r"has random-weights 7, model weights .* has random-weights 8"):
        probe.score(other, labels=labels)
    monkeypatch.setattr(randomweights, "version", lambda name: "9.9")
    with pytest.raises(UserError, match=r"has initialiser 'transformers .* has initialiser 'transformers 9.9, torch 9"):
        bertfeat.load_probe(tmp_path / "p").predict_texts(texts[:1])


def test_a_sweep_names_the_seed(made: Store, tmp_path: Path) -> None:
    sweep = bertfeat.sweep_probes(made, "label", level="sentence", labels=labelled(made, tmp_path), head="ridge")
    sweep.write(tmp_path / "sweep")
    assert "with random weights of seed 7" in run_cli("inspect", str(tmp_path / "sweep"))[1]


def test_an_index_is_searched_with_the_same_weights(made: Store, tmp_path: Path) -> None:
    bertfeat.build_index(made, tmp_path / "i", level="sentence", feature=-1)
    text = made.polars("sentence", ["text"])["text"][3]
    with bertfeat.open_index(tmp_path / "i") as index:
        hit = index.search([text], k=1).row(0, named=True)
    assert hit["score"] == pytest.approx(1, abs=1e-3)
    assert "with random weights of seed 7" in run_cli("inspect", str(tmp_path / "i"))[1]


def test_texts_in_memory_and_a_cache_keep_seeds_apart(model: Path, tmp_path: Path) -> None:
    def features(seed: int | None, cache: Path | None = None) -> np.ndarray[Any, Any]:
        made: np.ndarray[Any, Any] = bertfeat.BertFeatures(str(model), random_weights=seed, cache=cache).fit_transform(
            TEXTS
        )
        return made

    for seed in (7, 8, None, 7):
        plain = bertfeat.Encoder(str(model), random_weights=seed).encode(TEXTS)
        assert np.allclose(features(seed, tmp_path), plain, atol=1e-6)
    assert np.array_equal(bertfeat.embed(TEXTS, str(model), random_weights=7), features(7))
    assert not np.allclose(features(7), features(8))


def test_the_feature_of_an_older_store_has_no_seed(made: Store) -> None:
    values = FeatureSpec.of(made, "word", -1).to_dict()
    del values["random_weights"], values["initialiser"]
    assert FeatureSpec.from_dict(values).random_weights is None


@pytest.mark.parametrize("seed", ["-1", "x", str(2**70)])
def test_bad_seeds_are_one_line(seed: str, tmp_path: Path) -> None:
    code, out, errors = run_cli("extract", "corpus.txt", "-o", str(tmp_path / "s"), "--random-weights", seed)
    assert (code, out, len(errors)) == (2, "", 1)
    assert "'--random-weights'" in errors[0]
    assert seed in errors[0]


def test_trained_weights_probe_better_than_random_ones(tmp_path: Path) -> None:
    """The baseline is one: names among the words of tweets, from MiniLM's vectors in context."""
    blocks = Path("examples/data/wnut17_dev.conll").read_text(encoding="utf-8").strip().split("\n\n")
    files = {tmp_path / "train.conll": blocks[:50], tmp_path / "dev.conll": blocks[50:90]}
    for path, some in files.items():
        path.write_text("\n\n".join(some) + "\n", encoding="utf-8")
    found = {}
    for seed in (None, 0):
        train, dev = (
            bertfeat.extract(path, path.with_name(f"{path.stem}-{seed}"), levels="word", layers=4, random_weights=seed)
            for path in files
        )
        found[seed] = bertfeat.fit_probe(train, "label", level="word", head="ridge").score(dev).scores.entities.f1
    assert found[None] > found[0] + 0.1
