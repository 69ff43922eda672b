"""The pipelines of search on small real data: the best feature, near-identical documents, the senses of a word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from threadpoolctl import threadpool_limits

import bertfeat
from tests.support.index_stores import SENSES, brute_force, documents, write_jsonl
from tests.support.pipeline_runs import result_of
from tests.support.places import TESTS

# The result of a clustering, the occurrences with their senses, and the folder.
Senses = tuple[dict[str, Any], pl.DataFrame, Path]
MEASURES = ("ndcg@10", "mrr@10", "recall@10", "recall@100")
RIVER = [
    *SENSES["river"],
    "The ferry tied up at the north bank of the river.",
    "Herons waited motionless on the far bank of the stream.",
    "Floods had washed away the bank below the old mill.",
    "We pulled the canoe up the sandy bank and made camp.",
    "Children slid down the steep bank into the shallow water.",
    "Reeds hid the nests along the east bank of the lake.",
    "The army crossed at dawn and held the left bank of the Rhine.",
    "Otters dig their dens in the bank close to the waterline.",
    "A path follows the south bank of the canal for two miles.",
    "Cattle came down to the bank to drink from the creek.",
]
MONEY = [
    *SENSES["money"],
    "The central bank cut interest rates to fight the recession.",
    "Customers queued outside the bank to withdraw their deposits.",
    "Her bank charged a fee for every foreign payment.",
    "The bank approved the mortgage after checking his income.",
    "Shares of the investment bank fell after the losses were announced.",
    "He opened an account at a bank that pays better interest.",
    "The bank went bankrupt and its savers lost their money.",
    "Regulators ordered the bank to raise more capital.",
    "The robbers fled from the bank with the cash.",
    "A merger made it the largest commercial bank in the country.",
]


@pytest.fixture(scope="module", autouse=True)
def one_thread_everywhere(one_thread: None) -> Iterator[None]:
    """Compute on one thread, in NumPy and scikit-learn too."""
    with threadpool_limits(1):
        yield


ARTICLES = json.loads((TESTS / "data" / "xquad_en" / "xquad.en.json").read_text(encoding="utf-8"))["data"][:2]
PARAGRAPHS = [paragraph for article in ARTICLES for paragraph in article["paragraphs"]]
CONTEXTS = [paragraph["context"] for paragraph in PARAGRAPHS]
QUESTIONS = [question["question"] for paragraph in PARAGRAPHS for question in paragraph["qas"]]


def measured(scores: np.ndarray) -> dict[str, float]:
    """Return the measures where each question asks for one paragraph, of scores (n_questions, n_paragraphs)."""
    gold = np.repeat(np.arange(len(PARAGRAPHS)), [len(paragraph["qas"]) for paragraph in PARAGRAPHS])
    order = np.argsort(-scores, axis=1, kind="stable")
    rank = 1 + np.argmax(order == gold[:, None], axis=1)
    near = rank <= 10
    gains = (near / np.log2(1 + rank), near / rank, near, rank <= 100)
    return {name: float(gain.mean()) for name, gain in zip(MEASURES, gains, strict=True)}


ASKED = ("--layers", "0,6", "--poolings", "mean,cls,model", "--transforms", "none,center,whiten,whiten:4,pca:3")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the result of a semantic search with the questions of two articles of XQuAD."""
    folder = tmp_path_factory.mktemp("semantic")
    (folder / "xquad.json").write_text(json.dumps({"data": ARTICLES}), encoding="utf-8")
    return folder, result_of(folder, "semantic_search", "--corpus", folder / "xquad.json", *ASKED)


