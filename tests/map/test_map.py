"""Maps of stores: coordinates against an SVD, neighbours against brute force, and a page that loads nothing."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.spatial.distance import cdist

import bertfeat
from bertfeat.errors import UserError
from bertfeat.search import words_in_context
from bertfeat.store.reader import Store
from tests.support.command_line import good, refused
from tests.support.index_stores import tiny_store, write_jsonl
from tests.support.places import ROOT

pytestmark = pytest.mark.numeric

HOSTILE = "</script><script>alert(1)</script> <img src=http://evil.test/x onerror=alert(2)> & \u2028 <!--"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Store:
    settings = {"levels": "word,sentence", "shard_bytes": 40_000}
    return tiny_store(tmp_path_factory.mktemp("maps") / "s", tiny_folder, **settings)


def imported(folder: Path, vectors: np.ndarray, **settings: Any) -> Store:
    """Import vectors as the sentence level of a store in the folder `s`."""
    np.save(folder / "v.npy", vectors.astype(np.float32))
    return bertfeat.import_vectors(folder / "v.npy", folder / "s", level="sentence", overwrite=True, **settings)


def data_of(page: Path) -> dict[str, Any]:
    """Return the data that a page has in a script."""
    return dict(json.loads(page.read_text("utf-8").partition('id="data">')[2].partition("</script>")[0]))


def sign_fixed_svd(vectors: np.ndarray) -> np.ndarray:
    centred = vectors - vectors.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2].T
    return centred @ (axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]]))


def brute_force(vectors: np.ndarray, metric: str) -> np.ndarray:
    distances: np.ndarray = cdist(vectors, vectors, "euclidean" if metric == "l2" else metric)
    np.fill_diagonal(distances, np.inf)
    return distances


@pytest.mark.promise("map")
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_coordinates_and_neighbours_are_the_exact_ones(store: Store, tmp_path: Path, metric: str) -> None:
    made = store.map(tmp_path / "map.parquet", level="word", metric=metric, neighbors=5, sample=300, seed=3)
    frame = pl.read_parquet(made.path)
    assert (frame.height, made.n_rows, made.n_neighbors, made.method) == (300, 300, 5, "pca")
    keys = store.polars("word", ["doc_id", "word_index"]).with_row_index("row")
    rows = frame.join(keys, on=["doc_id", "word_index"], how="left", maintain_order="left")["row"].to_numpy()
    assert (np.diff(rows.astype(int)) > 0).all()
    vectors = store.numpy("word", "layer_03", np.float64)[rows]
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
    again = store.map(tmp_path / "2.parquet", level="word", metric=metric, neighbors=5, sample=300, seed=3)
    assert again.path.read_bytes() == made.path.read_bytes()


def test_equal_vectors_are_neighbours_and_never_their_own(tmp_path: Path) -> None:
    imported(tmp_path, np.repeat(np.eye(3, 4), [6, 2, 1], axis=0))
    made = good("map", tmp_path / "s", "-o", tmp_path / "m.parquet", "--neighbors", "3", "--no-page", "--json").json
    assert (made["n_rows"], made["page"], made["shown_variance"]) == (9, None, 1.0)
    assert not (tmp_path / "m.html").exists()
    near = pl.read_parquet(tmp_path / "m.parquet")["neighbors"].to_list()
    for row, one in enumerate(near):
        assert len(set(one["ids"])) == 3
        assert row not in one["ids"]
    assert all(one["distances"] == pytest.approx([0, 0, 0], abs=1e-6) for one in near[:6])


def test_a_word_is_drawn_with_its_contexts_and_the_page_holds_the_same(store: Store, tmp_path: Path) -> None:
    done = good("map", store.path, "-o", tmp_path / "the.parquet", "--word", "The", "--color", "label")
    frame = pl.read_parquet(tmp_path / "the.parquet")
    words = store.polars("word", ["word"])["word"].to_list()
    expected = [row for row, word in enumerate(words) if word.lower() == "the"]
    assert all(words in done.out for words in (f"{len(expected)}", "word", "layer_03", "pca"))
    contexts = [one.marked() for one in words_in_context(store, expected, 60)]
    assert frame["text"].to_list() == contexts
    assert all("[the]" in text.lower() for text in contexts)
    data = data_of(tmp_path / "the.html")
    assert (data["text"], data["color"]) == (contexts, "label")
    columns = {column["name"]: column["values"] for column in data["columns"]}
    assert columns == {name: frame[name].to_list() for name in ("doc_id", "word_index", "word", "label", "n")}
    for name in ("x", "y"):
        assert np.array_equal(np.frombuffer(base64.b64decode(data[name]), "<f4"), frame[name].to_numpy())
    assert re.search(r"this plane shows \d+\.\d % of the variance", data["note"])


@pytest.mark.promise("pages")
def test_a_hostile_corpus_is_text_and_nothing_is_loaded(tmp_path: Path) -> None:
    lines = [{"text": f"{HOSTILE} {n}", "<b>": HOSTILE, "n": float(n)} for n in range(4)]
    ids = write_jsonl(tmp_path / "ids.jsonl", lines)
    store = imported(tmp_path, np.eye(4), ids=ids)
    place = tmp_path / "<i>store&"
    Path(store.path).rename(place)
    good("map", place, "-o", tmp_path / "m.parquet", "--color", "<b>")
    data, page = data_of(tmp_path / "m.html"), (tmp_path / "m.html").read_text("utf-8")
    assert data["text"] == [line["text"] for line in lines]
    assert [column["values"][0] for column in data["columns"]] == [0, HOSTILE, 0.0]
    assert "<title>&lt;i&gt;store&amp;" in page
    # Data, and the page's own script: none came from the corpus.
    assert [page.count(tag) for tag in ("<script", "<img", "<i>", "<b>")] == [2, 0, 0, 0]
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none';")
    assert "http" not in policy[1]


def test_mistakes_are_refused(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "m.parquet"
    for flags, said in (
        (("--level", "sentence", "--word", "bank"), "--level sentence: a row is a whole text"),
        (("--word", "zebrafish"), "no row of level word is the word 'zebrafish'"),
        (("--level", "word", "--color", "lable"), "--color 'lable': no such column in the map; did you mean 'label'?"),
        (("--level", "word", "--limit", "2"), "a map takes 3 rows or more"),
    ):
        assert said in refused("map", store.path, "-o", out, *flags)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "m.html").write_text("mine")
    with pytest.raises(UserError, match="there is a file already"):
        store.map(out, level="word")
    assert not out.exists()
    store.map(out, level="word", overwrite=True, limit=3)
    assert (tmp_path / "m.html").read_text() != "mine"
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(UserError, match=r"umap-learn: pip install 'bertfeat\[umap\]'"):
        store.map(tmp_path / "2.parquet", level="word", method="umap")
    assert not (tmp_path / "2.parquet").exists()


def test_a_store_without_a_plane_is_refused(tmp_path: Path) -> None:
    for vectors, said in ((np.ones((5, 1)), "there are 5 of 1"), (np.ones((5, 3)), "all 5 vectors are the same")):
        with pytest.raises(UserError, match=said):
            imported(tmp_path, vectors).map(tmp_path / "m.parquet")
    assert not list(tmp_path.glob("m.*"))


def test_appended_parts_and_rows_without_a_vector(tmp_path: Path, tiny_folder: Path) -> None:
    texts = ["the spring of a clock", "the bank " + "of a river " * 40, "a spring of water"]
    first, more = ([{"id": f"{n}{i}", "text": text} for i, text in enumerate(texts)] for n in range(2))
    settings = {"levels": "word", "keep_columns": (), "max_length": 20, "on_overlong": "truncate"}
    store = tiny_store(tmp_path / "s", tiny_folder, first, **settings)
    opened = bertfeat.append(store, write_jsonl(tmp_path / "more.jsonl", more))
    assert len(opened.parts("word")) == 2
    valid = opened.valid("word", "layer_03")
    assert np.count_nonzero(~valid) > 0
    made = opened.map(tmp_path / "m.parquet")
    assert (made.n_rows, made.n_left_out) == (np.count_nonzero(valid), np.count_nonzero(~valid))
    frame = pl.read_parquet(tmp_path / "m.parquet")
    assert frame["doc_id"].unique(maintain_order=True).to_list() == ["00", "01", "02", "10", "11", "12"]
    # The same texts again are each other's nearest.
    half = frame.height // 2
    assert frame["neighbors"].struct.field("ids").list.first().to_list()[:half] == list(range(half, 2 * half))


KILLED = """
import sys
import bertfeat
from tests.support.runner_fakes import die_at
die_at(sys.argv[1])
bertfeat.open_store("s").map("m.parquet", overwrite=True, progress=False)
"""


@pytest.mark.promise("map")
@pytest.mark.parametrize(
    "step",
    [
        "m.parquet.renamed",
        *(pytest.param(f"m.{step}", marks=pytest.mark.long) for step in ("parquet.synced", "html.synced")),
    ],
)
def test_a_killed_run_leaves_whole_files(tmp_path: Path, step: str) -> None:
    store = imported(tmp_path, np.random.default_rng(0).normal(size=(20, 4)))
    written = []
    for name, limit in (("2", None), ("m", 5)):
        made = store.map(tmp_path / f"{name}.parquet", limit=limit, progress=False)
        assert made.page is not None
        written.append({"m.parquet": made.path.read_bytes(), "m.html": made.page.read_bytes()})
    after, before = written
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", KILLED, step], check=False, cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "m.html").read_bytes() == before["m.html"]
    is_new = step == "m.parquet.renamed" or "html" in step
    assert (tmp_path / "m.parquet").read_bytes() == (after if is_new else before)["m.parquet"]
    store.map(tmp_path / "m.parquet", overwrite=True, progress=False)
    assert {name: (tmp_path / name).read_bytes() for name in after} == after


@pytest.mark.peer
def test_umap_keeps_groups_apart(tmp_path: Path) -> None:
    """An environment with umap-learn runs it."""
    pytest.importorskip("umap")
    rng = np.random.default_rng(0)
    vectors = np.concatenate([rng.normal(size=(20, 8)) * 0.1 + 5 * np.eye(3, 8)[group] for group in range(3)])
    imported(tmp_path, vectors)
    flags = ("--method", "umap", "--neighbors", "8", "--no-page")
    good("map", tmp_path / "s", "-o", tmp_path / "m.parquet", *flags)
    frame = pl.read_parquet(tmp_path / "m.parquet")
    places = frame.select("x", "y").to_numpy()
    nearest = brute_force(places.astype(float), "l2").argmin(axis=1)
    assert (nearest // 20 == np.arange(60) // 20).mean() > 0.95
    good("map", tmp_path / "s", "-o", tmp_path / "2.parquet", *flags, "--seed", str(2**40))
    assert not np.array_equal(pl.read_parquet(tmp_path / "2.parquet").select("x", "y").to_numpy(), places)


@pytest.mark.peer
def test_embedding_atlas_opens_it(store: Store, tmp_path: Path) -> None:
    """`ATLAS_PYTHON` names the interpreter of an environment with embedding-atlas."""
    python = os.environ.get("ATLAS_PYTHON") or (sys.executable if find_spec("embedding_atlas") else None)
    if python is None:
        pytest.skip("Embedding Atlas is not installed; point ATLAS_PYTHON at the python of an environment that has it")
    good("map", store.path, "-o", tmp_path / "m.parquet", "--level", "word", "--no-page")
    command = "from embedding_atlas.cli import main; main()"
    flags = ["--x", "x", "--y", "y", "--neighbors", "neighbors", "--text", "text", "--export-application", "atlas"]
    subprocess.run([python, "-c", command, "m.parquet", *flags], cwd=tmp_path, check=True, timeout=300)
    props = json.loads((tmp_path / "atlas" / "data" / "metadata.json").read_text())["props"]["data"]
    assert props["neighbors"] == "neighbors"
    assert {name: props["projection"][name] for name in ("x", "y")} == {"x": "x", "y": "y"}
    shown = pl.read_parquet(tmp_path / "atlas" / "data" / "dataset.parquet")
    own = pl.read_parquet(tmp_path / "m.parquet")
    assert shown.select(own.columns).equals(own)
    assert shown[props["id"]].to_list() == list(range(own.height))
