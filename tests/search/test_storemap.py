"""Maps of stores: coordinates against an SVD, neighbours against brute force, and a page that loads nothing."""

from __future__ import annotations

import base64
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.errors import UserError
from bertfeat.reports import mappage
from bertfeat.search import storemap
from bertfeat.search.storemap import map_store
from bertfeat.store.reader import Store
from tests.support.command_line import bertfeat as run
from tests.support.command_line import good
from tests.support.places import ROOT

pytestmark = pytest.mark.numeric

CONLL = ROOT / "examples" / "data" / "wnut17_dev.conll"
HOSTILE = "</script><script>alert(1)</script> <img src=http://evil.test/x onerror=alert(2)> & \u2028 <!--"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("maps") / "store"
    return bertfeat.extract(CONLL, path, levels="word,sentence", layers="-1", limit=40, shard_bytes=300_000)


@pytest.fixture(autouse=True)
def bokeh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a small script for Bokeh's, which the page holds as it is."""

    class Resources:
        def __init__(self, mode: str, components: list[str]) -> None:
            assert (mode, components[0]) == ("inline", "bokeh")
            self.js_raw = ["var Bokeh = {};"]

    module = ModuleType("bokeh.resources")
    module.Resources = Resources  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bokeh", ModuleType("bokeh"))
    monkeypatch.setitem(sys.modules, "bokeh.resources", module)
    monkeypatch.setattr(mappage, "find_spec", lambda name: object())


