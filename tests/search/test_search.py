"""Search of an index: queries become vectors of the store, hits its rows, and filters hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.ann.description import IndexDescription
from bertfeat.ann.index import VectorIndex, load_index
from bertfeat.choices import Level
from bertfeat.errors import InputError, UserError
from bertfeat.search import QueryFile, evaluate_retrieval, read_qrels
from bertfeat.search.index import Index
from bertfeat.store.reader import Store
from tests.support.index_stores import SENSES, documents, tiny_store, write_jsonl

pytestmark = [pytest.mark.promise("search"), pytest.mark.usefixtures("one_thread", "no_fsync")]

FEATURE = "layer_06"


@pytest.fixture(scope="module")
def built(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An index of sentences and one of words; not to be changed."""
    folder = tmp_path_factory.mktemp("indexes")
    for level in ("sentence", "word"):
        bertfeat.build_index(store, folder / level, level=level, feature=FEATURE, threads=1).close()
    return {level: folder / level for level in ("sentence", "word")}


@pytest.fixture(scope="module")
def sentences(built: dict[str, Path]) -> Iterator[Index]:
    with bertfeat.open_index(built["sentence"]) as index:
        yield index


@pytest.fixture(scope="module")
def words(built: dict[str, Path]) -> Iterator[Index]:
    with bertfeat.open_index(built["word"]) as index:
        yield index


