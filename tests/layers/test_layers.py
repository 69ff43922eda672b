"""Measures of layers: those of references of rows by rows, of known distributions, and of two stores; and their files.

The references follow the definitions of the papers, pair by pair, in float64.
"""

from __future__ import annotations

import base64
import csv
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
from bertfeat.errors import BertfeatWarning, UserError
from bertfeat.layers import measures as layers_measures
from bertfeat.layers import plots as layers_plots
from bertfeat.layers import result as layers_result
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


def words_of(n_rows: int, n_types: int, n_documents: int) -> dict[str, list[object]]:
    """Return the columns of rows: documents of different lengths, the first one of a single word."""
    rng = np.random.default_rng(5)
    documents = np.concatenate([[0], np.sort(rng.integers(1, n_documents, n_rows - 1))])
    places = np.arange(n_rows) - np.searchsorted(documents, documents)
    words = [f"w{k}" for k in (n_types * rng.random(n_rows) ** 2).astype(int)]
    return {"doc_id": documents.tolist(), "word_index": places.tolist(), "word": words}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """300 words in three layers of 24 values in float16: a common direction, two large values, and equal rows."""
    rng = np.random.default_rng(3)
    base = rng.normal(size=(N_ROWS, 24)) * np.linspace(0.3, 2, 24) + 0.5
    base[:, 7] += 9
    layers = np.stack([base, base + 2 * rng.normal(size=base.shape), rng.normal(size=base.shape) ** 3], axis=1)
    layers[40:60] = layers[40]
    layers[70, 2] = 0
    ids = words_of(N_ROWS, 60, 40)
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


def test_measures_equal_references_of_rows_by_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = check_against_references(store)
    # The same in many blocks, which divide documents, and passes.
    monkeypatch.setattr(layers_measures, "_BLOCK_BYTES", 44_000)
    # Two of the six pairs of layers at a time, whose sums are 25 x 25 float64 each.
    monkeypatch.setattr(layers_measures, "free_memory", lambda: 24_000)
    stages: list[str] = []
    reports = bertfeat.Progress()
    monkeypatch.setattr(reports, "stage", lambda text, *_: stages.append(text))
    again = store.layers(min_count=3, progress=reports)
    assert {"reading vectors, pass 1 of 3", "reading vectors, pass 3 of 3"} <= set(stages)
    np.testing.assert_allclose(again.cka, whole.cka, rtol=1e-5)
    np.testing.assert_allclose(again.cka_debiased, whole.cka_debiased, rtol=1e-4, atol=1e-5)
    for one, two in zip(again.rows, whole.rows, strict=True):
        for name in ("within_sentence", "self_similarity", "anisotropy", "effective_rank", "norm_sd"):
            assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-4), name
    # More types than are measured: a seed chooses them.
    monkeypatch.setattr(layers_measures, "_MAX_TYPES", 4)
    some = store.layers(min_count=2, seed=3)
    assert some.n_types == 4
    assert some.rows == store.layers(min_count=2, seed=3).rows
    few = store.layers(min_count=10_000)
    assert (few.n_types, few.rows[0].self_similarity) == (0, None)


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
    for name in ("anisotropy", "anisotropy_centered", "effective_rank", "intrinsic_dimension"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), rel=1e-4, abs=1e-6)
    assert second.norm_mean == pytest.approx(3 * first.norm_mean, rel=1e-5)
    # A row is a whole text: no words, and no other rows of its document.
    assert (first.self_similarity, first.within_sentence, turned.moved["embedding"]) == (None, None, ())
    assert "self_similarity" not in turned.table()
    # 300 rows of 200 dimensions: the published value is far from 0, and the debiased one is not.
    noise = imported(tmp_path, "noise", rng.normal(size=(300, 200)))
    other = imported(tmp_path, "other", rng.normal(size=(300, 150)) + 4)
    with pytest.warns(BertfeatWarning, match="`min_count` has no effect at level sentence"):
        found = noise.layers(other, level="sentence", sample=100, min_count=3)
    assert found.rows[0].cka_other == pytest.approx(0.36, abs=0.06)
    assert abs(found.cka_debiased[0][1] or 1) < 0.03
    assert abs(found.rows[0].rsa_other or 1) < 0.06
    assert found.neighbor_overlap[0][1] == pytest.approx(10 / 99, abs=0.05)
    words = rng.normal(size=(60, 12))
    assert np.abs(shifts(words, 2 * words @ turn)).max() < 1e-9
    moved = words.copy()
    moved[7] = rng.normal(size=12)
    assert np.argmax(shifts(words, moved)) == 7


