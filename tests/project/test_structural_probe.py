"""The structural probe: trees are those of the file, embedded trees are found whole, and a mistake is one line."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.sparse.csgraph import floyd_warshall
from scipy.stats import spearmanr

from bertfeat import Store, extract, import_vectors
from bertfeat.pipelines._trees import read_trees, score_trees
from tests.support.pipeline_runs import refusal, result_of
from tests.support.places import TESTS

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

DEV, TEST = (TESTS / "data" / "ud_ewt" / f"{name}.conllu" for name in ("dev", "test"))
FAST = ("--batch-size", 5, "--epochs", 15)


def heads_in(path: Path) -> list[list[int]]:
    blocks = path.read_text("utf-8").strip().split("\n\n")
    tables = [[line.split("\t") for line in block.splitlines()] for block in blocks]
    return [[int(row[6]) for row in table if row[0].isdecimal()] for table in tables]


def path_to(word: int, heads: list[int]) -> list[int]:
    return [*path_to(heads[word] - 1, heads), word] if heads[word] else []


def imported(folder: Path, ids: Path, vectors: np.ndarray) -> Store:
    np.save(folder / "vectors.npy", vectors)
    return import_vectors(folder / "vectors.npy", folder / ids.stem, level="word", ids=ids)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Store]:
    """Stores whose vectors hold the trees: each edge has a dimension of its own, and a word those from the root."""
    folder, random, found = tmp_path_factory.mktemp("embedded"), np.random.default_rng(0), {}
    for path in (DEV, TEST):
        vectors = []
        for heads in heads_in(path):
            axes = random.permutation(np.eye(100, dtype=np.float32))
            vectors += [axes[path_to(word, heads)].sum(axis=0) for word in range(len(heads))]
        found[path] = imported(folder, path, np.stack(vectors))
    return found


def test_distances_and_depths_are_those_of_the_file(stores: dict[Path, Store]) -> None:
    for tree, heads in zip(read_trees(stores[TEST]), heads_in(TEST), strict=True):
        graph = np.zeros((len(heads), len(heads)))
        graph[np.arange(len(heads)), np.array(heads) - 1] = np.array(heads) > 0
        np.testing.assert_array_equal(tree.distances, floyd_warshall(graph, directed=False, unweighted=True))
        np.testing.assert_array_equal(tree.distances[tree.root], [len(path_to(n, heads)) for n in range(len(heads))])


def test_scores_are_those_of_the_paper(stores: dict[Path, Store]) -> None:
    trees, correlations, n_found = read_trees(stores[TEST]), defaultdict(list), 0
    chains = [np.abs(np.subtract.outer(*[np.arange(len(tree.words))] * 2)) for tree in trees]
    for tree, chain in zip(trees, chains, strict=True):
        if 5 <= len(chain) <= 50:
            correlations[len(chain)] += [spearmanr(*pair).statistic for pair in zip(chain, tree.distances, strict=True)]
        n_found += sum(tree.distances[pair] == 1 for pair in pairwise(np.flatnonzero(tree.is_scored)))
    scores = score_trees(trees, chains, [tree.distances[tree.root] for tree in trees])
    assert scores["dspr"] == pytest.approx(np.mean([np.mean(values) for values in correlations.values()]))
    assert scores["uuas"] == pytest.approx(n_found / sum(len(tree.edges) for tree in trees))
    assert (scores["nspr"], scores["root_accuracy"]) == (pytest.approx(1), 1)


def test_trees_that_vectors_hold_are_found_and_drawn(stores: dict[Path, Store], tmp_path: Path) -> None:
    asked = ("--train", stores[DEV].path, "--test", stores[TEST].path, "--trees", 2, "--learning-rate", 0.02)
    _, row = result_of(tmp_path, "structural_probe", *asked, *FAST)["rows"]
    assert (row["uuas"], row["root_accuracy"]) == (1, 1)
    # Any error breaks the ties of whole numbers: the true distances with noise have 0.960.
    assert row["dspr"] > 0.94
    for number, tree in enumerate([tree for tree in read_trees(stores[TEST]) if 3 <= len(tree.edges) <= 25][:2], 1):
        svg = ElementTree.parse(tmp_path / "trees" / f"{number:02}.svg").getroot()
        words = [node.text for node in svg.findall("{*}text")][1:]
        assert (words, len(svg.findall("{*}path"))) == (tree.words, 2 * len(tree.edges))


def test_a_middle_layer_knows_more_than_the_embeddings_and_the_order(tmp_path: Path) -> None:
    options = {"levels": "word", "word_pooling": "mean", "layers": "0,3", "combine": "none"}
    train, test = (extract(path, tmp_path / path.stem, **options).path for path in (DEV, TEST))
    asked = ("--train", train, "--test", test, "--rank", 64, "--learning-rate", 0.005)
    order, embeddings, middle = result_of(tmp_path / "out", "structural_probe", *asked, *FAST)["rows"]
    assert middle["dspr"] > max(embeddings["dspr"], order["dspr"]) + 0.05
    assert middle["uuas"] > embeddings["uuas"] + 0.03


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ("0 3 2", "document 0: the heads of words form a cycle: from word 2 no way leads to the root"),
        ("2 3 2", "document 0: 0 words have the head 0; a tree has one root"),
        ("0 4 1", "document 0: the head of word 2 is '4'; heads are numbers, 0 (the root) to 3"),
        ("", "no column 'head'; columns are doc_id, word_index, word, char_start, char_end; extract a .conllu"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, heads: str, message: str) -> None:
    lines = [f"{n}\tw\t_\tX\t_\t_\t{head}\t_\t_\t_\n" for n, head in enumerate(heads.split(), 1)]
    path = tmp_path / ("a.conllu" if heads else "a.csv")
    path.write_text("".join(lines) or "doc_id,word\na,x\na,y\na,z\n")
    store = imported(tmp_path, path, np.zeros((3, 2), np.float32))
    assert message in refusal("structural_probe", "--train", store.path, "--output", tmp_path / "out")
