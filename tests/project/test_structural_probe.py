"""The structural probe: trees are those of the file, embedded trees are found whole, and a mistake is one line."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from scipy.sparse.csgraph import floyd_warshall
from scipy.stats import spearmanr

import bertfeat
from bertfeat import Store
from bertfeat.pipelines._trees import read_trees, score_trees
from tests.support.pipeline_runs import refusal, result_of
from tests.support.places import TESTS

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

DEV, TEST = (TESTS / "data" / "ud_ewt" / f"{name}.conllu" for name in ("dev", "test"))
DIM = 100
# Words with the numbers of their heads and their parts of speech.
Sentence = list[tuple[str, int, str]]


def read(path: Path) -> list[Sentence]:
    blocks = path.read_text("utf-8").strip().split("\n\n")
    tables = [[line.split("\t") for line in block.splitlines()] for block in blocks]
    return [[(row[1], int(row[6]), row[3]) for row in table if row[0].isdecimal()] for table in tables]


def path_from_root(sentence: Sentence, word: int) -> list[int]:
    """Return the words from below the root to a word, from 0."""
    head = sentence[word][1]
    return [*path_from_root(sentence, head - 1), word] if head else []


def imported(folder: Path, corpus: Path, vectors: np.ndarray) -> Store:
    np.save(folder / "vectors.npy", vectors)
    return bertfeat.import_vectors(folder / "vectors.npy", folder / corpus.stem, level="word", ids=corpus)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Store]:
    """Stores whose vectors hold the trees: each edge has a dimension of its own, and a word those from the root."""
    folder, random, found = tmp_path_factory.mktemp("embedded"), np.random.default_rng(0), {}
    for path in (DEV, TEST):
        vectors = []
        for sentence in read(path):
            dimensions = random.permutation(DIM)
            for word in range(len(sentence)):
                vectors.append(np.zeros(DIM, np.float32))
                vectors[-1][dimensions[path_from_root(sentence, word)]] = 1
        found[path] = imported(folder, path, np.stack(vectors))
    return found


@pytest.mark.parametrize("path", [DEV, TEST])
def test_distances_and_depths_are_those_of_the_file(stores: dict[Path, Store], path: Path) -> None:
    for tree, sentence in zip(read_trees(stores[path]), read(path), strict=True):
        graph = np.zeros((len(sentence), len(sentence)))
        for child, (_, head, _) in enumerate(sentence):
            graph[child, head - 1] = head > 0
        np.testing.assert_array_equal(tree.distances, floyd_warshall(graph, directed=False, unweighted=True))
        depths = [len(path_from_root(sentence, word)) for word in range(len(sentence))]
        np.testing.assert_array_equal(tree.distances[tree.root], depths)
        assert tree.words == [word for word, _, _ in sentence]
        assert tree.is_scored.tolist() == [tag != "PUNCT" for _, _, tag in sentence]


def test_scores_are_those_of_the_paper(stores: dict[Path, Store]) -> None:
    trees, random = read_trees(stores[TEST]), np.random.default_rng(0)
    places = [random.normal(size=len(tree.words)) for tree in trees]
    distances = [np.abs(np.subtract.outer(place, place)) for place in places]
    correlations, n_found = defaultdict(list), 0
    for tree, place, predicted in zip(trees, places, distances, strict=True):
        if 5 <= len(tree.words) <= 50:
            pairs = zip(predicted, tree.distances, strict=True)
            correlations[len(tree.words)] += [spearmanr(*pair).statistic for pair in pairs]
        # The spanning tree of points on a line joins neighbors.
        order = [word for word in np.argsort(place) if tree.is_scored[word]]
        n_found += sum(tree.distances[pair] == 1 for pair in pairwise(order))
    scores = score_trees(trees, distances, [tree.distances[tree.root] for tree in trees])
    assert scores["dspr"] == pytest.approx(np.mean([np.mean(values) for values in correlations.values()]))
    assert scores["uuas"] == pytest.approx(n_found / sum(len(tree.edges) for tree in trees))
    assert (scores["nspr"], scores["root_accuracy"]) == (pytest.approx(1), 1)


def test_trees_that_vectors_hold_are_found_and_drawn(stores: dict[Path, Store], tmp_path: Path) -> None:
    asked = ("--train", stores[DEV].path, "--test", stores[TEST].path, "--trees", 2)
    how = ("--learning-rate", 0.02, "--batch-size", 5, "--epochs", 15)
    order, row = result_of(tmp_path, "structural_probe", *asked, *how)["rows"]
    assert (row["uuas"], row["root_accuracy"]) == (1, 1)
    # Any error, however small, breaks the ties of whole numbers: true distances with noise do not reach 1.
    trees, random = read_trees(stores[TEST]), np.random.default_rng(0)
    noisy = [tree.distances + 1e-4 * random.normal(size=tree.distances.shape) for tree in trees]
    highest = score_trees(trees, noisy, [tree.distances[tree.root] for tree in trees])["dspr"]
    assert row["dspr"] > highest - 0.02 > order["dspr"] + 0.3
    assert pl.read_csv(tmp_path / "scores.csv")["uuas"].to_list() == [order["uuas"], 1]
    for number, tree in enumerate([tree for tree in trees if 3 <= len(tree.edges) <= 25][:2], 1):
        svg = ElementTree.parse(tmp_path / "trees" / f"{number:02}.svg").getroot()
        caption, *words = [node.text for node in svg.findall("{*}text")]
        assert (words, len(svg.findall("{*}path"))) == (tree.words, 2 * len(tree.edges))
        assert caption == f"{tree.doc_id}, embedding: {len(tree.edges)} of {len(tree.edges)} edges"


def test_a_mistake_is_one_line(stores: dict[Path, Store], tmp_path: Path) -> None:
    for name, heads, message in [
        ("cycle", "0 3 2", "document 0: the heads of words form a cycle: from word 2 no way leads to the root"),
        ("rootless", "2 3 2", "document 0: 0 words have the head 0; a tree has one root"),
        ("outside", "0 4 1", "the head of word 2 is '4'; heads are numbers, 0 (the root) to 3"),
    ]:
        lines = [f"{n}\tw\t_\tX\t_\t_\t{head}\t_\t_\t_" for n, head in enumerate(heads.split(), 1)]
        (tmp_path / f"{name}.conllu").write_text("\n".join(lines) + "\n\n")
        store = imported(tmp_path, tmp_path / f"{name}.conllu", np.zeros((3, DIM), np.float32))
        assert message in refusal("structural_probe", "--train", store.path, "--output", tmp_path / "out")
    (tmp_path / "plain.csv").write_text("doc_id,word\na,x\na,y\n")
    plain = imported(tmp_path, tmp_path / "plain.csv", np.zeros((2, 3), np.float32)).path
    for asked, message in [
        (
            ("--train", plain),
            "no column 'head'; columns are doc_id, word_index, word, char_start, char_end; extract a ",
        ),
        (("--train", stores[DEV].path, "--test", plain), "hold different features"),
    ]:
        assert message in refusal("structural_probe", *asked, "--output", tmp_path / "out")