class TestQueries:
    def test_texts_find_themselves_in_a_store_of_given_words(self, tmp_path: Path) -> None:
        words = [["don't", "panic", "!"], ["a", "river", "bank"], ["banks", "lend", "money"]]
        how: Any = {"levels": "token,sentence", "layers": "-1", "is_split_into_words": True}
        store = bertfeat.extract(pl.DataFrame({"text": words}), tmp_path / "s", **how)
        with bertfeat.build_index(store, tmp_path / "i", level="sentence", rerank="token:layer_06", threads=1) as index:
            queries = ["  ".join(row) for row in words]
            encoded, stored = index.encode(queries), store.numpy("sentence", "layer_06")
            np.testing.assert_allclose(encoded.vectors.astype(np.float32), stored.astype(np.float32), atol=2e-3)
            assert index.search(queries, 1)["doc_id"].to_list() == [0, 1, 2]

    def test_texts_become_the_vectors_of_the_store_and_find_themselves(self, sentences: Index, store: Store) -> None:
        encoded = sentences.encode([row["text"] for row in documents()])
        stored = store.numpy("sentence", FEATURE)
        assert encoded.vectors.dtype == stored.dtype == np.float16
        np.testing.assert_allclose(encoded.vectors.astype(np.float32), stored.astype(np.float32), atol=2e-3)
        found = sentences.search(encoded, 1)
        assert found.columns == ["query", "rank", "score", "doc_id", "text"]
        assert found["doc_id"].to_list() == [row["id"] for row in documents()]
        np.testing.assert_allclose(found["score"].to_numpy(), 1, atol=1e-3)

    def test_every_marked_word_becomes_its_row(self, words: Index, store: Store) -> None:
        frame = store.polars("word").filter(pl.col("doc_id") == "d001")
        text = documents()[1]["text"]
        spans = list(zip(frame["char_start"], frame["char_end"], strict=True))
        encoded = words.encode([f"{text[:start]}[{text[start:end]}]{text[end:]}" for start, end in spans])
        assert list(encoded.surfaces) == frame["word"].to_list()
        stored = frame[FEATURE].to_numpy().astype(np.float32)
        np.testing.assert_allclose(encoded.vectors.astype(np.float32), stored, atol=2e-3)
        found = words.search(encoded, 1, columns=["doc_id", "word_index"])
        assert found["doc_id"].to_list() == ["d001"] * len(spans)
        assert found["word_index"].to_list() == frame["word_index"].to_list()

    def test_words_are_found_in_the_same_sense(self, words: Index) -> None:
        sense_of = {row["id"]: row["label"] for row in documents()}
        for query, sense in [
            ("We had a picnic on the [bank] of the lake", "river"),
            ("She opened an account at the [bank]", "money"),
            ("The trees are green again in [spring]", "season"),
            ("A steel [spring] holds the lid", "coil"),
        ]:
            found = words.search(query, 3, same_word=True)
            senses = [sense_of[doc_id] for doc_id in found["doc_id"]]
            assert senses.count(sense) >= 2, (query, senses)
            assert senses[0] == sense

    def test_one_text_many_texts_or_vectors(self, sentences: Index, store: Store) -> None:
        texts = [row["text"] for row in documents()[:3]]
        together = sentences.search(texts, 4)
        alone, same = sentences.search(texts[1], 4), together.filter(pl.col("query") == 1)
        assert alone["doc_id"].to_list() == same["doc_id"].to_list()
        np.testing.assert_allclose(alone["score"].to_numpy(), same["score"].to_numpy(), atol=1e-3)
        by_vectors = sentences.search(store.take("sentence", FEATURE, [0, 1, 2]), 4)
        assert by_vectors["doc_id"].to_list() == together["doc_id"].to_list()
        assert sentences.search(store.take("sentence", FEATURE, [2])[0], 4)["query"].to_list() == [0] * 4
        assert sentences.search([], 4).shape == (0, 5)

    def test_queries_of_a_corpus_of_words_are_split_into_words(self, tmp_path: Path, tiny_folder: Path) -> None:
        rows = [{"id": "a", "text": ["U.S.", "don't", "über-fox"]}, {"id": "b", "text": ["sea", "shells"]}]
        store = tiny_store(tmp_path / "s", tiny_folder, rows, keep_columns=(), is_split_into_words=True)
        stored = store.numpy("word", "layer_03").astype(np.float32)
        with bertfeat.build_index(store, tmp_path / "index", level="word") as index:
            encoded = index.encode(["  [U.S.]  don't\tüber-fox", "U.S. don't [über-fox]", "[sea] shells"])
        assert encoded.surfaces == ("U.S.", "über-fox", "sea")
        np.testing.assert_allclose(encoded.vectors.astype(np.float32), stored[[0, 2, 3]], atol=2e-3)

    def test_another_model_is_refused(self, tmp_path: Path, tiny_folder: Path) -> None:
        model = tmp_path / "model"
        shutil.copytree(tiny_folder, model)
        store = tiny_store(tmp_path / "s", model, levels="sentence")
        with bertfeat.build_index(store, tmp_path / "index") as index:
            tokenizer = json.loads((model / "tokenizer.json").read_text())
            tokenizer["model"]["vocab"] = dict(sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1]))
            (model / "tokenizer.json").write_text(json.dumps(tokenizer, indent=3))
            with pytest.raises(UserError, match=r"index .* and model .* hold different .* has tokenizer "):
                index.search("one quick fox", 1)


