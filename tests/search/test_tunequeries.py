"""Tuning of an index by given queries: both recalls, the forms of the queries, refusals, and kills."""

from __future__ import annotations

import csv
import itertools
import signal
from pathlib import Path

import numpy as np
import pytest

import bertfeat
from bertfeat.ann.indexfolder import read_queries
from bertfeat.errors import UserError
from bertfeat.search import storeindex
from bertfeat.search.index import Index
from bertfeat.store.reader import Store
from bertfeat.vectors.nearest import Metric
from tests.support.command_line import good, refused
from tests.support.index_stores import contents, documents, known_store, run_killed, tiny_store, write_jsonl
from tests.support.places import ROOT
from tests.support.search_vectors import all_scores

pytestmark = [pytest.mark.usefixtures("one_thread", "no_fsync"), pytest.mark.numeric]

FEATURE = "layer_06"
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


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Store:
    """The features of other texts."""
    rows = [{"id": f"q{n}", "text": text, "label": None, "n": n} for n, text in enumerate(TEXTS)]
    return tiny_store(tmp_path_factory.mktemp("foreign") / "s", tiny_folder, rows)


class TestRecall:
    @pytest.mark.parametrize(("level", "target"), [("word", 0.9), ("sentence", 0.8)])
    def test_it_is_that_of_brute_force(self, store: Store, tmp_path: Path, level: str, target: float) -> None:
        lines = TEXTS if level == "sentence" else [marked(text, n) for n, text in enumerate(TEXTS)]
        file = write_lines(tmp_path / "questions.txt", lines)
        asked = {"level": level, "feature": FEATURE, "index": "IVF4,SQ8", "recall": target}
        with bertfeat.build_index(store, tmp_path / "index", tune_queries=file, **asked) as index:
            queries = read_queries(index.path, index.description)
            assert sorted(queries.tolist()) == sorted(index.encode(lines).vectors.tolist())
            measured = index.description.measured
            assert measured["given"]["n_queries"] == len(TEXTS) // 2
            # The half that did not tune the index.
            assert measured["given"]["recall_at_10"] == pytest.approx(recounted(index, queries[1::2]), abs=1e-12)
            assert measured["given"]["recall_at_10"] >= target
            assert measured["target_met"]
            assert measured["recall_at_10"] > 0.5
            assert index.origin.tuned_by is not None
            assert (index.origin.tuned_by.name, index.origin.tuned_by.n_queries) == ("questions.txt", len(TEXTS))
            found = bertfeat.evaluate_index(index)
            assert found["given"]["recall@10"] == pytest.approx(measured["given"]["recall_at_10"], abs=1e-12)
            assert found["given"]["n_queries"] == len(TEXTS) // 2
        assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "questions.txt"]

    def test_both_are_printed(self, tiny: Store, tmp_path: Path) -> None:
        file = write_jsonl(tmp_path / "q.jsonl", [{"id": n, "body": text} for n, text in enumerate(TEXTS)])
        build = ("index", "build", tiny.path, "-o", tmp_path / "i", "--level", "sentence", "--tune-queries", file)
        said = good(*build, "--text-column", "body").out
        assert ", recall@10 1.0000 for queries of q.jsonl, 1.0000 for its own vectors\n" in said
        assert "already built; nothing to do" in good(*build, "--text-column", "body").out
        assert "; 30 of the queries did not tune it, " in good("index", "info", tmp_path / "i").out
        summary = good("index", "info", tmp_path / "i", "--json").json
        assert (summary["tuned_by"]["name"], summary["tuned_by"]["n_queries"]) == ("q.jsonl", 60)
        assert summary["measured"]["given"]["n_queries"] == 30
        shown = good("index", "eval", tmp_path / "i").out
        assert "30 of 60 queries of q.jsonl, not tuned on\nrecall           1.0000: Flat searches exactly" in shown
        assert "queries.safetensors" in good("index", "info", tmp_path / "i", "--json").json["files"]

    def test_what_is_out_of_reach_is_named(self, tiny: Store, foreign: Store, tmp_path: Path) -> None:
        build = ("index", "build", tiny.path, "-o", tmp_path / "i", "--level", "word", "--index", "PQ4x4")
        said = good(*build, "--tune-queries", foreign.path, "--recall", "0.99").out
        assert " for queries of store, short of 0.99, 0." in said
        assert said.count("\n") == 1


