"""Reranking by late interaction: scores are those of a naive loop, and hits lead to the words that met."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertfeat
from bertfeat.ann import token_codes
from bertfeat.ann.token_codes import CodeKind, centred, encode
from bertfeat.errors import UserError
from bertfeat.search import evaluate_retrieval
from bertfeat.search.index import Index
from bertfeat.serve.answers import Answers, PageQuery
from bertfeat.store.reader import Store
from tests.support.command_line import good
from tests.support.index_stores import contents, documents, run_killed, tiny_store, write_jsonl
from tests.support.places import TESTS

pytestmark = [pytest.mark.promise("rerank"), pytest.mark.usefixtures("one_thread", "no_fsync")]

BY = "token:layer_06"
QUERIES = ["the bank of a river", "savings and loans of commercial banks", "unbelievably readable indentation"]


def decode(codes: np.ndarray, kind: CodeKind, dim: int) -> np.ndarray:
    values, factors = token_codes.decode(codes, kind, dim)
    return values * factors[:, None]


def build(store: Store, path: Path, **settings: Any) -> Index:
    asked = {"level": "sentence", "feature": "layer_06", "rerank": BY, "threads": 1, **settings}
    return bertfeat.build_index(store, path, **asked)


@pytest.fixture(scope="module")
def index(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with build(store, tmp_path_factory.mktemp("rerank") / "index") as built:
        yield built


class Naive:
    """MaxSim from its definition: a loop over documents, with all vectors in memory."""

    def __init__(self, store: Store, level: str, feature: str, *, codes: CodeKind | None) -> None:
        frame, vectors = store.polars(level), store.numpy(level, feature).astype(np.float32)
        surface, kept = "word", np.isfinite(vectors).all(axis=1)
        if level == "token":
            surface, kept = "token", kept & ~frame["is_special"].to_numpy()
        frame, vectors = frame.filter(kept), vectors[kept]
        self.mean = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        units = self.unit(vectors)
        units = units if codes is None else decode(encode(units, codes), codes, units.shape[1])
        doc_ids, words = frame["doc_id"].to_numpy(), np.array(frame[surface].str.to_lowercase().to_list(), object)
        own = [doc_ids == one for one in store.polars("sentence", ["doc_id"])["doc_id"].to_list()]
        self.documents = [units[rows].astype(np.float64) for rows in own]
        self.words = [set(words[rows]) for rows in own]

    def unit(self, vectors: np.ndarray) -> np.ndarray:
        units = vectors.astype(np.float32) - self.mean
        return units / np.linalg.norm(units, axis=1, keepdims=True)

    def scores(self, vectors: np.ndarray, surfaces: list[str], how: str) -> list[float]:
        """Return the score of each document, NaN for one without tokens."""
        query, weights = self.unit(vectors).astype(np.float64), np.ones(len(surfaces))
        if how == "idf":
            n = len(self.documents)
            found = [sum(word.lower() in own for own in self.words) for word in surfaces]
            weights = np.array([math.log(1 + (n - df + 0.5) / (df + 0.5)) for df in found])
        weights /= weights.sum()
        return [float((query @ own.T).max(axis=1) @ weights) if len(own) else math.nan for own in self.documents]


class TestScores:
    @pytest.mark.parametrize(
        ("codes", "level", "how", "tolerance"),
        [
            ("float16", "token", "maxsim", 1e-3),
            ("bit", "token", "idf", 1e-5),
            ("int8", "token", "idf", 1e-5),
            ("int8", "word", "idf", 1e-5),
        ],
    )
    @pytest.mark.numeric
    def test_equal_a_naive_loop(
        self, store: Store, tmp_path: Path, codes: str, level: str, how: str, tolerance: float
    ) -> None:
        # Those of float16 are compared with the vectors of the store, the others with their own decoded values.
        naive = Naive(store, level, "layer_06", codes=None if codes == "float16" else CodeKind(codes))
        ids = store.polars("sentence", ["doc_id"])["doc_id"].to_list()
        with build(store, tmp_path / "index", rerank=f"{level}:layer_06", codes=codes) as index:
            encoded = index.encode(QUERIES)
            hits = index.search(encoded, len(ids), rerank=how, candidates="all", columns=["doc_id"])
            few = index.search(encoded, 3, rerank=how, candidates=20, columns=["doc_id"])
            dense = index.search(encoded, 20, rerank="none", columns=["doc_id"])
        for number, tokens in enumerate(encoded.tokens):
            expected = dict(zip(ids, naive.scores(tokens.vectors, tokens.surfaces, how), strict=True))
            found = hits.filter(query=number)
            assert len(found) == len(ids)
            np.testing.assert_allclose(found["score"], [expected[one] for one in found["doc_id"]], atol=tolerance)
            assert found["score"].is_sorted(descending=True)
            # Only candidates of the vectors are ordered again.
            candidates = set(dense.filter(query=number)["doc_id"])
            best = [one for one in found["doc_id"] if one in candidates][:3]
            assert few.filter(query=number)["doc_id"].to_list() == best

    def test_mixed_is_the_mean_of_both_scores(self, index: Index) -> None:
        none, idf, mixed = (
            index.search(QUERIES, 56, rerank=how).sort("query", "doc_id") for how in ("none", "idf", "mixed")
        )
        assert idf["dense_score"].to_list() == pytest.approx(none["score"].to_list(), abs=1e-6)
        assert mixed["score"].to_list() == pytest.approx(((none["score"] + idf["score"]) / 2).to_list(), abs=1e-6)

    def test_a_constant_dimension_and_a_zero_vector_give_finite_codes(self) -> None:
        vectors = np.random.default_rng(0).normal(size=(20, 12)).astype(np.float16)
        vectors[:, 3] = 0.25
        mean = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        vectors[0] = mean
        units = centred(vectors, mean)
        for kind, tolerance in (("float16", 1e-3), ("int8", 5e-3), ("bit", 1)):
            back = decode(encode(units, CodeKind(kind)), CodeKind(kind), 12)
            np.testing.assert_allclose(back, units, atol=tolerance)
        assert np.linalg.norm(back, axis=1) == pytest.approx(1)

    def test_equal_documents_keep_their_order_and_those_without_tokens_come_last(
        self, tmp_path: Path, tiny_folder: Path
    ) -> None:
        texts = ["sells shells", "one quick fox", "", "sells shells", "the fox", "sells shells"]
        rows = [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)]
        store = tiny_store(tmp_path / "s", tiny_folder, rows, keep_columns=(), include_special_tokens=True)
        with build(store, tmp_path / "index", rerank="token", feature="layer_03") as index:
            found = index.search("sells shells", 6, columns=["doc_id"])
            assert [found["doc_id"][n] for n in (0, 1, 2, -1)] == ["d0", "d3", "d5", "d2"]
        assert '"score": null' in good("search", tmp_path / "index", "shells", "--json").out.splitlines()[-1]

    def test_a_filter_counts_before_candidates_are_cut(self, index: Index) -> None:
        text = documents()[20]["text"]
        found = index.search(text, 3, where="label = 'river'", candidates=1, columns=["label"])
        assert found["label"].to_list() == ["river"] * 3


class TestMatches:
    def test_lead_to_the_words_of_the_text(self, index: Index) -> None:
        found = index.search(QUERIES, 5, rerank="idf", matches=True, columns=["doc_id", "text"])
        for row in found.iter_rows(named=True):
            assert [match["query_word"] for match in row["matches"]] == QUERIES[row["query"]].split()
            assert sum(match["score"] for match in row["matches"]) == pytest.approx(row["score"], abs=1e-5)
            for match in row["matches"]:
                assert row["text"][match["char_start"] : match["char_end"]] == match["word"]
        bank = {m["query_word"]: m["word"] for m in found.filter(query=0, rank=1)["matches"][0]}
        assert (bank["bank"], bank["river"]) == ("bank", "river")
        words = {match["word"] for matches in found.filter(query=2)["matches"] for match in matches}
        assert {"indent", "indented", "indentation", "readability"} & words

    def test_of_pairs_of_texts_name_the_text(self, tmp_path: Path, tiny_folder: Path) -> None:
        rows = [{"id": f"d{n}", "text": f"one {n}", "text_pair": f"shells of number {n}"} for n in range(3)]
        store = tiny_store(tmp_path / "s", tiny_folder, rows, keep_columns=(), text_pair_column="text_pair")
        with build(store, tmp_path / "index", rerank="word", feature="layer_03") as index:
            for row in index.search("shells", 3, matches=True, columns=["text", "text_pair"]).iter_rows(named=True):
                (match,) = row["matches"]
                text = row["text_pair"] if match["segment"] else row["text"]
                assert text[match["char_start"] : match["char_end"]] == match["word"]

    def test_are_marked_in_a_terminal_and_on_a_page(self, index: Index) -> None:
        lines = good("search", index.path, QUERIES[0], "-k", "1").out
        assert "on the [bank] [of] the [river] and fished" in lines
        answers = Answers(index)
        (hit,) = answers.shown(PageQuery(q=QUERIES[0], k=1))["hits"]
        assert {"bank", "river"} <= {piece.text for piece in hit["pieces"] if piece.is_marked}
        (found,) = answers.objects(PageQuery(q=QUERIES[0], k=1))
        assert found["matches"][1]["query_word"] == "bank"


class TestFolder:
    def test_a_rerun_after_kills_gives_the_same_index(self, store: Store, tmp_path: Path) -> None:
        out, level = tmp_path / "index", ("--level", "sentence", "--feature", "layer_06")
        for at in ("tokens.checkpoint", "tokens.parquet.opened", "tokens.codes.ready"):
            done = run_killed(at, "index", "build", store.path, "-o", out, *level, "--rerank", BY, "--threads", "1")
            assert done.returncode == -signal.SIGKILL, done.stderr
            assert not out.exists()
        for place in (out, tmp_path / "whole"):
            build(store, place).close()
        assert contents(out) == contents(tmp_path / "whole")

    def test_new_rows_are_reranked_as_the_old_ones(self, tmp_path: Path, tiny_folder: Path) -> None:
        store, grown = (tiny_store(tmp_path / str(n), tiny_folder, documents(n)) for n in (8, 12))
        build(store, tmp_path / "index", feature="layer_03", rerank="token", codes="float16").close()
        old = contents(tmp_path / "index")["tokens.codes"]
        done = run_killed("tokens.checkpoint", "index", "update", tmp_path / "index", grown.path)
        assert done.returncode == -signal.SIGKILL, done.stderr
        with bertfeat.open_index(tmp_path / "index").update(grown) as updated:
            last = documents(12)[-1]
            found = updated.search(last["text"], 1, rerank="idf", columns=["doc_id"])
            assert found.row(0) == (0, 1, pytest.approx(1, abs=2e-2), pytest.approx(1, abs=2e-2), last["id"])
        new = contents(tmp_path / "index")["tokens.codes"]
        assert new.startswith(old)
        assert len(new) == 2 * 32 * sum(~grown.polars("token", ["is_special"])["is_special"])

    def test_a_flipped_byte_is_found(self, index: Index, tmp_path: Path) -> None:
        for file in index.path.iterdir():
            data = bytearray(file.read_bytes())
            if file.name == "tokens.codes":
                data[len(data) // 2] ^= 1
            (tmp_path / file.name).write_bytes(data)
        with pytest.raises(UserError, match="its content does not match"):
            bertfeat.open_index(tmp_path, store=index.store)


def test_an_evaluation_has_both_rankings_side_by_side(index: Index, tmp_path: Path) -> None:
    rows = documents()[:16]
    asked = [{"id": f"q{n}", "text": row["text"][:20]} for n, row in enumerate(rows)]
    queries = write_jsonl(tmp_path / "queries.jsonl", asked)
    (tmp_path / "qrels.tsv").write_text("".join(f"q{n}\t{row['id']}\t1\n" for n, row in enumerate(rows)))
    found = evaluate_retrieval(index, tmp_path / "qrels.tsv", queries)
    plain = evaluate_retrieval(index, tmp_path / "qrels.tsv", queries, rerank="none")
    assert found["dense"] == {name: plain[name] for name in found["dense"]}
    assert found["rerank"] == "mixed"
    for name, gain in found["gain"].items():
        assert gain["mean"] == pytest.approx(found[name] - plain[name])
    streamed = ("--queries", "-", "--rerank", "idf", "--candidates", "9", "-k", "1")
    assert "[bank]" in good("search", index.path, *streamed, stdin=b"bank\n").out
    flags = ("--queries", queries, "--qrels", tmp_path / "qrels.tsv", "--rerank", "maxsim", "--json")
    assert good("index", "eval", index.path, *flags).json["retrieval"]["rerank"] == "maxsim"


@pytest.mark.parametrize(
    ("search", "named"),
    [
        ({"candidates": 0}, "candidates 0: write a number from 1 on, or all"),
        ({"rerank": "bm25"}, "rerank 'bm25': unknown; choose one of none, maxsim, idf, mixed"),
        ({"queries": np.zeros((1, 384), np.float32), "rerank": "idf"}, "needs the tokens of the queries"),
        ({"rerank": "none", "matches": True}, "`matches` and `candidates` are for `rerank`"),
        ({"rerank": "none", "candidates": 9}, "`matches` and `candidates` are for `rerank`"),
        ({"same_word": True}, r"need a query with a \[word\]"),
    ],
)
def test_a_search_that_cannot_rerank_is_refused(index: Index, search: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        index.search(**{"queries": "a bank", **search})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"level": "word"}, "is for an index of sentences or spans"),
        ({"rerank": "sentence:layer_06"}, "level 'sentence' is not token or word; write token:layer_06"),
        ({"rerank": "token:layer_77"}, "layer_77"),
        ({"codes": "int4"}, "codes 'int4': unknown; choose one of bit, int8, float16"),
        ({"rerank": None, "codes": "bit"}, "`codes` 'bit' is for `rerank`"),
    ],
)
def test_a_build_that_cannot_rerank_is_refused(
    store: Store, tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        build(store, tmp_path / "index", **settings)
    assert not list(tmp_path.iterdir())


def test_an_index_without_tokens_does_not_rerank(store: Store, tmp_path: Path) -> None:
    with bertfeat.build_index(store, tmp_path / "index", level="sentence", feature="layer_06", threads=1) as plain:
        assert "dense_score" not in plain.search("a bank").columns
        with pytest.raises(UserError, match="has no tokens to rerank by; build it with"):
            plain.search("a bank", rerank="idf")
    with build(store, tmp_path / "l2", metric="l2") as far:
        assert far.search(QUERIES, 9).equals(far.search(QUERIES, 9, rerank="idf"))


def test_xquad_is_ranked_better_than_by_its_embeddings(tmp_path: Path) -> None:
    data = TESTS / "data" / "xquad_en"
    settings = {"levels": "token,sentence", "layers": "6", "combine": "none", "pooling": "model", "id_column": "id"}
    store = bertfeat.extract(data / "paragraphs.jsonl.zst", tmp_path / "store", **settings)
    with bertfeat.build_index(store, tmp_path / "index", level="sentence", rerank="token") as index:
        found = evaluate_retrieval(index, data / "qrels.tsv", data / "questions.jsonl.zst")
    assert found["dense"]["mrr@10"] == pytest.approx(0.929, abs=0.002)
    assert found["mrr@10"] > 0.96
    assert found["gain"]["ndcg@10"]["low"] > 0.02