class Page(HTMLParser):
    """The tags of a page, the texts of its scripts and its title, as a browser would find them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "title": [], "h1": []}
        self._inside = ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in self.texts:
            self._inside = tag
            self.texts[tag].append("")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[self._inside][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    @property
    def data(self) -> dict[str, Any]:
        return dict(json.loads(self.texts["script"][0]))


def sign_fixed_svd(vectors: np.ndarray) -> np.ndarray:
    centred = vectors - vectors.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2].T
    return centred @ (axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]]))


def brute_force(vectors: np.ndarray, metric: str) -> np.ndarray:
    if metric == "cosine":
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        distances = 1 - unit @ unit.T
    else:
        distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    return distances


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_coordinates_and_neighbours_are_the_exact_ones(store: Store, tmp_path: Path, metric: str) -> None:
    made = map_store(store, tmp_path / "map.parquet", level="word", metric=metric, neighbors=5, sample=300, seed=3)
    frame = pl.read_parquet(made.path)
    assert (frame.height, made.n_rows, made.n_neighbors, made.method) == (300, 300, 5, "pca")
    assert list(frame.schema)[:4] == ["doc_id", "word_index", "word", "text"]
    assert frame.schema["neighbors"] == pl.Struct({"ids": pl.List(pl.Int64), "distances": pl.List(pl.Float32)})
    keys = store.polars("word", ["doc_id", "word_index"]).with_row_index("row")
    rows = frame.join(keys, on=["doc_id", "word_index"], how="left", maintain_order="left")["row"].to_numpy()
    assert (np.diff(rows.astype(int)) > 0).all()
    vectors = store.numpy("word", "layer_06", np.float64)[rows]
    expected = sign_fixed_svd(vectors)
    found = frame.select("x", "y").to_numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    share = np.square(expected).sum() / np.square(vectors - vectors.mean(axis=0)).sum()
    assert made.shown_variance == pytest.approx(share, abs=2e-4)
    distances = brute_force(vectors, metric)
    ids = np.array(frame["neighbors"].struct.field("ids").to_list())
    far = np.array(frame["neighbors"].struct.field("distances").to_list())
    assert (ids != np.arange(300)[:, None]).all()
    # Ties may change places: the distances are those of the nearest, and each belongs to its row.
    np.testing.assert_allclose(far, np.sort(distances, axis=1)[:, :5], atol=2e-3 if metric == "l2" else 2e-5)
    np.testing.assert_allclose(far, np.take_along_axis(distances, ids, axis=1), atol=2e-3 if metric == "l2" else 2e-5)
    # The same store and seed give the same bytes.
    again = map_store(store, tmp_path / "2.parquet", level="word", metric=metric, neighbors=5, sample=300, seed=3)
    assert again.path.read_bytes() == made.path.read_bytes()


def test_equal_vectors_are_neighbours_and_never_their_own(tmp_path: Path) -> None:
    vectors = np.repeat(np.eye(3, 4, dtype=np.float32), [6, 2, 1], axis=0)
    np.save(tmp_path / "v.npy", vectors)
    good("import", tmp_path / "v.npy", "-o", tmp_path / "s", "--level", "sentence")
    made = good("map", tmp_path / "s", "-o", tmp_path / "m.parquet", "--neighbors", "3", "--no-page", "--json").json
    assert (made["n_rows"], made["page"], made["shown_variance"]) == (9, None, 1.0)
    assert not (tmp_path / "m.html").exists()
    near = pl.read_parquet(tmp_path / "m.parquet")["neighbors"].to_list()
    for row, one in enumerate(near):
        assert len(set(one["ids"])) == 3
        assert row not in one["ids"]
    assert all(one["distances"] == pytest.approx([0, 0, 0], abs=1e-6) for one in near[:6])
    # With fewer rows than neighbours, all others are neighbours.
    good("map", tmp_path / "s", "-o", tmp_path / "few.parquet", "--limit", "7", "--no-page")
    assert {len(one["ids"]) for one in pl.read_parquet(tmp_path / "few.parquet")["neighbors"].to_list()} == {6}


def test_a_word_is_drawn_with_its_contexts_and_the_page_holds_the_same(store: Store, tmp_path: Path) -> None:
    done = good("map", store.path, "-o", tmp_path / "the.parquet", "--word", "The", "--color", "label")
    frame = pl.read_parquet(tmp_path / "the.parquet")
    words = store.polars("word", ["word"])["word"].to_list()
    expected = [row for row, word in enumerate(words) if word.lower() == "the"]
    assert f"{len(expected)} word rows of layer_06 by pca" in done.out
    contexts = [one.marked() for one in bertfeat.words_in_context(store, expected, 60)]
    assert frame["text"].to_list() == contexts
    assert all("[the]" in text.lower() for text in contexts)
    page = Page(tmp_path / "the.html")
    data = page.data
    assert (data["text"], data["colour"]) == (contexts, "label")
    columns = {column["name"]: column["values"] for column in data["columns"]}
    assert columns == {name: frame[name].to_list() for name in ("doc_id", "word_index", "word", "column_2", "label")}
    for name in ("x", "y"):
        assert np.array_equal(np.frombuffer(base64.b64decode(data[name]), "<f4"), frame[name].to_numpy())
    assert re.search(r"this plane shows \d+\.\d % of the variance", data["note"])


def test_a_hostile_corpus_is_text_and_nothing_is_loaded(tmp_path: Path) -> None:
    lines = [{"text": f"{HOSTILE} {n}", "<b>": HOSTILE, "n": float(n)} for n in range(4)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    store = tmp_path / "<i>store&"
    flags = ("--level", "sentence", "--layers", "0", "--keep-columns", "<b>,n")
    good("extract", tmp_path / "c.jsonl", "-o", store, *flags)
    good("map", store, "-o", tmp_path / "m.parquet", "--color", "<b>")
    page = Page(tmp_path / "m.html")
    assert page.data["text"] == [line["text"] for line in lines]
    assert [column["values"][0] for column in page.data["columns"]] == [0, HOSTILE, 0.0]
    assert "<i>store&" in page.texts["title"][0]
    tags = [tag for tag, _ in page.tags]
    # Data, Bokeh, and the page's own script: none came from the corpus.
    assert (tags.count("script"), tags.count("img"), tags.count("i"), tags.count("b")) == (3, 0, 0, 0)
    links = [values.get(name) for _, values in page.tags for name in ("src", "href", "action") if values.get(name)]
    assert links == ["data:,"]
    policy = next(values["content"] for tag, values in page.tags if values.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    text = (tmp_path / "m.html").read_text("utf-8")
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|innerHTML", text)


def test_mistakes_are_refused(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "m.parquet"
    for flags, said in (
        ((), "pass --level with one of them"),
        (("--level", "sentence", "--word", "bank"), "--level sentence: a row is a whole text"),
        (("--level", "token"), "no level 'token'"),
        (("--word", "zebrafish"), "no row of level word is the word 'zebrafish'"),
        (("--level", "word", "--color", "lable"), "--color 'lable': no such column in the map; did you mean 'label'?"),
        (("--level", "word", "--columns", "nope"), "no column 'nope'"),
        (("--level", "word", "--columns", "word"), "has the name of a column of the map; pass other --columns"),
        (("--level", "word", "--limit", "2"), "2 rows with a vector: a map takes 3 or more"),
        (("--level", "word", "--no-page", "--color", "word"), "--color is for the page"),
        (("--level", "word", "--metric", "ip"), "'ip' is not one of"),
    ):
        done = run("map", store.path, "-o", out, *flags)
        assert (done.code, said in done.err) == (2, True), done.err
        assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    done = run("map", store.path, "-o", tmp_path / "m.csv", "--level", "word")
    assert (done.code, "name a file that ends in .parquet" in done.err) == (2, True)
    (tmp_path / "m.html").write_text("mine")
    with pytest.raises(UserError, match="there is a file already"):
        map_store(store, out, level="word")
    assert not out.exists()
    good("map", store.path, "-o", out, "--level", "word", "--overwrite", "--limit", "3")
    assert (tmp_path / "m.html").read_text() != "mine"
    monkeypatch.setattr(storemap, "MAX_POINTS", 100)
    with pytest.raises(UserError, match=r"rows are too many for a page, which takes 100; pass `sample=100000`"):
        map_store(store, tmp_path / "2.parquet", level="word")
    for name, patched in (("map", mappage), ("umap", sys.modules["bertfeat.ann.coordinates"])):
        monkeypatch.setattr(patched, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=rf"not installed; pip install 'bertfeat\[{name}\]'"):
            map_store(store, tmp_path / "2.parquet", level="word", method="pca" if name == "map" else "umap")
    assert not (tmp_path / "2.parquet").exists()
    for name, value in (("method", "tsne"), ("metric", "ip"), ("neighbors", 0), ("sample", 0)):
        with pytest.raises(UserError, match=rf"{name}"):
            map_store(store, tmp_path / "2.parquet", **{name: value})


def test_a_store_without_a_plane_is_refused(tmp_path: Path) -> None:
    cases = {"one value": np.ones((5, 1)), "the same": np.ones((5, 3)), "two rows": np.eye(2)}
    for name, said in (("one value", "vectors of 1 value"), ("the same", "are the same"), ("two rows", "2 rows with")):
        np.save(tmp_path / f"{name}.npy", cases[name].astype(np.float32))
        good("import", tmp_path / f"{name}.npy", "-o", tmp_path / name, "--level", "sentence")
        done = run("map", tmp_path / name, "-o", tmp_path / "m.parquet")
        assert (done.code, said in done.err, done.err.count("\n")) == (2, True, 1), done.err
        assert not (tmp_path / "m.parquet").exists()
        assert not (tmp_path / "m.html").exists()


def test_an_empty_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("text\n")
    good("extract", tmp_path / "none.csv", "-o", tmp_path / "s", "--level", "word", "--layers", "0")
    done = run("map", tmp_path / "s", "-o", tmp_path / "m.parquet")
    assert (done.code, "0 rows with a vector: a map takes 3 or more" in done.err) == (2, True)
    assert not (tmp_path / "m.parquet").exists()


def test_umap_keeps_groups_apart(tmp_path: Path) -> None:
    pytest.importorskip("umap")
    rng = np.random.default_rng(0)
    vectors = np.concatenate([rng.normal(size=(20, 8)) * 0.1 + 5 * np.eye(3, 8)[group] for group in range(3)])
    np.save(tmp_path / "v.npy", vectors.astype(np.float32))
    good("import", tmp_path / "v.npy", "-o", tmp_path / "s", "--level", "sentence")
    good("map", tmp_path / "s", "-o", tmp_path / "m.parquet", "--method", "umap", "--neighbors", "8", "--no-page")
    places = pl.read_parquet(tmp_path / "m.parquet").select("x", "y").to_numpy()
    nearest = brute_force(places.astype(float), "l2").argmin(axis=1)
    assert (nearest // 20 == np.arange(60) // 20).mean() > 0.95
