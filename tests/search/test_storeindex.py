"""Build of an index of a store: its contents, a second call, and kills."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.search.build import workplace
from bertfeat.store.reader import Store
from bertfeat.vectors.store import StoreVectors
from tests.support.index_stores import brute_force, contents, documents, run_killed, tiny_store

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")

FEATURE = "layer_06"
# What `auto` chooses for many vectors of this width.
LISTS = "IVF8,PQ32x4fs,Refine(SQ8)"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Store:
    return tiny_store(tmp_path_factory.mktemp("tiny") / "s", tiny_folder, shard_bytes=40_000)


class TestSource:
    def test_rows_without_a_vector_are_left_out(self, tmp_path: Path, tiny_folder: Path) -> None:
        texts = {"a": "one quick fox " * 30, "b": "", "c": "sells shells"}
        rows = [{"id": doc_id, "text": text} for doc_id, text in texts.items()]
        cut = tiny_store(tmp_path / "s", tiny_folder, rows, keep_columns=(), max_length=16, on_overlong="truncate")
        for level in (Level.TOKEN, Level.WORD, Level.SENTENCE):
            source = StoreVectors(cut, level, "layer_03")
            assert 0 < len(source.rows) < cut.n_rows(level)
            assert np.isfinite(source.whole()).all()
        with bertfeat.build_index(cut, tmp_path / "index", level="sentence") as index:
            assert index.rows.tolist() == [0, 2]
            assert index.search(["sells shells"], k=2)["doc_id"].to_list() == ["c", "a"]
            np.testing.assert_array_equal(index.vectors([1, 0]), cut.take("sentence", "layer_03", [2, 0]))


class TestFlatIsBruteForce:
    @pytest.mark.parametrize(
        ("level", "metric", "transform"),
        [
            *itertools.product(["sentence"], ["cosine"], ["none", "whiten:16", "pca:8", "truncate:16"]),
            ("sentence", "ip", "none"),
            ("word", "cosine", "whiten"),
            ("word", "l2", "center"),
        ],
    )
    def test_scores_ids_and_texts(self, store: Store, tmp_path: Path, level: str, metric: str, transform: str) -> None:
        vectors = store.numpy(level, FEATURE)
        queries = np.random.default_rng(0).normal(vectors.mean(0), vectors.std(0), (5, 384)).astype(np.float32)
        queries = np.concatenate([queries, vectors[[3, 50]].astype(np.float32)])
        scores, positions = brute_force(vectors, queries, 7, metric, transform)
        with bertfeat.build_index(
            store, tmp_path / "index", level=level, feature=FEATURE, factory="Flat", metric=metric, transform=transform
        ) as index:
            found = index.search(queries, 7, columns=["row", "doc_id", "text", "label"])
        assert found["query"].to_list() == np.repeat(np.arange(7), 7).tolist()
        assert found["rank"].to_list() == list(range(1, 8)) * 7
        assert found["row"].to_list() == positions.ravel().tolist()
        np.testing.assert_allclose(found["score"].to_numpy(), scores.ravel(), rtol=2e-4, atol=2e-5)
        ids = store.polars(level)["doc_id"].to_list()
        assert found["doc_id"].to_list() == [ids[row] for row in positions.ravel()]
        known = {row["id"]: row for row in documents()}
        assert found["text"].to_list() == [known[doc_id]["text"] for doc_id in found["doc_id"]]
        assert found["label"].to_list() == [known[doc_id]["label"] for doc_id in found["doc_id"]]
        if metric == "cosine":
            assert found.filter(pl.col("query") == 5)["score"][0] == pytest.approx(1, abs=1e-3)


class TestChoices:
    def test_the_only_level_and_feature_are_the_default(self, tmp_path: Path, tiny_folder: Path) -> None:
        store = tiny_store(tmp_path / "s", tiny_folder, levels="sentence")
        with bertfeat.build_index(store.path, tmp_path / "index") as index:
            assert (index.level, index.spec.feature, index.metric) == ("sentence", "layer_03", "cosine")
            assert index.n_vectors == 24
            assert index.description.factory == "Flat"
            assert repr(index) == f"Index({str(tmp_path / 'index')!r}, 24 vectors, level sentence, Flat)"
            assert "by cosine, transform none" in index._repr_html_()

    def test_features_can_be_made_from_what_is_stored(self, tmp_path: Path, tiny_folder: Path) -> None:
        store = tiny_store(tmp_path / "s", tiny_folder, levels="sentence", layers="all")
        for feature in (None, "mean_last4", "concat_00_02"):
            name = feature or "concat_last4"
            with bertfeat.build_index(store, tmp_path / name, feature=feature, metric="l2") as index:
                text = documents()[5]["text"]
                found = index.search(text, 1, columns=["doc_id"])
                assert index.spec.feature == name
                assert found["doc_id"].to_list() == ["d005"]
                assert found["score"][0] == pytest.approx(0, abs=2e-2)
                np.testing.assert_array_equal(index.vectors([5]), store.take("sentence", name, [5]))


class TestAgain:
    def test_a_second_build_of_an_index_is_refused(self, tiny: Store, tmp_path: Path) -> None:
        with workplace(tmp_path / "index"), pytest.raises(UserError, match="another process is making this index"):
            bertfeat.build_index(tiny, tmp_path / "index", level="word")
        bertfeat.build_index(tiny, tmp_path / "index", level="word").close()


class TestKilled:
    @pytest.mark.promise("saved")
    @pytest.mark.numeric
    def test_a_rerun_after_kills_gives_the_same_index(self, tiny: Store, tmp_path: Path) -> None:
        out, queries = tmp_path / "index", tmp_path / "queries.txt"
        queries.write_text("".join(f"{row['text'].split()[0]} [word] {row['n']}\n" for row in documents(4)))
        flags = ("--level", "token", "--factory", LISTS, "--transform", "center", "--threads", "1")
        flags = (*flags, "--tune-queries", queries)
        # Each run resumes the one before.
        for at in ("queries.safetensors.durable", "6"):
            done = run_killed(at, "index", "build", tiny.path, "-o", out, *flags)
            assert done.returncode == -signal.SIGKILL, done.stderr
            assert not out.exists()
        how = {"level": "token", "factory": LISTS, "transform": "center", "threads": 1}
        with pytest.raises(UserError, match=r"begun with other settings \(factory was '.*', now 'Flat'"):
            bertfeat.build_index(tiny, out, tune_queries=queries, **{**how, "factory": "Flat"})
        for place in (out, tmp_path / "whole"):
            bertfeat.build_index(tiny, place, tune_queries=queries, **how).close()
        assert contents(out) == contents(tmp_path / "whole")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "queries.txt", "whole"]
        with pytest.raises(UserError, match=r"an index already with other settings \(tune_queries was .*, now None"):
            bertfeat.build_index(tiny, out, **how)