class TestFilters:
    def test_where(self, sentences: Index, words: Index) -> None:
        text = documents()[0]["text"]
        found = sentences.search(text, 16, where="label = 'money' OR label IN ('coil')", columns=["label", "n"])
        assert set(found["label"]) == {"money", "coil"}
        assert len(found) == 8
        assert len(sentences.search(text, 10, where="n >= 10 AND n < 13")) == 3
        assert len(sentences.search(text, 10, where="label = 'nothing'")) == 0
        # A condition on the document holds for its words.
        found = words.search("the [bank] of the river", 50, where="label = 'season' AND word <> 'spring'")
        assert {row["id"] for row in documents() if row["label"] == "season"} >= set(found["doc_id"])
        assert "spring" not in found["word"].to_list()

    def test_where_is_an_sql_condition(self, store: Store) -> None:
        rows = documents()
        for where, wanted in (
            ("n % 2 = 0 AND text LIKE '%spring%'", [row["n"] % 2 == 0 and "spring" in row["text"] for row in rows]),
            # Neither null nor its negation is true.
            ("label <> 'river'", [row["label"] not in (None, "river") for row in rows]),
        ):
            assert store.where(Level.SENTENCE, where).tolist() == np.flatnonzero(wanted).tolist()

    def test_same_word_and_other_words(self, words: Index, store: Store) -> None:
        surfaces = store.polars("word", ["word"])["word"].str.to_lowercase()
        n_spring = int((surfaces == "spring").sum())
        queries = ["The [SPRING] of a clock", "a river [bank]"]
        same = words.search(queries, 50, same_word=True)
        assert same.filter(pl.col("query") == 0)["word"].str.to_lowercase().to_list() == ["spring"] * n_spring
        assert set(same.filter(pl.col("query") == 1)["word"]) == {"bank"}
        other = words.search(queries, 50, exclude_same_word=True)
        assert "spring" not in other.filter(pl.col("query") == 0)["word"].str.to_lowercase().to_list()
        assert "bank" not in other.filter(pl.col("query") == 1)["word"].to_list()
        assert len(other) == 100
        both = words.search("The [spring] of a clock", 50, same_word=True, where="label = 'coil'")
        assert both["doc_id"].sort().to_list() == [row["id"] for row in documents() if row["label"] == "coil"]

    def test_allowed_positions(self, sentences: Index) -> None:
        allowed = np.zeros(sentences.n_vectors, bool)
        allowed[[4, 9]] = True
        found = sentences.search("money", 5, allowed=allowed, columns=["row"])
        assert sorted(found["row"]) == [4, 9]
        assert sentences.search("money", 5, allowed=allowed, columns=[]).columns == ["query", "rank", "score"]
        assert sentences.search("money", 5, allowed=allowed, where="n < 5", columns=["row"])["row"].to_list() == [4]


REFUSED = [
    ({"queries": ["[bank]", ""]}, r"query 1 '': no word is marked"),
    ({"queries": ["[fine]", 7]}, r"queries\[1\] must be a string, not 7"),
    ({"queries": np.zeros((1, 3))}, "384"),
    ({"queries": np.full((1, 384), np.nan)}, "NaN"),
    ({"where": "nope = 1"}, "no column 'nope'; columns are doc_id, word_index, word"),
    ({"where": 'label = "river"'}, "no column 'river'; .* texts take single quotes"),
    ({"where": "layer_06 = 1"}, "no column 'layer_06'"),
    ({"where": "label ="}, "not an SQL condition"),
    ({"where": "foo(label) = 1"}, "unsupported function 'foo'"),
    ({"where": "n"}, "gives Int64, where a condition is true or false"),
    ({"where": "label = 3"}, "cannot compare string with numeric"),
    ({"allowed": np.ones(3, bool)}, "give bool of shape"),
    ({"columns": [FEATURE]}, "no column 'layer_06' at level word"),
    ({"same_word": True, "exclude_same_word": True}, "leave nothing to find"),
]


@pytest.mark.parametrize(("how", "said"), REFUSED)
def test_a_wrong_search_is_one_line(words: Index, how: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=f"(?s){said}") as error:
        words.search(**{"queries": "[bank] x", "k": 1, **how})
    assert "\n" not in str(error.value)


class TestContext:
    def test_from_the_text_of_the_document(self, words: Index) -> None:
        found = words.search("He sat on the [bank] of the river and fished.", 1, columns=["row", "word"])
        context = words.contexts(found["row"], 12)[0]
        assert context.marked() == "…sat on the [bank] of the riv…"
        assert words.contexts(found["row"], 80)[0].marked() == "He sat on the [bank] of the river and fished."