class TestForms:
    def test_a_store_a_file_and_an_array_of_the_same_vectors(self, tiny: Store, foreign: Store, tmp_path: Path) -> None:
        vectors = foreign.numpy("word", "layer_03")
        np.save(tmp_path / "vectors.npy", vectors)
        how = {"level": "word", "index": "IVF8,SQ8", "threads": 1, "seed": 3}
        forms = {"store": foreign, "path": foreign.path, "npy": tmp_path / "vectors.npy", "array": vectors}
        for name, form in forms.items():
            bertfeat.build_index(tiny, tmp_path / name, tune_queries=form, **how).close()
        first = contents(tmp_path / "store")
        assert set(first) == {"index.faiss", "queries.safetensors", "rows.parquet"}
        assert all(contents(tmp_path / name) == first for name in forms)
        parameters = [bertfeat.open_index(tmp_path / name).description.parameters for name in forms]
        assert all(found == parameters[0] for found in parameters)

    def test_at_most_two_thousand_random_ones(self, tiny: Store, tmp_path: Path) -> None:
        many = np.random.default_rng(0).normal(size=(3000, 32))
        with bertfeat.build_index(tiny, tmp_path / "i", level="sentence", tune_queries=many) as index:
            queries = read_queries(index.path, index.description)
        assert queries is not None
        assert queries.shape == (2000, 32)
        assert np.isin(queries[:, 0], many[:, 0].astype(np.float32)).all()
        assert not np.array_equal(queries, many[:2000].astype(np.float32))

    def test_both_halves_of_a_file_that_alternates_are_alike(self, tiny: Store, tmp_path: Path) -> None:
        vectors = np.random.default_rng(0).normal(size=(100, 32)).astype(np.float32)
        vectors[::2, 0] = 5
        with bertfeat.build_index(tiny, tmp_path / "i", level="sentence", tune_queries=vectors) as index:
            queries = read_queries(index.path, index.description)
        assert queries is not None
        assert sorted(queries.tolist()) == sorted(vectors.tolist())
        for half in (queries[::2], queries[1::2]):
            assert 15 < (half[:, 0] == 5).sum() < 35

    def test_queries_get_the_prompt_of_searches(self, tmp_path: Path, tiny_folder: Path) -> None:
        rows = [{"id": f"q{n}", "text": text, "label": None, "n": n} for n, text in enumerate(TEXTS[:20])]
        plain, prompted = (
            tiny_store(tmp_path / name, tiny_folder, rows, levels="sentence", prompt=prompt)
            for name, prompt in (("plain", ""), ("prompted", "query: "))
        )
        other = tiny_store(tmp_path / "other", tiny_folder, levels="sentence", prompt="query: ")
        with pytest.raises(UserError, match=r"index of store store .* prompt 'query: '.* prompt ''"):
            bertfeat.build_index(other, tmp_path / "i", tune_queries=plain)
        bertfeat.build_index(other, tmp_path / "i", tune_queries=prompted).close()