class TestSemanticSearch:
    def test_each_combination_is_measured_as_brute_force_does(self, searched: tuple[Path, dict[str, Any]]) -> None:
        folder, result = searched
        rows = result["rows"]
        assert rows == sorted(rows, key=lambda row: row["ndcg@10"], reverse=True)
        assert (result["n_documents"], result["n_queries"]) == (len(PARAGRAPHS), len(QUESTIONS))
        # Without context, [CLS] is the same everywhere; 6 paragraphs cannot be whitened in 384 dimensions.
        wanted = {(0, "mean"), (6, "mean"), (6, "cls"), (6, "model")}
        transforms = ("none", "center", "whiten:4", "pca:3")
        assert {(row["layer"], row["pooling"], row["transform"]) for row in rows} == {
            (*pair, transform) for pair in wanted for transform in transforms
        }
        assert [reason[:50] for reason in result["skipped"]] == [
            "layer_00, cls: all documents have the same vector",
            "transform 'whiten': it takes 385 vectors or more, ",
        ]
        for row in rows:
            names = [f"{side}-{row['pooling']}" for side in ("documents", "queries")]
            stores = [bertfeat.open_store(folder / "features" / name) for name in names]
            feature = "embedding" if row["pooling"] == "model" else f"layer_{row['layer']:02d}"
            found = [store.numpy("sentence", feature) for store in stores]
            scores, order = brute_force(*found, len(PARAGRAPHS), "cosine", row["transform"])
            by_document = np.empty_like(scores)
            np.put_along_axis(by_document, order, scores, axis=1)
            assert {name: row[name] for name in MEASURES} == pytest.approx(measured(by_document)), row

    def test_tables_with_judgements_give_the_result_of_squad(
        self, searched: tuple[Path, dict[str, Any]], tmp_path: Path
    ) -> None:
        docs = pl.DataFrame({"_id": [f"p{n}" for n in range(len(CONTEXTS))], "body": CONTEXTS})
        docs.write_csv(tmp_path / "docs.csv")
        questions = [(f"p{n}", question) for n, paragraph in enumerate(PARAGRAPHS) for question in paragraph["qas"]]
        # A question without judgements is not searched for.
        asked = [{"_id": question["id"], "body": question["question"]} for _, question in questions]
        write_jsonl(tmp_path / "queries.jsonl", [*asked, {"_id": "other", "body": "Who else?"}])
        lines = [f"{question['id']}\t{document}\t2" for document, question in questions]
        lines += [f"{question['id']}\tp0\t0" for document, question in questions if document != "p0"]
        (tmp_path / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]), encoding="utf-8")
        found = result_of(
            tmp_path / "out",
            "semantic_search",
            *("--corpus", tmp_path / "docs.csv", "--queries", tmp_path / "queries.jsonl"),
            *("--qrels", tmp_path / "qrels.tsv", "--text-column", "body"),
            *("--layers", 6, "--poolings", "mean", "--transforms", "none,center"),
        )
        expected = [row for row in searched[1]["rows"] if (row["layer"], row["pooling"]) == (6, "mean")]
        assert found["rows"] == [row for row in expected if row["transform"] in ("none", "center")]
        assert found["n_queries"] == len(QUESTIONS)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Senses:
    """The result for the word `bank`, its occurrences with their senses, and the folder."""
    folder = tmp_path_factory.mktemp("senses")
    lines = [*RIVER, *MONEY, *SENSES["season"], *SENSES["coil"]]
    (folder / "corpus.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    result = result_of(folder / "bank", "word_senses", "--corpus", folder / "corpus.txt", "--word", "Bank")
    return result, pl.read_csv(folder / "bank" / "senses.csv"), folder / "bank"


class TestWordSenses:
    def test_the_senses_of_bank_are_separated(self, bank: Senses) -> None:
        result, occurrences, folder = bank
        assert (result["n_occurrences"], result["n_clusters"], result["one_sense_plausible"]) == (28, 2, False)
        assert result["silhouette"] == max(result["silhouettes"].values()) > result["bar"]
        texts, found = [*RIVER, *MONEY], {}
        for row in occurrences.iter_rows(named=True):
            text = texts[row["doc_id"]]
            assert text[row["char_start"] : row["char_end"]].lower() == "bank"
            assert row["left"].lstrip("…") + row["word"] + row["right"].rstrip("…") in text
            found[row["doc_id"]] = row["sense"]
        senses = [found[number] for number in range(28)]
        assert len(set(senses[:14])) == len(set(senses[14:])) == 1
        assert senses[0] != senses[14]
        typical = [set(sense["typical_words"]) for sense in result["senses"]]
        assert sorted("river" in words for words in typical) == sorted("interest" in words for words in typical)
        store = ("--store", folder / "features", "--word", "spring", "--senses", 2)
        spring = result_of(folder / "spring", "word_senses", *store)
        assert (spring["chosen_by"], spring["n_clusters"], spring["n_occurrences"]) == ("--senses", 2, 8)

    def test_vectors_are_compared_as_documented(self, bank: Senses) -> None:
        result, occurrences, folder = bank
        store = bertfeat.open_store(folder / "features")
        surfaces = store.polars("word", ["doc_id", "word"]).with_row_index("row")
        rows = surfaces.filter(pl.col("word").str.to_lowercase() == "bank")
        vectors = store.numpy("word", "layer_04")[rows["row"].to_numpy()].astype(np.float64)
        vectors -= vectors.mean(axis=0)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        found = rows.with_columns(i=pl.int_range(pl.len())).join(occurrences, on="doc_id")
        assert len(found) == 28
        for (sense,), members in found.group_by("sense"):
            own = vectors[members["i"].to_numpy()]
            centre = own.mean(axis=0)
            expected = own @ centre / np.linalg.norm(centre)
            np.testing.assert_allclose(members["closeness"].to_numpy(), expected, atol=1e-6)
            examples = [example["doc_id"] for example in result["senses"][sense - 1]["examples"]]
            assert examples == members.sort("closeness", descending=True)["doc_id"].head(5).to_list()


PLANTED = [PARAGRAPHS[3]["context"].replace("the", "THE").replace(",", " ,") + " (edited)"]
PLANTED += ["The match was called off because of heavy rain.", "Because of heavy rain, the match was called off."]
PLANTED += [*[PARAGRAPHS[0]["context"]] * 2, "   ", "   "]
# More of one kind than one search returns.
PLANTED += [f"Invoice number {n} of March was paid in full by the customer." for n in range(101, 125)]
ROWS = [{"id": f"x{n}", "text": text} for n, text in enumerate([*CONTEXTS, *PLANTED])]
ROWS += [{"id": row["id"], "text": row["text"]} for row in documents(20)]


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on documents that are equal, or nearly equal, whose features other runs take."""
    folder = tmp_path_factory.mktemp("duplicates")
    corpus = write_jsonl(folder / "corpus.jsonl", ROWS)
    result_of(folder / "made", "near_duplicates", "--corpus", corpus, "--threshold", 0.9)
    return folder


def clusters_by_brute_force(store: bertfeat.Store, threshold: float, transform: str) -> set[frozenset[str]]:
    """Return the ids of each cluster of documents, by comparing all texts."""
    texts = list(dict.fromkeys(row["text"] for row in ROWS))
    known = np.flatnonzero(store.valid("sentence", "layer_06"))
    vectors = store.numpy("sentence", "layer_06")[known]
    scores, order = brute_force(vectors, vectors, len(known), "cosine", transform)
    near = np.eye(len(texts), dtype=bool)
    query, rank = np.nonzero(scores >= threshold)
    near[known[query], known[order[query, rank]]] = True
    _, component = connected_components(coo_array(near), directed=False)
    members: dict[int, set[str]] = {}
    for row in ROWS:
        members.setdefault(int(component[texts.index(row["text"])]), set()).add(row["id"])
    return {frozenset(ids) for ids in members.values() if len(ids) > 1}


@pytest.mark.parametrize(("threshold", "transform"), [(0.9, "none"), (0.6, "whiten:16"), (0.85, "none")])
def test_clusters_are_those_of_brute_force(repeated: Path, threshold: float, transform: str) -> None:
    out = repeated / f"{transform}-{threshold}".replace(":", "")
    shutil.copytree(repeated / "made" / "features", out / "features")
    asked = ("--threshold", threshold, "--transform", transform)
    result = result_of(out, "near_duplicates", "--corpus", repeated / "corpus.jsonl", *asked)
    frame = pl.read_parquet(out / "clusters.parquet")
    assert frame.equals(pl.read_ndjson(out / "clusters.jsonl", schema=frame.schema))
    expected = clusters_by_brute_force(bertfeat.open_store(out / "features"), threshold, transform)
    assert {frozenset(group["doc_id"]) for _, group in frame.group_by("cluster")} == expected
    assert (result["n_documents"], result["n_texts"], result["n_without_tokens"]) == (73, 70, 1)
    assert result["n_superfluous"] == len(frame) - len(expected)
    # The largest is first; in each, the representative is first, and equal texts have a score of 1.
    sizes = frame.group_by("cluster", maintain_order=True).len()
    assert sizes["len"].to_list() == sorted(sizes["len"], reverse=True)
    firsts = frame.group_by("cluster", maintain_order=True).first()
    assert firsts["is_representative"].all()
    same = frame.join(firsts.select("cluster", "text"), on=["cluster", "text"])
    assert (same["score"] == 1).all()