class TestOpening:
    def test_columns_of_the_store_and_its_documents(self, words: Index, store: Store) -> None:
        found = words.search("the [bank]", 5, columns=["label", "word", "row", "text", "label"])
        assert found.columns == ["query", "rank", "score", "label", "word", "row", "text"]
        frame = store.rows("word", found["row"], ["word", "doc_id"])
        assert found["word"].to_list() == frame["word"].to_list()
        known = {row["id"]: row for row in documents()}
        assert found["text"].to_list() == [known[doc_id]["text"] for doc_id in frame["doc_id"]]

    def test_the_store_is_found_next_to_the_index_or_at_a_given_place(self, tmp_path: Path, tiny_folder: Path) -> None:
        old, new = tmp_path / "old", tmp_path / "new"
        store = tiny_store(old, tiny_folder, levels="sentence")
        bertfeat.build_index(store, old / "index").close()
        query = store.take("sentence", "layer_03", [3])
        old.rename(new)
        with bertfeat.open_index(new / "index") as index:
            assert index.store.path == new.resolve() / "store"
            assert index.search(query, 1)["doc_id"].to_list() == ["d003"]
        (new / "store").rename(tmp_path / "elsewhere")
        with (
            bertfeat.open_index(new / "index") as index,
            pytest.raises(UserError, match=r"its store is not at .*old/store any more; pass `store`"),
        ):
            index.search(query, 1)
        for place in (tmp_path / "elsewhere", bertfeat.open_store(tmp_path / "elsewhere")):
            with bertfeat.open_index(new / "index", store=place) as index:
                assert index.search(query, 1)["doc_id"].to_list() == ["d003"]

    def test_another_store_is_refused(self, tmp_path: Path, tiny_folder: Path) -> None:
        one = tiny_store(tmp_path / "one", tiny_folder, levels="sentence")
        changed = tiny_store(tmp_path / "changed", tiny_folder, documents(9), levels="sentence")
        pooled = tiny_store(tmp_path / "pooled", tiny_folder, levels="sentence", pooling="max")
        bertfeat.build_index(one, tmp_path / "index").close()
        for other, said in [
            (changed, "is not the store that .* was built from, or was made again since; .* bertfeat index update"),
            (pooled, "hold different features: .*pooling 'mean'; store store has pooling 'max'"),
        ]:
            with bertfeat.open_index(tmp_path / "index", store=other) as index, pytest.raises(UserError, match=said):
                index.search(np.zeros(32, np.float32), 1)

    def test_an_index_that_is_replaced_while_it_is_opened(
        self, built: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        index, other = tmp_path / "index", tmp_path / "other"
        shutil.copytree(built["sentence"], index)
        shutil.copytree(built["word"], other)
        n_left = 1

        def load(folder: Path, description: IndexDescription) -> VectorIndex:
            nonlocal n_left
            found = load_index(folder, description)
            if n_left:
                n_left -= 1
                index.rename(tmp_path / "aside")
                other.rename(index)
                (tmp_path / "aside").rename(other)
            return found

        monkeypatch.setattr("bertfeat.search.index.load_index", load)
        with bertfeat.open_index(index) as found:
            assert (found.level, len(found.rows)) == ("word", found.n_vectors)
        n_left = 99
        with pytest.raises(UserError, match="is replaced again and again"):
            bertfeat.open_index(index)


class TestEvaluation:
    def test_recall_of_lists_is_that_of_brute_force(self, tmp_path: Path, tiny_folder: Path) -> None:
        store = tiny_store(tmp_path / "s", tiny_folder, levels="word", keep_columns=())
        with bertfeat.build_index(store, tmp_path / "index", factory="IVF16,Flat", recall=0.6, threads=1) as index:
            measured = index.evaluate(n_queries=10_000)
            vectors = store.numpy("word", "layer_03").astype(np.float64)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            cosines = vectors @ vectors.T
            np.fill_diagonal(cosines, -2)
            _, found = index.nearest(store.numpy("word", "layer_03"), 11)
        hits = 0
        for row, positions in enumerate(found):
            others = [position for position in positions if position != row][:10]
            tenth = np.sort(cosines[row])[-10]
            hits += sum(cosines[row, position] >= tenth - 1e-6 for position in others)
        assert measured["recall@10"] == pytest.approx(hits / (10 * len(vectors)), abs=2e-3)
        assert measured["recall@10"] < 1

    def test_a_retrieval_set(self, sentences: Index, tmp_path: Path) -> None:
        queries = [{"_id": f"q{n}", "text": texts[0]} for n, texts in enumerate(SENSES.values())]
        file = write_jsonl(tmp_path / "queries.jsonl", [*queries, {"_id": "q9", "text": "not judged"}])
        ids = {row["text"]: row["id"] for row in documents()}
        # The text itself comes first; an irrelevant text has grade 0.
        judged = [("q0", ids[SENSES["river"][0]], 2), ("q0", ids[SENSES["coil"][0]], 0)]
        judged += [(f"q{n}", ids[texts[0]], 1) for n, texts in enumerate(SENSES.values()) if n]
        qrels = tmp_path / "qrels.tsv"
        qrels.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{d}\t{g}\n" for q, d, g in judged))
        perfect = {"n_queries": 4, "n_missing": 0, "ndcg@10": 1, "mrr@10": 1, "recall@100": 1}
        assert evaluate_retrieval(sentences, qrels, file) == perfect
        # A document that is not there is missed; a query that is not there counts as missing.
        qrels.write_text("q0 0 nowhere 1\n" + f"q1 0 {ids[SENSES['money'][0]]} 1\nmissing 0 d000 1\n")
        third = dict.fromkeys(("ndcg@10", "mrr@10", "recall@100"), pytest.approx(1 / 3))
        assert evaluate_retrieval(sentences, qrels, file) == {"n_queries": 2, "n_missing": 1, **third}
        qrels.write_text("z 0 d000 1\n")
        with pytest.raises(UserError, match=r"gives none of the queries of .* a relevant document; ids there"):
            evaluate_retrieval(sentences, qrels, file)


class TestFilesOfQueries:
    def test_qrels_in_three_formats(self, tmp_path: Path) -> None:
        expected = {"1": {"a b": 2, "c": 0}, "2": {"a b": 1}}
        for name, content in {
            "beir": "query-id\tcorpus-id\tscore\n1\ta b\t2\n1\tc\t0\n2\ta b\t1\n",
            "trec": "1\t0\ta b\t2\n\n1\t0\tc\t0\r\n2\tQ0\ta b\t1.0\n",
            "json": '{"query_id": 1, "doc_id": "a b", "score": 2}\n{"query-id": "1", "corpus-id": "c", "score": 0}\n'
            '{"qid": "2", "docid": "a b", "relevance": 1}\n',
        }.items():
            path = tmp_path / name
            path.write_text("\ufeff" * (name == "beir") + content)
            assert read_qrels(path) == expected
        for content, said in (("", "holds no judgements"), ("1 0 a 1\n1 a\n", ":2: '1 a' is not a judgement")):
            path.write_text(content)
            with pytest.raises(InputError, match=said):
                read_qrels(path)

    def test_queries_in_several_formats(self, tmp_path: Path) -> None:
        pl.DataFrame({"query_id": [7, 8], "text": ["one", "two"]}).write_parquet(tmp_path / "q.parquet")
        for name, content, ids in [
            ("q.txt", "one\ntwo\n", [0, 1]),
            ("q.jsonl", '{"_id": "x", "text": "one"}\n{"_id": "y", "text": "two"}\n', ["x", "y"]),
            ("q.csv", "text,id\none,x\ntwo,y\n", ["x", "y"]),
            ("q.tsv", "text\none\ntwo\n", [0, 1]),
            ("q.parquet", None, [7, 8]),
        ]:
            if content is not None:
                (tmp_path / name).write_text(content)
            batches = list(QueryFile(tmp_path / name, batch_size=1).batches())
            assert [[query.text for query in batch] for batch in batches] == [["one"], ["two"]]
            assert [batch[0].query_id for batch in batches] == ids
        (tmp_path / "q.csv").write_text("question,key\none,x\n")
        assert next(QueryFile(tmp_path / "q.csv", text_column="question", id_column="key").batches())[0].query_id == "x"