class TestRefused:
    @pytest.mark.parametrize(
        ("level", "lines", "said"),
        [
            ("sentence", [], "q.txt: holds no queries"),
            (
                "sentence",
                ["only one"],
                "q.txt: too few queries (1); give 2 or more, one half of them to tune by",
            ),
            ("word", ["the [bank] of", "the bank of"], "q.txt:2: query 'the bank of': no word is marked; put brackets"),
            ("word", ["the [bank] of", "[a] [b]"], "q.txt:2: query '[a] [b]': 2 words are marked; mark one"),
            ("word", ["[a]", "x " * 600 + "[bank]"], "has no vector, because the model does not see it"),
            ("sentence", ["one", "\u200b"], "q.txt:2: query '\\u200b': has no token with a vector; write another text"),
        ],
    )
    def test_texts(
        self, tmp_path: Path, tiny_folder: Path, level: str, lines: list[str], said: str, monkeypatch
    ) -> None:
        store = tiny_store(tmp_path / "s", tiny_folder, on_overlong="truncate")
        monkeypatch.setattr(storeindex, "digest_rows", None)  # No vector is read.
        file = write_lines(tmp_path / "q.txt", lines)
        before = sorted(tmp_path.rglob("*"))
        build = ("index", "build", store.path, "-o", tmp_path / "i", "--level", level, "--tune-queries", file)
        assert said in refused(*build)
        assert sorted(tmp_path.rglob("*")) == before

    @pytest.mark.parametrize(
        ("array", "said"),
        [
            (np.zeros((5, 31)), "has vectors of 31 values, and layer_03 has 32"),
            (np.zeros((1, 32)), "too few queries (1); give 2 or more"),
            (np.full((5, 32), np.nan), "holds NaN"),
            (np.full((5, 32), np.inf), "v.npy:1: embedding holds inf"),
            (np.zeros((5, 2, 32)), "has 2 vectors in each row; save one layer"),
            (np.zeros((5, 32), np.int64), "its values are int64"),
            (np.zeros((0, 32)), "has shape (0, 32)"),
        ],
    )
    def test_vectors(self, tiny: Store, tmp_path: Path, array: np.ndarray, said: str) -> None:
        np.save(tmp_path / "v.npy", array)
        build = ("index", "build", tiny.path, "-o", tmp_path / "i", "--level", "word")
        assert said in refused(*build, "--tune-queries", tmp_path / "v.npy")
        assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]
        if "row 0" not in said:
            with pytest.raises(UserError):
                bertfeat.build_index(tiny, tmp_path / "i", level="word", tune_queries=array)

    def test_places_and_flags(self, tiny: Store, foreign: Store, tmp_path: Path, tiny_folder: Path) -> None:
        build = ("index", "build", tiny.path, "-o", tmp_path / "i", "--level", "word")
        tune = (*build, "--tune-queries")
        assert "none.txt" in refused(*tune, tmp_path / "none.txt")
        assert "file name too long" in refused(*tune, "n" * 300).lower()
        file = write_lines(tmp_path / "q.txt", ["the [bank]", "a [word]"])
        assert "q.txt: has no columns for --text-column 'body'; leave it out" in refused(
            *tune, file, "--text-column", "body"
        )
        with pytest.raises(UserError, match="`tune_queries` is a list; give a file, a store, or an array"):
            bertfeat.build_index(tiny, tmp_path / "i", level="word", tune_queries=["the [bank]"])  # type: ignore[arg-type]
        assert "no manifest" in refused(*tune, tmp_path)
        assert "holds the vectors of the index itself; give queries that are not" in refused(*tune, tiny.path)
        (tmp_path / "v.npy").write_bytes(b"not an array")
        assert "cannot be read as .npy" in refused(*tune, tmp_path / "v.npy")
        assert "has vectors, not texts; leave it out" in refused(*tune, foreign.path, "--text-column", "body")
        assert "is of --tune-queries, and none are given" in refused(*build, "--text-column", "body")
        other = tiny_store(tmp_path / "other", tiny_folder, levels="sentence", keep_columns=())
        assert "works at level word" in refused(*tune, other.path)
        unknown = known_store(tmp_path / "known", [[3.0, 4.0], [0.0, 2.0]])
        assert "hold different features" in refused(
            "index", "build", tiny.path, "-o", tmp_path / "i", "--level", "sentence", "--tune-queries", unknown.path
        )
        assert not (tmp_path / "i").exists()

    def test_a_finished_index_with_other_queries(self, tiny: Store, tmp_path: Path) -> None:
        vectors = np.random.default_rng(0).normal(size=(50, 32))
        bertfeat.build_index(tiny, tmp_path / "i", level="word", tune_queries=vectors).close()
        for queries, said in [
            (None, "tune_queries was .*, now .absent."),
            (vectors + 1, "tune_queries was .*, now "),
        ]:
            with pytest.raises(UserError, match=rf"an index already with other settings \({said}"):
                bertfeat.build_index(tiny, tmp_path / "i", level="word", tune_queries=queries)


class TestUpdateAndKills:
    def test_an_update_tunes_by_the_same_queries(self, tmp_path: Path, tiny_folder: Path, foreign: Store) -> None:
        first, grown = (
            tiny_store(tmp_path / str(n), tiny_folder, documents(n), levels="sentence,word") for n in (8, 12)
        )
        bertfeat.build_index(first, tmp_path / "i", level="word", index="Flat", tune_queries=foreign).close()
        asked = contents(tmp_path / "i")["queries.safetensors"]
        with bertfeat.update_index(tmp_path / "i", grown) as index:
            assert index.description.measured["given"]["recall_at_10"] == 1
            assert index.origin.tuned_by is not None
        assert contents(tmp_path / "i")["queries.safetensors"] == asked
        bertfeat.build_index(grown, tmp_path / "new", level="word", index="Flat", tune_queries=foreign).close()
        assert contents(tmp_path / "new") == contents(tmp_path / "i")
        # It is the same as the new one for the next build as well.
        bertfeat.build_index(grown, tmp_path / "i", level="word", index="Flat", tune_queries=foreign).close()

    @pytest.mark.parametrize(
        "at", ["queries.safetensors.durable", "tuning.json.durable", "queries.safetensors.renamed"]
    )
    def test_a_killed_build_resumes_to_the_same_index(
        self, tiny: Store, foreign: Store, tmp_path: Path, at: str
    ) -> None:
        flags = ("--level", "word", "--index", "IVF8,SQ8", "--threads", "1", "--tune-queries", foreign.path)
        done = run_killed(at, "index", "build", tiny.path, "-o", tmp_path / "i", *flags)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not (tmp_path / "i").exists()
        settings = {"level": "word", "index": "IVF8,SQ8", "threads": 1, "tune_queries": foreign}
        with pytest.raises(UserError, match=r"begun with other settings \(tune_queries was "):
            bertfeat.build_index(tiny, tmp_path / "i", **{**settings, "tune_queries": None})
        bertfeat.build_index(tiny, tmp_path / "i", **settings).close()
        bertfeat.build_index(tiny, tmp_path / "whole", **settings).close()
        assert contents(tmp_path / "i") == contents(tmp_path / "whole")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["i", "whole"]