def test_known_dimensions() -> None:
    rng = np.random.default_rng(2)
    assert effective_rank(np.diag([4.0, 4, 4, 4, 4, 0, 0])) == pytest.approx(5)
    assert effective_rank(np.cov(rng.normal(size=(20_000, 8)).T)) == pytest.approx(8, abs=0.05)
    assert np.isnan(effective_rank(np.zeros((3, 3))))
    for dim, room in ((1, 0.1), (2, 0.2), (5, 0.7)):
        flat = np.zeros((1000, 20), np.float32)
        flat[:, :dim] = rng.uniform(size=(1000, dim))
        turned = flat @ np.linalg.qr(rng.normal(size=(20, 20)))[0].astype(np.float32)
        assert intrinsic_dimension(turned) == pytest.approx(dim, abs=room)
        # Equal rows count once, and so do 0 and -0.
        twice = np.concatenate([flat, np.where(flat == 0, -flat, flat)])
        assert intrinsic_dimension(twice) == pytest.approx(intrinsic_dimension(flat))
    assert np.isnan(intrinsic_dimension(np.ones((100, 4), np.float32)))
    one, two = (rng.integers(-2, 3, size=(40, dim)).astype(np.float32) + 0.1 for dim in (3, 4))
    upper = np.triu_indices(40, 1)
    # Equal cosines share their rank.
    expected = scipy.stats.spearmanr(*(cosines(x.astype(np.float64))[upper].round(12) for x in (one, two))).statistic
    assert rsa(one, two) == pytest.approx(expected, abs=1e-6)
    # A large common mean, as some models have: cosines that differ in the eighth digit only.
    base = rng.normal(size=(200, 3))
    shifted = (base + 3000).astype(np.float32)
    upper = np.triu_indices(200, 1)
    expected = scipy.stats.spearmanr(*(cosines(rows.astype(np.float64))[upper] for rows in (base, shifted))).statistic
    assert rsa(base.astype(np.float32), shifted) == pytest.approx(expected, abs=0.01)
    # On a ray, all cosines are 1 but for rounding: no order, and no word that moved.
    ray = np.outer(rng.uniform(1, 2, 200), rng.normal(size=7))
    assert np.isnan(rsa(base.astype(np.float32), ray.astype(np.float32)))
    assert np.isnan(shifts(base, ray)).all()


def check_page(path: Path) -> str:
    """Return a page of 12 lines and 3 matrices, which loads nothing."""
    text = path.read_text("utf-8")
    drawings = re.findall(r'<img alt="[^"]+" src="data:image/svg\+xml;base64,([^"]+)">', text)
    assert len(drawings) == 15
    assert all(b"<svg" in base64.b64decode(drawing) for drawing in drawings)
    assert re.findall(r'(?:href|src)="((?!data:image)[^"]*)"', text) == ["data:,"]
    assert not re.search(r"<script|url\(|@import|https?:", text)
    return text


