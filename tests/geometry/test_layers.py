"""Measures of layers: those of n x n references, of known distributions, and of two stores; and their files."""

from __future__ import annotations

import csv
import html.parser
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.errors import UserError
from bertfeat.geometry import layermeasures, layerrows
from bertfeat.geometry.layersums import effective_rank, passes
from bertfeat.geometry.samplemeasures import intrinsic_dimension, rsa, shifts
from bertfeat.store.reader import Store
from tests.support.command_line import good, refused
from tests.support.places import ROOT
from tests.support.vector_files import write_npy

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("no_fsync")]

CONLL = ROOT / "examples" / "data" / "wnut17_dev.conll"
N_LINES = 30


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("layers") / "store"
    levels = "token,word,sentence"
    return bertfeat.extract(CONLL, path, levels=levels, layers="0,3,6", limit=N_LINES, shard_bytes=2_000_000)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The same words, in other order of documents' rows on disk, of the same architecture with random weights."""
    path = tmp_path_factory.mktemp("layers") / "random"
    return bertfeat.extract(CONLL, path, levels="word", layers="0,6", limit=N_LINES - 5, random_weights=0)


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosines of all pairs of rows, n x n."""
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units @ units.T


def of_pairs(matrix: np.ndarray) -> float:
    return float(matrix[~np.eye(len(matrix), dtype=bool)].mean())


def gram_cka(one: np.ndarray, two: np.ndarray) -> float:
    """Return linear CKA from Gram matrices of rows by rows."""
    centre = np.eye(len(one)) - 1 / len(one)
    first, second = (centre @ x @ x.T @ centre for x in (one, two))
    return float((first * second).sum() / np.sqrt((first * first).sum() * (second * second).sum()))


def near(vectors: np.ndarray, k: int) -> np.ndarray:
    found = cosines(vectors)
    np.fill_diagonal(found, -2)
    return np.argsort(-found, axis=1)[:, :k]


def two_neighbours(vectors: np.ndarray) -> float:
    once = np.unique(vectors, axis=0)
    distances = np.array([np.sort(np.linalg.norm(once - row, axis=1))[1:3] for row in once])
    ratio = np.sort(np.log(distances[:, 1] / distances[:, 0]))
    kept = int(len(ratio) * 0.9)
    expected = -np.log(1 - np.arange(1, kept + 1) / len(ratio))
    return float(expected @ ratio[:kept] / (ratio[:kept] @ ratio[:kept]))


def reference(vectors: np.ndarray, words: pl.Series, documents: pl.Series, min_count: int) -> dict[str, float]:
    near_each = cosines(vectors)
    types = [word for word, n in words.value_counts().rows() if n >= min_count]
    groups = [(words == word).to_numpy() for word in types]
    texts = [(documents == one).to_numpy() for one in documents.unique()]
    centred = vectors - vectors.mean(axis=0)
    spectrum = np.linalg.svd(centred, compute_uv=False) ** 2
    shares = spectrum[spectrum > 1e-12 * spectrum.sum()] / spectrum.sum()
    squares = np.sort(np.square(vectors).sum(axis=0))
    lengths = np.linalg.norm(vectors, axis=1)
    return {
        "anisotropy": of_pairs(near_each),
        "anisotropy_centred": of_pairs(cosines(centred)),
        "self_similarity": float(np.mean([of_pairs(near_each[np.ix_(one, one)]) for one in groups])),
        "within_sentence": float(np.mean([of_pairs(near_each[np.ix_(one, one)]) for one in texts if one.sum() > 1])),
        "norm_mean": lengths.mean(),
        "norm_sd": lengths.std(),
        "top3_share": squares[-3:].sum() / squares.sum(),
        "effective_rank": np.exp(-(shares * np.log(shares)).sum()),
        "intrinsic_dimension": two_neighbours(vectors[:, :]),
    }


def test_measures_equal_references_of_rows_by_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(store.manifest["shards"]) > 1
    frame = store.polars("word", ["doc_id", "word"])
    assert len(frame) > 400
    found = bertfeat.compare_layers(store, min_count=3)
    layers = [store.numpy("word", row.feature, np.float64) for row in found.rows]
    for row, vectors in zip(found.rows, layers, strict=True):
        for name, value in reference(vectors, frame["word"], frame["doc_id"], 3).items():
            assert getattr(row, name) == pytest.approx(value, rel=1e-4, abs=1e-5), (row.feature, name)
        assert row.top3_dimensions == tuple(np.argsort(-np.square(vectors).sum(axis=0))[:3])
    expected = [[gram_cka(one, two) for two in layers] for one in layers]
    np.testing.assert_allclose(found.cka, expected, rtol=1e-4)
    lists = [near(vectors, 10) for vectors in layers]
    common = [[np.mean([len({*a} & {*b}) / 10 for a, b in zip(x, y, strict=True)]) for y in lists] for x in lists]
    # Neighbours of equal cosine may be ordered otherwise.
    np.testing.assert_allclose(found.neighbour_overlap, common, atol=0.01)
    # The same in many blocks and passes.
    monkeypatch.setattr(layerrows, "_BLOCK_BYTES", 300_000)
    again = bertfeat.compare_layers(store, min_count=3, max_memory=3_000_000)
    assert len(passes(dict.fromkeys(range(3), 384), 3_000_000)) == 3
    np.testing.assert_allclose(again.cka, found.cka, rtol=1e-5)
    for one, two in zip(again.rows, found.rows, strict=True):
        assert one.within_sentence == pytest.approx(two.within_sentence, rel=1e-6)
        assert one.self_similarity == pytest.approx(two.self_similarity, rel=1e-6)
        assert one.effective_rank == pytest.approx(two.effective_rank, rel=1e-4)


def test_other_levels(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Special tokens do not count; a text has neither words nor other rows of its document."""
    tokens = bertfeat.compare_layers(store, level="token")
    kept = ~store.polars("token", ["is_special"])["is_special"].to_numpy()
    assert tokens.settings["n_rows"] == kept.sum() < len(kept)
    vectors = store.numpy("token", 6, np.float64)[kept]
    assert tokens.rows[-1].anisotropy == pytest.approx(of_pairs(cosines(vectors)), rel=1e-4)
    texts = bertfeat.compare_layers(store, level="sentence")
    assert {row.self_similarity for row in texts.rows} == {row.within_sentence for row in texts.rows} == {None}
    assert "self_similarity" not in texts.table()
    # More types than are measured: a seed chooses them.
    monkeypatch.setattr(layermeasures, "_MAX_TYPES", 4)
    some = bertfeat.compare_layers(store, min_count=2, seed=3)
    assert some.settings["n_types"] == 4
    assert some.rows == bertfeat.compare_layers(store, min_count=2, seed=3).rows
    few = bertfeat.compare_layers(store, min_count=10_000)
    assert few.settings["n_types"] == 0
    assert few.rows[0].self_similarity is None


