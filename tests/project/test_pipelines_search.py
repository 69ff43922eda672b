"""The pipelines of search on small real data: the best feature, near-identical documents, the senses of a word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
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
from tests.support.pipeline_runs import refusal, result_of, run
from tests.support.places import TESTS

# The result of a clustering, and the occurrences with their senses.
Senses = tuple[dict[str, Any], pl.DataFrame]
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


def times_of(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the modification times of files."""
    return {path: path.stat().st_mtime_ns for path in paths}


def plot_text(folder: Path) -> str:
    """Check the plot in a folder, and return its SVG text."""
    assert (folder / "plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    svg = (folder / "plot.svg").read_text(encoding="utf-8")
    assert svg.rstrip().endswith("</svg>")
    return svg


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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a semantic search with the questions of XQuAD."""
    return tmp_path_factory.mktemp("semantic")


@pytest.fixture(scope="module")
def xquad(folder: Path) -> Path:
    """Two articles of XQuAD: paragraphs and their questions."""
    path = folder / "xquad.json"
    path.write_text(json.dumps({"data": ARTICLES}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def result(folder: Path, xquad: Path) -> dict[str, Any]:
    return result_of(folder, "semantic_search", "--corpus", xquad, *ASKED)


class TestSemanticSearch:
    def test_each_combination_is_measured_as_brute_force_does(self, folder: Path, result: dict[str, Any]) -> None:
        rows = result["rows"]
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

    def test_the_table_is_best_first_in_text_csv_and_plot(self, folder: Path, result: dict[str, Any]) -> None:
        rows = result["rows"]
        assert [row["ndcg@10"] for row in rows] == sorted((row["ndcg@10"] for row in rows), reverse=True)
        assert rows[0]["layer"] == 6
        table = pl.read_csv(folder / "table.csv")
        assert table["ndcg@10"].to_list() == [row["ndcg@10"] for row in rows]
        text = (folder / "table.txt").read_text(encoding="utf-8").splitlines()
        assert len(text) == len(rows) + 2
        assert text[2].split()[:3] == [str(rows[0][name]) for name in ("layer", "pooling", "transform")]
        assert "nDCG@10" in plot_text(folder)

    def test_tables_with_judgements_give_the_result_of_squad(
        self, folder: Path, result: dict[str, Any], tmp_path: Path
    ) -> None:
        pl.DataFrame({"_id": [f"p{n}" for n in range(len(CONTEXTS))], "body": CONTEXTS}).write_csv(
            tmp_path / "docs.csv"
        )
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
        expected = [row for row in result["rows"] if (row["layer"], row["pooling"]) == (6, "mean")]
        assert found["rows"] == [row for row in expected if row["transform"] in ("none", "center")]
        assert found["n_queries"] == len(QUESTIONS)

    def test_mistakes(self, tmp_path: Path) -> None:
        docs = write_jsonl(tmp_path / "docs.jsonl", [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}])
        queries = write_jsonl(tmp_path / "queries.jsonl", [{"id": "q", "text": "x"}])
        qrels = tmp_path / "qrels.txt"
        qrels.write_text("q 0 c 1\n", encoding="utf-8")
        three = ("--corpus", docs, "--queries", queries, "--qrels", qrels, "--output", tmp_path / "out")
        assert "pass --queries and --qrels" in refusal(
            "semantic_search", "--corpus", docs, "--output", tmp_path / "out"
        )
        said = refusal("semantic_search", *three)
        assert "none of 2 documents is relevant to a query; their ids are such as 'a'" in said
        qrels.write_text("r 0 a 1\n", encoding="utf-8")
        assert "1 judged queries have no text, 'r' among them" in refusal("semantic_search", *three)
        qrels.write_text("q 0 b 1\n", encoding="utf-8")
        assert "none of 1 documents is relevant" in refusal("semantic_search", *three, "--limit", 1)
        assert "'men' must be one of" in refusal("semantic_search", *three, "--poolings", "men")
        assert "transform 'white'" in refusal("semantic_search", *three, "--transforms", "white")
        for name, poolings, *flags in (
            ("--include-special-tokens", "cls,pooler", "--include-special-tokens"),
            ("--layers", "model,pooler", "--layers", 3),
        ):
            ran = run("semantic_search", *three, "--limit", 1, "--poolings", poolings, *flags)
            warned, failed = ran.err.splitlines()
            said = f"bertfeat: warning: {name} has no effect with --poolings {poolings}; leave it out"
            assert (ran.code, warned, "none of 1 documents" in failed) == (2, said, True)
        odd = tmp_path / "odd.json"
        odd.write_text('{"data": [{}]}', encoding="utf-8")
        column = ("--text-column", "body")
        assert "--text-column is for columns" in refusal(
            "semantic_search", "--corpus", odd, "--output", tmp_path / "out", *column
        )
        assert "not a SQuAD file" in refusal("semantic_search", "--corpus", odd, "--output", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_nothing_to_compare(self, tmp_path: Path) -> None:
        corpus = tmp_path / "empty.json"
        questions = [{"id": "q", "question": "What?"}]
        empty = {"data": [{"paragraphs": [{"context": "  ", "qas": questions}, {"context": "", "qas": []}]}]}
        corpus.write_text(json.dumps(empty), encoding="utf-8")
        asked = ("--corpus", corpus, "--layers", 6, "--poolings", "mean", "--output", tmp_path / "out")
        assert "nothing to compare: layer_06, mean: all documents have" in refusal("semantic_search", *asked)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of words that have several senses."""
    folder = tmp_path_factory.mktemp("senses")
    lines = [line for pair in zip(RIVER, MONEY, strict=True) for line in pair]
    lines += [*SENSES["season"], *SENSES["coil"]]
    (folder / "corpus.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def bank(words: Path) -> Senses:
    """The result for the word `bank`, and its occurrences with their senses."""
    result = result_of(words / "bank", "word_senses", "--corpus", words / "corpus.txt", "--word", "Bank")
    return result, pl.read_csv(words / "bank" / "senses.csv")


class TestWordSenses:
    def test_the_senses_of_bank_are_separated(self, words: Path, bank: Senses) -> None:
        result, occurrences = bank
        assert (result["n_occurrences"], result["n_clusters"], result["one_sense_plausible"]) == (28, 2, False)
        assert result["silhouette"] == max(result["silhouettes"].values()) > result["bar"]
        texts = (words / "corpus.txt").read_text(encoding="utf-8").splitlines()
        found = {}
        for row in occurrences.iter_rows(named=True):
            text = texts[row["doc_id"]]
            assert text[row["char_start"] : row["char_end"]].lower() == "bank"
            assert row["left"].lstrip("…") + row["word"] + row["right"].rstrip("…") in text
            found[row["doc_id"]] = row["sense"]
        river = {found[texts.index(text)] for text in RIVER}
        money = {found[texts.index(text)] for text in MONEY}
        assert (len(river), len(money)) == (1, 1)
        assert river != money

    def test_examples_are_the_closest_and_words_typical(self, words: Path, bank: Senses) -> None:
        result, occurrences = bank
        said = (words / "bank" / "examples.txt").read_text(encoding="utf-8")
        for sense in result["senses"]:
            members = occurrences.filter(pl.col("sense") == sense["sense"])
            assert len(members) == sense["n_occurrences"]
            closest = members.sort("closeness", descending=True).head(5)
            assert [example["doc_id"] for example in sense["examples"]] == closest["doc_id"].to_list()
            for example in sense["examples"]:
                assert f"{example['left']}[{example['word']}]{example['right']}" in said
        typical = [set(sense["typical_words"]) for sense in result["senses"]]
        assert sorted(["river" in words for words in typical]) == [False, True]
        assert sorted(["interest" in words for words in typical]) == [False, True]
        assert "sense 1" in plot_text(words / "bank")

    def test_vectors_are_compared_as_documented(self, words: Path, bank: Senses) -> None:
        store = bertfeat.open_store(words / "bank" / "features")
        surfaces = store.polars("word", ["doc_id", "word"]).with_row_index("row")
        rows = surfaces.filter(pl.col("word").str.to_lowercase() == "bank")
        vectors = store.numpy("word", "layer_04")[rows["row"].to_numpy()].astype(np.float64)
        vectors -= vectors.mean(axis=0)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        occurrences = rows.with_columns(i=pl.int_range(pl.len())).join(bank[1], on="doc_id")
        assert len(occurrences) == 28
        for _, members in occurrences.group_by("sense"):
            own = vectors[members["i"].to_numpy()]
            centre = own.mean(axis=0)
            expected = own @ centre / np.linalg.norm(centre)
            np.testing.assert_allclose(members["closeness"].to_numpy(), expected, atol=1e-6)

    def test_another_word_uses_the_features_that_are_there(self, words: Path) -> None:
        before = times_of(words.glob("bank/features/**/*.parquet"))
        assert before
        again = result_of(
            words / "bank", "word_senses", "--corpus", words / "corpus.txt", "--word", "the", "--max-senses", 3
        )
        assert again["one_sense_plausible"]
        assert "perhaps one sense only" in (words / "bank" / "examples.txt").read_text(encoding="utf-8")
        store = ("--store", words / "bank" / "features")
        spring = result_of(words / "spring", "word_senses", *store, "--word", "spring", "--senses", 2)
        assert (spring["chosen_by"], spring["n_clusters"], spring["n_occurrences"]) == ("--senses", 2, 8)
        some = result_of(words / "some", "word_senses", *store, "--word", "bank", "--limit", 12, "--seed", 3)
        assert (some["n_clustered"], some["n_occurrences"]) == (12, 28)
        assert sum(sense["n_occurrences"] for sense in some["senses"]) == 12
        assert times_of(before) == before

    def test_mistakes(self, words: Path, tmp_path: Path) -> None:
        store = ("--store", words / "bank" / "features", "--output", tmp_path)
        assert "1 occurrences of 'otters'" in refusal("word_senses", *store, "--word", "otters")
        assert "2 different occurrences are too few" in refusal("word_senses", *store, "--word", "water")
        assert "28 different occurrences are too few" in refusal(
            "word_senses", *store, "--word", "bank", "--senses", 29
        )
        assert "no feature 'layer_03'" in refusal("word_senses", *store, "--word", "bank", "--layer", 3)
        flags = ("--word", "bank", "--text-column", "body")
        assert "--text-column is for --corpus" in refusal("word_senses", *store, *flags)
        flags = ("--word", "bank", "--senses", 2, "--max-senses", 3)
        assert "--max-senses is for choosing the number" in refusal("word_senses", *store, *flags)
        assert "pass either --corpus or --store" in refusal("word_senses", "--word", "bank", "--output", tmp_path)


PLANTED = {
    "copy": [PARAGRAPHS[0]["context"]] * 2,
    "edited": [PARAGRAPHS[3]["context"].replace("the", "THE").replace(",", " ,") + " (edited)"],
    "notice": [f"Invoice number {n} of March was paid in full by the customer." for n in range(101, 125)],
    "rain": ["The match was called off because of heavy rain.", "Because of heavy rain, the match was called off."],
    "empty": ["   ", "   "],
}


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with documents that are equal, or nearly equal."""
    folder = tmp_path_factory.mktemp("duplicates")
    rows = [{"id": f"x{n}", "text": paragraph["context"]} for n, paragraph in enumerate(PARAGRAPHS)]
    rows += [{"id": row["id"], "text": row["text"]} for row in documents(20)]
    planted = [{"id": f"{name}{n}", "text": text} for name, texts in PLANTED.items() for n, text in enumerate(texts)]
    # Every third row is a planted one, as long as there are any.
    for place, row in enumerate(planted):
        rows.insert(3 * place + 1, row)
    write_jsonl(folder / "corpus.jsonl", rows)
    return folder


@pytest.fixture(scope="module")
def made(repeated: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of a run, whose features other runs take, and its result."""
    asked = ("--corpus", repeated / "corpus.jsonl", "--threshold", 0.9)
    return repeated / "made", result_of(repeated / "made", "near_duplicates", *asked)


def clusters_by_brute_force(corpus: Path, out: Path, threshold: float, transform: str) -> set[frozenset[str]]:
    """Return the ids of each cluster of documents, by comparing all texts."""
    rows = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    texts = list(dict.fromkeys(row["text"] for row in rows))
    store = bertfeat.open_store(out / "features")
    known = np.flatnonzero(store.valid("sentence", "layer_06"))
    vectors = store.numpy("sentence", "layer_06")[known]
    scores, order = brute_force(vectors, vectors, len(known), "cosine", transform)
    near = np.eye(len(texts), dtype=bool)
    query, rank = np.nonzero(scores >= threshold)
    near[known[query], known[order[query, rank]]] = True
    _, component = connected_components(coo_array(near), directed=False)
    members: dict[int, set[str]] = {}
    for row in rows:
        members.setdefault(int(component[texts.index(row["text"])]), set()).add(row["id"])
    return {frozenset(ids) for ids in members.values() if len(ids) > 1}


class TestNearDuplicates:
    @pytest.mark.parametrize(
        ("threshold", "transform", "index"),
        [(0.9, "none", None), (0.8, "center", None), (0.6, "whiten:16", "Flat"), (0.85, "none", "SQ8")],
    )
    def test_clusters_are_those_of_brute_force(
        self, repeated: Path, made: tuple[Path, dict[str, Any]], threshold: float, transform: str, index: str | None
    ) -> None:
        corpus = repeated / "corpus.jsonl"
        out = repeated / f"{transform}-{index}".replace(":", "")
        shutil.copytree(made[0] / "features", out / "features")
        asked = ("--threshold", threshold, "--transform", transform, *(() if index is None else ("--factory", index)))
        result = result_of(out, "near_duplicates", "--corpus", corpus, *asked)
        frame = pl.read_parquet(out / "clusters.parquet")
        assert frame.equals(pl.read_ndjson(out / "clusters.jsonl", schema=frame.schema))
        expected = clusters_by_brute_force(corpus, out, threshold, transform)
        assert {frozenset(group["doc_id"]) for _, group in frame.group_by("cluster")} == expected
        assert result["n_clusters"] == len(expected)
        assert (result["n_documents"], result["n_texts"], result["n_without_tokens"]) == (73, 70, 1)
        assert result["n_superfluous"] == len(frame) - len(expected)

    def test_planted_ones_are_found_with_their_scores(self, made: tuple[Path, dict[str, Any]]) -> None:
        folder, result = made
        rows = [json.loads(line) for line in (folder / "clusters.jsonl").read_text(encoding="utf-8").splitlines()]
        cluster_of = {row["doc_id"]: row["cluster"] for row in rows}
        alike = [
            {"x0", "copy0", "copy1"},
            {"x3", "edited0"},
            {f"notice{n}" for n in range(24)},
            {"rain0", "rain1"},
            {"empty0", "empty1"},
        ]
        for ids in alike:
            assert len({cluster_of[doc_id] for doc_id in ids}) == 1
        assert [row["cluster"] for row in rows] == sorted(cluster_of[row["doc_id"]] for row in rows)
        # The largest cluster is first; it has more neighbours than one search returns.
        assert cluster_of["notice0"] == 1
        by_id = {row["doc_id"]: row for row in rows}
        texts = {row["text"]: row["doc_id"] for row in rows if row["is_representative"]}
        assert len(texts) == result["n_clusters"] == len(set(cluster_of.values()))
        # Of equal texts the first is kept; the others have a score of 1.
        first = min(("x0", "copy0", "copy1"), key=[row["doc_id"] for row in rows].index)
        assert by_id[first]["is_representative"]
        assert [by_id[doc_id]["score"] for doc_id in ("x0", "copy0", "copy1", "empty1")] == [1.0] * 4
        assert 0.9 <= min(by_id["x3"]["score"], by_id["edited0"]["score"]) < 1.0
        store = bertfeat.open_store(folder / "features")
        row_of = {text: row for row, text in enumerate(store.polars("sentence", ["text"])["text"])}
        vectors = store.numpy("sentence", "layer_06").astype(np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        for row in rows:
            centre = next(text for text, doc_id in texts.items() if cluster_of[doc_id] == row["cluster"])
            if row["text"] != centre:
                cosine = vectors[row_of[row["text"]]] @ vectors[row_of[centre]]
                assert row["score"] == pytest.approx(cosine, abs=1e-6)

    def test_a_second_run_and_another_threshold_use_what_is_there(self, repeated: Path, tmp_path: Path) -> None:
        asked = ("--corpus", repeated / "corpus.jsonl")
        result_of(tmp_path, "near_duplicates", *asked)
        made = times_of([*tmp_path.glob("*/**/*.parquet"), *tmp_path.glob("*/**/*.faiss")])
        loose = result_of(tmp_path, "near_duplicates", *asked, "--threshold", -1)
        # All documents with a vector are one cluster.
        assert (loose["n_clusters"], loose["n_in_clusters"]) == (2, 73)
        assert len(made) >= 2
        assert times_of(made) == made

    def test_the_first_documents_alone(self, tmp_path: Path) -> None:
        corpus = tmp_path / "corpus.txt"
        corpus.write_text(
            "It was called off because of heavy rain.\nIt was called off because of the heavy rain.\nthree\nthree\n",
            encoding="utf-8",
        )
        result = result_of(tmp_path / "out", "near_duplicates", "--corpus", corpus, "--limit", 3)
        assert (result["n_documents"], result["n_texts"], result["n_in_clusters"]) == (3, 3, 2)
        ran = run("near_duplicates", "--corpus", corpus, "--limit", 1, "--output", tmp_path / "one")
        assert ran.code == 0
        assert ran.out == "0 clusters with 0 of 1 documents; 0 could go\n"

    def test_mistakes(self, tmp_path: Path) -> None:
        corpus = write_jsonl(tmp_path / "corpus.jsonl", [{"id": 1, "body": "x"}])
        asked = ("--corpus", corpus, "--output", tmp_path / "out")
        assert "no column 'text'" in refusal("near_duplicates", *asked)
        assert "transform 'centre'" in refusal("near_duplicates", *asked, "--transform", "centre")
        assert "--threshold" in refusal("near_duplicates", *asked, "--threshold", 2)
        assert not (tmp_path / "out").exists()