@pytest.fixture
def quick_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw one line for the page, and one line in the PNG; the long test draws all."""
    plot_panels = layers_plots.plot_panels
    line = layers_plots.Panel("a line", ("0", "1"), {"store": ((0, 0.5), (1, 0.25))})
    drawn = layers_plots._svg(line)
    monkeypatch.setattr(layers_plots, "_svg", lambda panel: drawn)
    monkeypatch.setattr(layers_result, "plot_panels", lambda panels, path: plot_panels(panels[:1], path))


@pytest.mark.usefixtures("quick_plots")
def test_two_stores_are_matched_word_by_word(store: Store, tmp_path: Path) -> None:
    """Rows of another store are in another order, some are missing, some words are unknown or others."""
    ids = store.polars("word", ["doc_id", "word_index", "word"])
    vectors = store.numpy("word", 2, np.float32) @ np.random.default_rng(8).normal(size=(24, 10))
    documents, order = ids["doc_id"].to_numpy(), []
    for document in reversed(range(5, 40)):
        order += np.flatnonzero(documents == document).tolist()
    there = ids[order].with_columns(word=pl.Series([None, "unlike", *ids["word"][order][2:]], dtype=pl.String))
    both = np.stack([vectors[order], vectors[order]], axis=1)
    other = imported(tmp_path, "other", both, there.to_dict(as_series=False))
    done = good("layers", store.path, other.path, "-o", tmp_path / "out", "--min-count", "2", "--json").json
    kept = np.sort([row for n, row in enumerate(order) if n != 1])
    assert done["n_rows"] == len(kept) == len(order) - 1
    assert done["n_documents"] == len(set(documents[kept]))
    sides = [(row["side"], row["feature"]) for row in done["rows"]]
    assert sides == [*(("store", f"layer_{i:02d}") for i in range(3)), ("other", "layer_00"), ("other", "layer_01")]
    one = store.numpy("word", 1).astype(np.float64)[kept]
    row = done["rows"][1]
    assert row["cka_other"] == pytest.approx(gram_cka(one, vectors[kept].astype(np.float64)), rel=1e-4)
    assert row["cka_other"] == done["cka"][1][4] == done["cka"][4][1] < 0.5 < done["cka"][2][3]
    upper = np.triu_indices(len(kept), 1)
    expected = scipy.stats.spearmanr(cosines(one)[upper], cosines(vectors[kept])[upper]).statistic
    assert row["rsa_other"] == pytest.approx(expected, abs=0.003)
    assert (done["rows"][2]["cka_other"], done["rows"][4]["rsa_other"]) == (None, None)
    assert list(done["moved"]) == ["layer_00", "layer_01"]
    moved = [word["shift"] for word in done["moved"]["layer_01"]]
    assert moved == sorted(moved, reverse=True)
    assert 0 < moved[0] <= 2
    assert all((ids["word"].gather(kept) == word["word"]).sum() == word["n_rows"] for word in done["moved"]["layer_01"])
    # The files say the same.
    del done["output"], done["warnings"]
    assert json.loads((tmp_path / "out" / "layers.json").read_text()) == done
    with (tmp_path / "out" / "layers.csv").open(newline="") as lines:
        table = list(csv.DictReader(lines))
    for line, measured in zip(table, done["rows"], strict=True):
        measured["top3_dimensions"] = " ".join(map(str, measured["top3_dimensions"]))
        assert line == {name: "" if value is None else str(value) for name, value in measured.items()}
    assert (tmp_path / "out" / "layers.png").read_bytes().startswith(b"\x89PNG")
    assert "The words that moved most" in check_page(tmp_path / "out" / "layers.html")


@pytest.mark.usefixtures("quick_plots")
def test_a_result_shows_and_draws_itself(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    words = ["<script>alert(1)</script>", "a&b", "c\u202e"] * 8
    ids = {"doc_id": [n // 3 for n in range(24)], "word_index": [n % 3 for n in range(24)], "word": words}
    one, two = (imported(tmp_path, name, rng.normal(size=(24, dim)), ids) for name, dim in (("<b>one", 5), ("two", 4)))
    found = one.layers(two)
    assert "&lt;b&gt;one" in found._repr_html_()
    assert "anisotropy" in str(found)
    line, matrix = found.plot("anisotropy"), found.plot()
    assert [len(drawn.get_xdata()) for drawn in line.lines] == [1, 1]
    assert matrix.images[0].get_array().shape == (2, 2)
    with pytest.raises(UserError, match="did you mean 'anisotropy'"):
        found.plot("anisotropi")
    found.write(tmp_path / "out")
    text = check_page(tmp_path / "out" / "layers.html")
    assert "&lt;script&gt;alert(1)" in text
    assert "\u202e" not in text
    assert "&lt;b&gt;one (store)" in text
    with pytest.raises(UserError, match="there is a comparison of layers already"):
        found.write(tmp_path / "out")


def test_mistakes_are_refused(store: Store, tmp_path: Path) -> None:
    out, few = tmp_path / "out", np.ones((3, 2))
    alien = imported(tmp_path, "alien", few, {"doc_id": ["x"] * 3, "word_index": [0, 1, 2], "word": ["a", "b", "c"]})
    texts = imported(tmp_path, "texts", few)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "mine.txt").write_text("mine")
    for words, said in (
        ((store.path, "--level", "token"), "no level 'token'; levels are word"),
        ((alien.path,), "3 rows at level word to compare; layers need 4 or more"),
        ((store.path, alien.path), "no common rows at level word"),
        ((store.path, texts.path), "no level 'word'; levels are sentence"),
        ((store.path, "--sample", "3"), "--sample"),
    ):
        assert said in refused("layers", *words, "-o", out), words
        assert not out.exists()
    for place in (tmp_path / "foreign", store.path):
        assert "not part of a comparison" in refused("layers", store.path, "-o", place, "--overwrite")
    with pytest.raises(UserError, match="`sample` 3 must be 50 or more"):
        store.layers(sample=3)


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
    vectors = grown.numpy("word", 3)[has_vector].astype(np.float64)
    assert words.rows[1].anisotropy == pytest.approx(of_pairs(cosines(vectors)), rel=1e-4)
    tokens = grown.layers(level="token")
    kept = ~grown.polars("token", ["is_special"])["is_special"].to_numpy()
    assert tokens.n_rows == kept.sum() < len(kept)
    texts_of = grown.layers(level="sentence")
    assert texts_of.n_rows == grown.valid("sentence", "layer_03").sum() == len(texts) - 1
    metadata = {**grown.metadata, "tokenizer_sha256": "another"}
    other = bertfeat.Store(grown.path, dataclasses.replace(grown.manifest, metadata=metadata))
    with pytest.raises(UserError, match="tokens of two tokenizers cannot be matched"):
        grown.layers(other, level="token")


@pytest.mark.long
def test_real_models_equal_references(tmp_path: Path) -> None:
    """The packaged model on a real corpus: trained, with random weights, in binary columns, and concatenated."""
    corpus = ROOT / "examples" / "data" / "wnut17_dev.conll"
    settings: Any = {"levels": "word", "limit": 25}
    trained = bertfeat.extract(corpus, tmp_path / "trained", layers="all", shard_bytes=2_000_000, **settings)
    folder = tmp_path / "model"
    assert run_recipe("random_weights", "minilm", "--seed", 1, "-o", folder).code == 0
    untrained = bertfeat.extract(corpus, tmp_path / "random", layers="all", model=str(folder), **settings)
    binary = bertfeat.extract(corpus, tmp_path / "b", layers="all", vector_encoding="binary", **settings)
    for store in (trained, untrained, binary):
        check_against_references(store)
    joined = bertfeat.extract(corpus, tmp_path / "joined", layers="last4", combine="concat", **settings)
    assert [row.feature for row in joined.layers().rows] == [f"layer_{n:02d}" for n in range(3, 7)]
    both = trained.layers(joined)
    assert [row.cka_other for row in both.rows[3:7]] == pytest.approx([1] * 4)
    against = trained.layers(untrained)
    assert all(0 < (row.cka_other or 0) < 0.95 for row in against.rows[:7])
    assert against.other_model == str(folder)
    against.write(tmp_path / "out")
    assert (tmp_path / "out" / "layers.png").read_bytes().startswith(b"\x89PNG")
