"""Measures of layers: those of references of rows by rows, of known distributions, and of two stores; and their files.

The references follow the definitions of the papers, pair by pair, in float64.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.stats

import bertfeat
from bertfeat.errors import UserError
from bertfeat.layers import measures as layers_measures
from bertfeat.layers import result as layers_result
from bertfeat.layers.plots import layer_page, plot_panels
from bertfeat.layers.result import LayerComparison
from bertfeat.layers.sums import effective_rank, intrinsic_dimension, rsa, shifts
from bertfeat.store.reader import Store
from tests.support.command_line import good, refused
from tests.support.pipeline_runs import run as run_recipe
from tests.support.places import ROOT
from tests.support.vector_files import write_npy

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("no_fsync")]

N_ROWS = 300


def imported(
    folder: Path, name: str, vectors: Any, ids: Mapping[str, Sequence[object]] | None = None, **settings: Any
) -> Store:
    """Import vectors (rows, values) or (rows, layers, values); `ids` are the columns of words, else rows are texts."""
    if ids is not None:
        settings["ids"] = folder / f"{name}.jsonl"
        pl.DataFrame(ids).write_ndjson(settings["ids"])
    source = write_npy(folder / f"{name}.npy", np.asarray(vectors, np.float32))
    level = "word" if ids is not None and "word_index" in ids else "sentence"
    return bertfeat.import_vectors(source, folder / name, level=level, **{"store_dtype": "float32", **settings})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """300 words in three layers of 24 values in float16: a common direction, two large values, and equal rows.

    Documents have different lengths, the first one a single word.
    """
    rng = np.random.default_rng(5)
    documents = np.concatenate([[0], np.sort(rng.integers(1, 40, N_ROWS - 1))])
    places = np.arange(N_ROWS) - np.searchsorted(documents, documents)
    words = [f"<script>w{k}" for k in (60 * rng.random(N_ROWS) ** 2).astype(int)]
    ids = {"doc_id": documents.tolist(), "word_index": places.tolist(), "word": words}
    rng = np.random.default_rng(3)
    base = rng.normal(size=(N_ROWS, 24)) * np.linspace(0.3, 2, 24) + 0.5
    base[:, 7] += 9
    layers = np.stack([base, base + 2 * rng.normal(size=base.shape), rng.normal(size=base.shape) ** 3], axis=1)
    layers[40:60] = layers[40]
    layers[70, 2] = 0
    return imported(tmp_path_factory.mktemp("layers"), "store", layers, ids, store_dtype="float16")


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosines of all pairs of rows, n x n; 0 with a zero vector."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(lengths > 0, lengths, 1)
    return units @ units.T


def of_pairs(matrix: np.ndarray) -> float:
    return float(matrix[~np.eye(len(matrix), dtype=bool)].mean())


def with_their_mean(vectors: np.ndarray) -> float:
    """Return the intra-sentence similarity of Ethayarajh 2019."""
    mean = vectors.mean(axis=0)
    lengths = np.linalg.norm(vectors, axis=1)
    return float(np.mean(vectors @ mean / np.where(lengths > 0, lengths, 1) / np.linalg.norm(mean)))


def gram_cka(one: np.ndarray, two: np.ndarray) -> float:
    """Return linear CKA from centred Gram matrices of rows by rows (Kornblith et al. 2019, equations 1 and 3)."""
    centre = np.eye(len(one)) - 1 / len(one)
    first, second = ((centre @ x) @ (centre @ x).T for x in (one, two))
    return float((first * second).sum() / np.sqrt((first * first).sum() * (second * second).sum()))


def unbiased_hsic(one: np.ndarray, two: np.ndarray) -> float:
    """Return equation 5 of Song et al. 2012, with Gram matrices without their diagonals."""
    n, every = len(one), np.ones(len(one))
    first, second = ((x @ x.T) * (1 - np.eye(n)) for x in (one, two))
    # The sum is the trace of the product.
    product = (first * second).sum() - 2 / (n - 2) * every @ first @ second @ every
    product += (every @ first @ every) * (every @ second @ every) / ((n - 1) * (n - 2))
    return float(product / (n * (n - 3)))


def unbiased_cka(one: np.ndarray, two: np.ndarray) -> float:
    return unbiased_hsic(one, two) / np.sqrt(unbiased_hsic(one, one) * unbiased_hsic(two, two))


def near(vectors: np.ndarray, k: int) -> np.ndarray:
    found = cosines(vectors)
    np.fill_diagonal(found, -2)
    return np.argsort(-found, axis=1, kind="stable")[:, :k]


def two_neighbours(vectors: np.ndarray) -> float:
    """Return the slope of the line through the origin of Facco et al. 2017, without the last tenth."""
    once = np.unique(vectors, axis=0)
    distances = np.array([np.sort(np.linalg.norm(once - row, axis=1))[1:3] for row in once])
    x = np.log(np.sort(distances[:, 1] / distances[:, 0]))
    y = np.array([-np.log(1 - i / len(x)) for i in range(1, int(len(x) * 0.9) + 1)])
    return float(np.linalg.lstsq(x[: len(y), None], y, rcond=None)[0][0])


def reference(vectors: np.ndarray, words: pl.Series, documents: pl.Series, min_count: int) -> dict[str, float]:
    of_all, lengths = cosines(vectors), np.linalg.norm(vectors, axis=1)
    types = [(words == word).to_numpy() for word, n in words.value_counts().rows() if n >= min_count]
    texts = [(documents == one).to_numpy() for one in documents.unique()]
    centred, squares = vectors - vectors.mean(axis=0), np.square(vectors)
    singular = np.linalg.svd(np.cov(vectors.T), compute_uv=False)
    shares = singular[singular > 1e-12 * singular.sum()] / singular.sum()
    units = vectors / np.where(lengths > 0, lengths, 1)[:, None]
    parts = [of_pairs(np.outer(values, values)) for values in units.T]
    return {
        "anisotropy": of_pairs(of_all),
        "anisotropy_centered": of_pairs(cosines(centred)),
        "top3_anisotropy": sum(sorted(parts)[-3:]),
        "self_similarity": float(np.mean([of_pairs(of_all[np.ix_(one, one)]) for one in types])),
        "within_sentence": float(np.mean([with_their_mean(vectors[one]) for one in texts if one.sum() > 1])),
        "norm_mean": lengths.mean(),
        "norm_sd": lengths.std(),
        "top3_share": np.sort(squares.sum(axis=0))[-3:].sum() / squares.sum(),
        "effective_rank": np.exp(-(shares * np.log(shares)).sum()),
        "intrinsic_dimension": two_neighbours(vectors),
    }


def check_against_references(store: Store) -> LayerComparison:
    """Compare all measures of a store, whose rows all are in the sample, with references of rows by rows."""
    frame = store.polars("word", ["doc_id", "word"])
    found = store.layers(min_count=3)
    layers = [store.numpy("word", row.feature).astype(np.float64) for row in found.rows]
    for row, vectors in zip(found.rows, layers, strict=True):
        for name, value in reference(vectors, frame["word"], frame["doc_id"], 3).items():
            assert getattr(row, name) == pytest.approx(value, rel=1e-4, abs=1e-5), (row.feature, name)
        assert row.top3_dimensions == tuple(np.argsort(-np.square(vectors).sum(axis=0))[:3])
    np.testing.assert_allclose(found.cka, [[gram_cka(x, y) for y in layers] for x in layers], rtol=1e-4)
    unbiased = [[unbiased_cka(x, y) for y in layers] for x in layers]
    np.testing.assert_allclose(found.cka_debiased, unbiased, rtol=1e-3, atol=1e-4)
    lists = [near(vectors, 10) for vectors in layers]
    common = [[np.mean([len({*a} & {*b}) / 10 for a, b in zip(x, y, strict=True)]) for y in lists] for x in lists]
    # Neighbours of equal cosine may be ordered otherwise.
    np.testing.assert_allclose(found.neighbor_overlap, common, atol=0.02)
    return found


@pytest.mark.promise("layers")
def test_measures_equal_references_of_rows_by_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = check_against_references(store)
    # Two of the six pairs of layers at a time, whose sums are 25 x 25 float64 each.
    monkeypatch.setattr(layers_measures, "free_memory", lambda: 24_000)
    # The same in many blocks, which divide documents, and passes.
    again = layers_measures.compare_layers(store, min_count=3, block_bytes=44_000)
    np.testing.assert_allclose(again.cka, whole.cka, rtol=1e-5)
    np.testing.assert_allclose(again.cka_debiased, whole.cka_debiased, rtol=1e-4, atol=1e-5)
    for one, two in zip(again.rows, whole.rows, strict=True):
        for name in ("within_sentence", "self_similarity", "anisotropy", "effective_rank", "norm_sd"):
            assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-4), name


@pytest.mark.promise("layers")
def test_rotation_scale_and_noise(tmp_path: Path) -> None:
    """A rotated and scaled space is the same space; independent noise has nothing to do with it."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(800, 12)) * np.linspace(0.5, 2, 12) + 1
    turn = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    one = imported(tmp_path, "one", vectors)
    turned = one.layers(imported(tmp_path, "turned", 3 * vectors @ turn), level="sentence")
    first, second = turned.rows
    assert (first.cka_other, turned.cka_debiased[0][1]) == pytest.approx((1, 1), abs=1e-6)
    assert first.rsa_other == pytest.approx(1, abs=1e-5)
    assert turned.neighbor_overlap[0][1] == pytest.approx(1, abs=2e-3)
    assert second.norm_mean == pytest.approx(3 * first.norm_mean, rel=1e-5)
    # 300 rows of 200 dimensions: the published value is far from 0, and the debiased one is not.
    noise = imported(tmp_path, "noise", rng.normal(size=(300, 200)))
    other = imported(tmp_path, "other", rng.normal(size=(300, 150)) + 4)
    found = noise.layers(other, level="sentence", sample=100)
    assert found.rows[0].cka_other == pytest.approx(0.36, abs=0.06)
    assert abs(found.cka_debiased[0][1] or 1) < 0.03
    assert abs(found.rows[0].rsa_other or 1) < 0.06
    words = rng.normal(size=(60, 12))
    moved = 2 * words @ turn
    assert np.abs(shifts(words, moved)).max() < 1e-9
    moved[7] = rng.normal(size=12)
    assert np.argmax(shifts(words, moved)) == 7