def imported(folder: Path, name: str, vectors: np.ndarray) -> Store:
    return bertfeat.import_vectors(
        write_npy(folder / f"{name}.npy", vectors.astype(np.float32)),
        folder / name,
        level="sentence",
        store_dtype="float32",
    )


def test_rotation_scale_and_noise(tmp_path: Path) -> None:
    """A rotated and scaled space is the same space; independent noise has nothing to do with it."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(1500, 12)) * np.linspace(0.5, 2, 12) + 1
    turn = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    one = imported(tmp_path, "one", vectors)
    # Turned about the mean: cosines, which RSA and neighbours compare, depend on the origin.
    turned = bertfeat.compare_layers(one, imported(tmp_path, "turned", 3 * vectors @ turn), level="sentence")
    first, second = turned.rows
    assert first.cka_other == pytest.approx(1, abs=1e-6)
    assert first.rsa_other == pytest.approx(1, abs=1e-5)
    assert turned.neighbour_overlap[0][1] == pytest.approx(1, abs=2e-3)
    for name in ("anisotropy", "anisotropy_centred", "effective_rank", "intrinsic_dimension"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), rel=1e-4, abs=1e-6)
    assert second.norm_mean == pytest.approx(3 * first.norm_mean, rel=1e-5)
    noise = bertfeat.compare_layers(one, imported(tmp_path, "noise", rng.normal(size=(1500, 9))), level="sentence")
    # Of 12 and 9 dimensions and 1,500 rows: about 0.008.
    assert 0 < noise.rows[0].cka_other < 0.03
    assert abs(noise.rows[0].rsa_other) < 0.03
    assert noise.neighbour_overlap[0][1] == pytest.approx(10 / 1500, abs=0.01)
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
        flat = np.zeros((1500, 20), np.float32)
        flat[:, :dim] = rng.uniform(size=(1500, dim))
        turned = flat @ np.linalg.qr(rng.normal(size=(20, 20)))[0].astype(np.float32)
        assert intrinsic_dimension(turned) == pytest.approx(dim, abs=room)
        # Equal rows count once.
        assert intrinsic_dimension(np.concatenate([flat, flat])) == pytest.approx(intrinsic_dimension(flat))
    assert np.isnan(intrinsic_dimension(np.ones((100, 4), np.float32)))
    # Equal cosines share their rank.
    square = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.float32)
    assert rsa(square, square) == pytest.approx(1)
    assert np.isnan(rsa(square, np.ones((4, 2), np.float32)))


class _Page(html.parser.HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link") and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(path: Path) -> _Page:
    text = path.read_text("utf-8")
    found = _Page()
    found.feed(text)
    assert found.open == []
    # Nothing is loaded: no address but the empty icon, no script, no style from elsewhere.
    assert [value for name, value in found.attributes if name in ("src", "href")] == ["data:,"]
    assert "script" not in found.tags
    assert not re.search(r"url\(|@import|https?:", text)
    assert ("name", "viewport") in found.attributes
    assert "prefers-color-scheme: dark" in text
    return found


def test_two_stores_are_matched_word_by_word(store: Store, untrained: Store, tmp_path: Path) -> None:
    done = good("layers", store.path, untrained.path, "-o", tmp_path / "out", "--min-count", "2", "--json").json
    assert done["n_rows"] == untrained.n_rows("word") < store.n_rows("word")
    n = done["n_rows"]
    sides = [(row["side"], row["feature"]) for row in done["rows"]]
    assert sides == [*(("store", f"layer_{i:02d}") for i in (0, 3, 6)), ("other", "layer_00"), ("other", "layer_06")]
    one, two = store.numpy("word", 6, np.float64)[:n], untrained.numpy("word", 6, np.float64)
    last = done["rows"][2]
    assert last["cka_other"] == pytest.approx(gram_cka(one, two), rel=1e-4)
    assert last["cka_other"] == done["cka"][2][4] == done["cka"][4][2] < 0.9
    assert -1 <= last["rsa_other"] < 0.9
    assert (done["rows"][1]["cka_other"], done["rows"][4]["rsa_other"]) == (None, None)
    assert list(done["moved"]) == ["layer_00", "layer_06"]
    moved = [word["shift"] for word in done["moved"]["layer_06"]]
    assert moved == sorted(moved, reverse=True)
    assert 0 < moved[0] <= 2
    words = store.polars("word", ["word"])["word"][:n]
    assert all((words == word["word"]).sum() == word["n_rows"] for word in done["moved"]["layer_06"])
    assert done["other_model"].endswith("with random weights of seed 0")
    # The files say the same.
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["layers.csv", "layers.html", "layers.json", "layers.png"]
    assert json.loads((tmp_path / "out" / "layers.json").read_text()) == {
        k: v for k, v in done.items() if k != "output"
    }
    with (tmp_path / "out" / "layers.csv").open(newline="") as lines:
        table = list(csv.DictReader(lines))
    assert [float(row["anisotropy"]) for row in table] == [row["anisotropy"] for row in done["rows"]]
    assert (tmp_path / "out" / "layers.png").read_bytes().startswith(b"\x89PNG")
    found = check_page(tmp_path / "out" / "layers.html")
    # 11 lines and 2 matrices, each with a sentence.
    assert found.tags.count("svg") == 13
    assert found.tags.count("section") == 15


def test_a_result_shows_and_draws_itself(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    words = [["<script>alert(1)</script>", "a&b", "c"]] * 8
    (tmp_path / "ids.jsonl").write_text(
        "".join(
            json.dumps({"doc_id": n, "word_index": i, "word": w}) + "\n"
            for n, t in enumerate(words)
            for i, w in enumerate(t)
        )
    )
    stores = [
        bertfeat.import_vectors(
            write_npy(tmp_path / f"{name}.npy", rng.normal(size=(24, dim))),
            tmp_path / name,
            level="word",
            ids=tmp_path / "ids.jsonl",
        )
        for name, dim in (("<b>one", 5), ("two", 4))
    ]
    found = bertfeat.compare_layers(*stores)
    assert repr(found).startswith("LayerComparison(")
    assert "\n" not in repr(found)
    assert "&lt;b&gt;one" in found._repr_html_()
    assert "anisotropy" in str(found)
    line, matrix = found.plot("anisotropy"), found.plot()
    assert [len(drawn.get_xdata()) for drawn in line.lines] == [1, 1]
    assert matrix.images[0].get_array().shape == (2, 2)
    with pytest.raises(UserError, match="did you mean 'anisotropy'"):
        found.plot("anisotropi")
    found.write(tmp_path / "out")
    check_page(tmp_path / "out" / "layers.html")
    assert "&lt;script&gt;alert(1)" in (tmp_path / "out" / "layers.html").read_text()
    with pytest.raises(UserError, match="there is a comparison of layers already"):
        found.write(tmp_path / "out")


def test_mistakes_are_refused(store: Store, untrained: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    (tmp_path / "one.txt").write_text("a b\n")
    (tmp_path / "other.csv").write_text("id,text\nx,unlike words\ny,of the other store\n")
    tiny = bertfeat.extract(tmp_path / "one.txt", tmp_path / "tiny", levels="word", layers="0")
    text_ids = bertfeat.extract(tmp_path / "other.csv", tmp_path / "ids", levels="word", layers="0", id_column="id")
    (tmp_path / "other.txt").write_text("unlike words\nof the other store\n")
    alien = bertfeat.extract(tmp_path / "other.txt", tmp_path / "alien", levels="word,token", layers="0")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "mine.txt").write_text("mine")
    for words, said in (
        ((tmp_path / "none",), "no such folder"),
        ((store.path, "--level", "wrod"), "no level 'wrod'"),
        ((untrained.path, "--level", "token"), "no level 'token'; levels are word"),
        ((tiny.path,), "2 rows at level word have a vector; layers need 3 or more"),
        ((store.path, alien.path), "no common rows at level word"),
        ((store.path, text_ids.path), "doc_id is int64 in the first and string in the second"),
        ((store.path, untrained.path, "--level", "sentence"), "no level 'sentence'"),
        ((store.path, "--level", "sentence", "--min-count", "3"), "--min-count has no meaning at level sentence"),
        ((store.path, "--sample", "3"), "--sample"),
        ((store.path, "--max-memory", "much"), "'much' is not a size"),
    ):
        assert said in refused("layers", *words, "-o", out), words
        assert not out.exists()
    assert "not part of a comparison" in refused("layers", store.path, "-o", tmp_path / "foreign", "--overwrite")
    assert (tmp_path / "foreign" / "mine.txt").read_text() == "mine"
    with pytest.raises(UserError, match="`sample` 3 must be 50 or more"):
        bertfeat.compare_layers(store, sample=3)
    monkeypatch.setitem(alien._metadata, "tokenizer_sha256", "another")
    with pytest.raises(UserError, match="tokens of two tokenizers cannot be matched"):
        bertfeat.compare_layers(store, alien, level="token")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "plots need matplotlib" in refused("layers", store.path, "-o", out)
    assert not out.exists()


def test_empty_equal_and_infinite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.csv").write_text("text\n")
    empty = bertfeat.extract(tmp_path / "empty.csv", tmp_path / "empty", levels="word", layers="0")
    assert "0 rows at level word have a vector; layers need 3 or more" in refused(
        "layers", empty.path, "-o", tmp_path / "out"
    )
    # Equal rows: no variance, no dimension, no CKA, and JSON without NaN.
    one = imported(tmp_path, "one", np.ones((5, 3)))
    found = bertfeat.compare_layers(one, level="sentence")
    row = found.rows[0]
    assert row.anisotropy == pytest.approx(1)
    assert (row.effective_rank, row.intrinsic_dimension, found.cka) == (None, None, ((None,),))
    json.loads(json.dumps(found.to_dict(), allow_nan=False))
    # Zero vectors have cosine 0 with all others.
    zeros = bertfeat.compare_layers(
        imported(tmp_path, "zeros", np.eye(4)[[0, 0, 1, 1, 1]] * [[1], [1], [1], [1], [0]]), level="sentence"
    )
    assert zeros.rows[0].anisotropy == pytest.approx(0.2)
    monkeypatch.setattr(Store, "take", lambda *_: np.full((5, 3), np.inf))
    with pytest.raises(UserError, match="embedding of sentence row 0 holds NaN or infinity"):
        bertfeat.compare_layers(one, level="sentence")
