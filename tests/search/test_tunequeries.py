"""Tuning of an index by given queries: both recalls, the forms of the queries, refusals, and kills."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest

import bertfeat
from bertfeat.ann.folder import read_given
from bertfeat.errors import UserError
from bertfeat.search import build as search_build
from bertfeat.search.index import Index
from bertfeat.store.reader import Store
from bertfeat.vectors.nearest import Metric
from tests.support.command_line import good, refused
from tests.support.index_stores import contents, documents, tiny_store, write_jsonl
from tests.support.places import ROOT
from tests.support.search_vectors import all_scores

pytestmark = [pytest.mark.usefixtures("one_thread", "no_fsync"), pytest.mark.numeric]

with (ROOT / "examples" / "data" / "reviews.csv").open(encoding="utf-8", newline="") as _file:
    TEXTS = [row["text"].replace("[", "(").replace("]", ")") for row in itertools.islice(csv.DictReader(_file), 60)]


def marked(text: str, number: int) -> str:
    """Put brackets around one of the words."""
    words = text.split()
    at = number % len(words)
    return " ".join([*words[:at], f"[{words[at]}]", *words[at + 1 :]])


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def recounted(index: Index, queries: np.ndarray) -> float:
    """Return recall@10 by comparing every query with every vector in float64."""
    vectors = index.store.numpy(index.level, index.spec.feature)[index.rows]
    scores = all_scores(vectors, queries, Metric.COSINE)
    last = np.sort(scores, axis=1)[:, -10]
    found = index.nearest(queries, 10)[1]
    return float((np.take_along_axis(scores, found, axis=1) >= last[:, None]).sum(axis=1).clip(0, 10).mean() / 10)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Store:
    return tiny_store(tmp_path_factory.mktemp("tiny") / "s", tiny_folder)


class TestRecall:
    @pytest.mark.promise("search")
    def test_it_is_that_of_brute_force(self, tiny: Store, tmp_path: Path) -> None:
        lines = [marked(text, n) for n, text in enumerate(TEXTS)]
        file = write_lines(tmp_path / "questions.txt", lines)
        asked = {"level": "word", "factory": "IVF4,SQ8", "recall": 0.9}
        with bertfeat.build_index(tiny, tmp_path / "index", tune_queries=file, **asked) as index:
            queries = read_given(index.path)
            assert sorted(queries.tolist()) == sorted(index.encode(lines).vectors.tolist())
            measured = index.description.measured
            assert measured["given"]["n_queries"] == len(TEXTS) // 2
            # The half that did not tune the index.
            assert measured["given"]["recall_at_10"] == pytest.approx(recounted(index, queries[1::2]), abs=1e-12)
            assert measured["given"]["recall_at_10"] >= 0.9
            assert measured["target_met"]
            found = index.evaluate()
            assert found["given"]["recall@10"] == pytest.approx(measured["given"]["recall_at_10"], abs=1e-12)
            assert found["given"]["n_queries"] == len(TEXTS) // 2

    def test_both_are_printed(self, tiny: Store, tmp_path: Path) -> None:
        file = write_jsonl(tmp_path / "q.jsonl", [{"id": n, "body": text} for n, text in enumerate(TEXTS)])
        build = ("index", "build", tiny.path, "-o", tmp_path / "i", "--level", "sentence", "--tune-queries", file)
        assert "q.jsonl" in good(*build, "--text-column", "body").out
        summary = good("inspect", tmp_path / "i", "--json").json
        assert (summary["tuned_by"]["name"], summary["tuned_by"]["n_queries"]) == ("q.jsonl", 60)
        assert summary["measured"]["given"]["n_queries"] == 30
        shown = good("index", "eval", tmp_path / "i", "--json").json
        assert (shown["given"]["n_queries"], shown["given"]["recall@10"]) == (30, 1)


class TestForms:
    def test_a_file_texts_and_an_array_of_the_same_vectors(self, tiny: Store, tmp_path: Path) -> None:
        lines = [marked(text, n) for n, text in enumerate(TEXTS)]
        how = {"level": "word", "factory": "IVF8,SQ8", "threads": 1, "seed": 3}
        file = write_lines(tmp_path / "q.txt", lines)
        with bertfeat.build_index(tiny, tmp_path / "file", tune_queries=file, **how) as index:
            forms = {"texts": lines, "array": index.encode(lines).vectors}
        for name, form in forms.items():
            bertfeat.build_index(tiny, tmp_path / name, tune_queries=form, **how).close()
        first = contents(tmp_path / "file")
        assert set(first) == {"index.faiss", "queries.safetensors", "rows.parquet"}
        assert all(contents(tmp_path / name) == first for name in forms)
        # The same texts are the same queries, wherever they come from.
        assert bertfeat.build_index(tiny, tmp_path / "file", tune_queries=lines, **how).was_complete


class TestRefused:
    @pytest.mark.promise("search")
    @pytest.mark.parametrize(
        ("level", "lines", "said"),
        [
            ("sentence", [], "q.txt: holds no queries"),
            ("sentence", ["only one"], "q.txt: too few queries (1); give 2 or more"),
            ("word", ["the [bank] of", "the bank of"], "q.txt:2: query 'the bank of': no word is marked; put brackets"),
            ("word", ["[a]", "x " * 600 + "[bank]"], "has no vector"),
            ("sentence", ["one", "\u200b"], "q.txt:2: query '\\u200b': has no token with a vector; write another text"),
        ],
    )
    def test_texts(
        self, tmp_path: Path, tiny_folder: Path, level: str, lines: list[str], said: str, monkeypatch
    ) -> None:
        store = tiny_store(tmp_path / "s", tiny_folder, on_overlong="truncate")
        monkeypatch.setattr(search_build, "RowsDigest", None)  # No vector is read.
        file = write_lines(tmp_path / "q.txt", lines)
        before = sorted(tmp_path.rglob("*"))
        build = ("index", "build", store.path, "-o", tmp_path / "i", "--level", level, "--tune-queries", file)
        assert said in refused(*build)
        assert sorted(tmp_path.rglob("*")) == before

    @pytest.mark.parametrize(
        ("array", "said"),
        [
            (np.zeros((5, 31)), r"`tune_queries` is float64 of shape \(5, 31\); give floats \(n_queries, 32\)"),
            (np.full((5, 32), np.nan), "query 0 holds NaN"),
        ],
    )
    def test_vectors(self, tiny: Store, tmp_path: Path, array: np.ndarray, said: str) -> None:
        with pytest.raises(UserError, match=said):
            bertfeat.build_index(tiny, tmp_path / "i", level="word", tune_queries=array)
        assert list(tmp_path.iterdir()) == []


class TestUpdateAndKills:
    def test_an_update_tunes_by_the_same_queries(self, tmp_path: Path, tiny_folder: Path) -> None:
        first, grown = (
            tiny_store(tmp_path / str(n), tiny_folder, documents(n), levels="sentence,word") for n in (8, 12)
        )
        vectors = np.random.default_rng(0).normal(size=(50, 32)).astype(np.float32)
        bertfeat.build_index(first, tmp_path / "i", level="word", factory="Flat", tune_queries=vectors).close()
        asked = contents(tmp_path / "i")["queries.safetensors"]
        with bertfeat.open_index(tmp_path / "i").update(grown) as index:
            assert index.description.measured["given"]["recall_at_10"] == 1
        assert contents(tmp_path / "i")["queries.safetensors"] == asked
        bertfeat.build_index(grown, tmp_path / "new", level="word", factory="Flat", tune_queries=vectors).close()
        assert contents(tmp_path / "new") == contents(tmp_path / "i")