@pytest.mark.promise("layers")
def test_known_dimensions() -> None:
    rng = np.random.default_rng(2)
    assert effective_rank(np.diag([4.0, 4, 4, 4, 4, 0, 0])) == pytest.approx(5)
    assert effective_rank(np.cov(rng.normal(size=(20_000, 8)).T)) == pytest.approx(8, abs=0.05)
    for dim, room in ((1, 0.1), (2, 0.2), (5, 0.7)):
        flat = np.zeros((1000, 20), np.float32)
        flat[:, :dim] = rng.uniform(size=(1000, dim))
        turned = flat @ np.linalg.qr(rng.normal(size=(20, 20)))[0].astype(np.float32)
        assert intrinsic_dimension(turned) == pytest.approx(dim, abs=room)
    one, two = (rng.integers(-2, 3, size=(40, dim)).astype(np.float32) + 0.1 for dim in (3, 4))
    upper = np.triu_indices(40, 1)
    # Equal cosines share their rank.
    expected = scipy.stats.spearmanr(*(cosines(x.astype(np.float64))[upper].round(12) for x in (one, two))).statistic
    assert rsa(one, two) == pytest.approx(expected, abs=1e-6)


@pytest.mark.promise("layers")
def test_two_stores_are_matched_word_by_word(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of another store are in another order, some are missing, some words are unknown or others."""
    ids = store.polars("word", ["doc_id", "word_index", "word"])
    vectors = store.numpy("word", 2, np.float32) @ np.random.default_rng(8).normal(size=(24, 10))
    documents, order = ids["doc_id"].to_numpy(), []
    for document in reversed(range(5, 40)):
        order += np.flatnonzero(documents == document).tolist()
    there = ids[order].with_columns(word=pl.Series([None, "unlike", *ids["word"][order][2:]], dtype=pl.String))
    both = np.stack([vectors[order], vectors[order]], axis=1)
    other = imported(tmp_path, "other", both, there.to_dict(as_series=False))
    # One plot of each kind is drawn; all of them would take most of the time.
    monkeypatch.setattr(layers_result, "plot_panels", lambda panels, path: plot_panels(panels[:1], path))
    monkeypatch.setattr(
        layers_result, "layer_page", lambda content, panels, table: layer_page(content, {"cka": panels["cka"]}, table)
    )
    done = good("layers", store.path, other.path, "-o", tmp_path / "out", "--min-count", "2", "--json").json
    kept = np.sort([row for n, row in enumerate(order) if n != 1])
    assert done["n_rows"] == len(kept) == len(order) - 1
    one = store.numpy("word", 1).astype(np.float64)[kept]
    row = done["rows"][1]
    assert row["cka_other"] == pytest.approx(gram_cka(one, vectors[kept].astype(np.float64)), rel=1e-4)
    assert row["cka_other"] == done["cka"][1][4] == done["cka"][4][1] < 0.5 < done["cka"][2][3]
    moved = [word["shift"] for word in done["moved"]["layer_01"]]
    assert moved == sorted(moved, reverse=True)
    assert all((ids["word"].gather(kept) == word["word"]).sum() == word["n_rows"] for word in done["moved"]["layer_01"])
    # The files say the same.
    del done["output"], done["warnings"]
    assert json.loads((tmp_path / "out" / "layers.json").read_text()) == done
    assert pl.read_csv(tmp_path / "out" / "layers.csv")["norm_mean"].to_list() == [r["norm_mean"] for r in done["rows"]]
    assert (tmp_path / "out" / "layers.png").read_bytes().startswith(b"\x89PNG")
    # Markup of the corpus is text, and the page loads nothing.
    text = (tmp_path / "out" / "layers.html").read_text("utf-8")
    assert "&lt;script&gt;w" in text
    assert re.findall(r'(?:href|src)="((?!data:image)[^"]*)"', text) == ["data:,"]
    assert not re.search(r"<script|url\(|@import|https?:", text)


def test_mistakes_are_refused(store: Store, tmp_path: Path) -> None:
    ids, out = {"doc_id": ["x"] * 3, "word_index": [0, 1, 2], "word": ["a", "b", "c"]}, tmp_path / "out"
    alien = imported(tmp_path, "alien", np.ones((3, 2)), ids)
    for words, said in (
        ((store.path, "--level", "token"), "no level 'token'; levels are word"),
        ((alien.path,), "3 rows at level word to compare; layers need 4 or more"),
        ((store.path, alien.path), "no common rows at level word"),
        ((store.path, "--sample", "3"), "--sample"),
    ):
        assert said in refused("layers", *words, "-o", out), words
    assert "not part of a comparison" in refused("layers", store.path, "-o", store.path, "--overwrite")


@pytest.mark.promise("layers")
def test_stores_of_a_model(tiny_folder: Path, tmp_path: Path) -> None:
    """Several shards, an appended store, words without vectors, a text without words, special tokens."""
    texts = ["Angela sings .", "", "the dog runs and the cat sits", *(f"the cat runs {n} and sings" for n in range(9))]
    for name, some in (("one.txt", texts[:9]), ("two.txt", texts[9:])):
        (tmp_path / name).write_text("\n".join(some) + "\n")
    settings: Any = {"model": str(tiny_folder), "levels": "token,word,sentence", "layers": "0,3", "shard_bytes": 20_000}
    settings |= {"max_length": 8, "on_overlong": "truncate"}
    grown = bertfeat.extract(tmp_path / "one.txt", tmp_path / "grown", **settings)
    grown = bertfeat.append(grown, tmp_path / "two.txt")
    assert len(grown.manifest.shards) > 2
    words = grown.layers(level="word")
    has_vector = grown.valid("word", "layer_00") & grown.valid("word", "layer_03")
    assert words.n_rows == has_vector.sum() < len(has_vector)
    tokens = grown.layers(level="token")
    kept = ~grown.polars("token", ["is_special"])["is_special"].to_numpy()
    assert tokens.n_rows == kept.sum() < len(kept)
    texts_of = grown.layers(level="sentence")
    assert texts_of.n_rows == grown.valid("sentence", "layer_03").sum() == len(texts) - 1
    metadata = {**grown.metadata, "tokenizer_sha256": "another"}
    other = bertfeat.Store(grown.path, dataclasses.replace(grown.manifest, metadata=metadata))
    with pytest.raises(UserError, match="tokens of two tokenizers cannot be matched"):
        grown.layers(other, level="token")


@pytest.mark.promise("layers")
@pytest.mark.long
def test_real_models_equal_references(tmp_path: Path) -> None:
    """The packaged model on a real corpus: trained, with random weights, and in binary columns."""
    corpus = ROOT / "examples" / "data" / "wnut17_dev.conll"
    settings: Any = {"levels": "word", "limit": 25}
    trained = bertfeat.extract(corpus, tmp_path / "trained", layers="all", shard_bytes=2_000_000, **settings)
    folder = tmp_path / "model"
    assert run_recipe("random_weights", "minilm", "--seed", 1, "-o", folder).code == 0
    untrained = bertfeat.extract(corpus, tmp_path / "random", layers="all", model=str(folder), **settings)
    binary = bertfeat.extract(corpus, tmp_path / "b", layers="all", vector_encoding="binary", **settings)
    for store in (trained, untrained, binary):
        check_against_references(store)
    against = trained.layers(untrained)
    assert all(0 < (row.cka_other or 0) < 0.95 for row in against.rows[:7])
    against.write(tmp_path / "out")
