"""Exports: other tools and `bertfeat import` read back the rows and vectors of the store."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import RunError
from bertfeat.exports.exporting import FORMATS
from bertfeat.extraction.importing import import_vectors
from bertfeat.store.reader import Store
from tests.support.command_line import good, refused
from tests.support.places import ROOT, TESTS
from tests.support.vector_files import import_by_recipe, write_npy

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("no_fsync")]

CONLL = ROOT / "examples" / "data" / "wnut17_dev.conll"
LAYERS = ("layer_02", "layer_03")
HDF5 = ("neurox-hdf5", "structural-probes-hdf5")
ENDINGS = {"google-jsonl": ".jsonl", "word2vec": ".txt", "npy": "", "projector": "", **dict.fromkeys(HDF5, ".hdf5")}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Store:
    """A store of several shards, of which the last was appended."""
    folder = tmp_path_factory.mktemp("export")
    settings = {"model": str(tiny_folder), "levels": "token,word,sentence", "layers": "-2..-1", "shard_bytes": 30_000}
    blocks = CONLL.read_text("utf-8").split("\n\n")
    for name, some in (("first", blocks[:6]), ("more", blocks[6:8])):
        (folder / f"{name}.conll").write_text("\n\n".join(some) + "\n", "utf-8")
    bertfeat.extract(folder / "first.conll", folder / "store", word_pooling="first", **settings)
    found = bertfeat.append(folder / "store", folder / "more.conll")
    assert (len(found.manifest.shards) > 2, len(found)) == (True, 8)
    return found


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Words of which one has no vector, with texts and ids that no table of lines can hold as they are."""
    folder = tmp_path_factory.mktemp("gaps")
    vectors = np.array([[0, 1], [np.nan, np.nan], [2, 0.1], [-1, 1e-7], [65504, -0.0], [3, 4]], np.float32)
    rows = [("a", "New\tYork"), ("a", "is\u2028big"), ("b", "a\r\nb"), ("c", "'\"\\"), ("d", "x/y"), ("y/d", "x\0")]
    frame = pl.DataFrame(rows, ["doc_id", "word"], orient="row")
    frame.write_parquet(folder / "rows.parquet")
    settings = {"level": "word", "ids": folder / "rows.parquet", "store_dtype": "float32"}
    return import_vectors(write_npy(folder / "v.npy", vectors), folder / "store", **settings)


def layers_of(store: Store, level: str) -> np.ndarray[Any, Any]:
    return np.stack([store.numpy(level, name) for name in LAYERS])


def words_of(path: Path) -> list[str]:
    """Return the words of a file of word vectors."""
    folder = open_checkpoint(str(path)).static.file.parent
    return [*json.loads((folder / "tokenizer.json").read_bytes())["model"]["vocab"]][:-1]


@pytest.mark.promise("exports")
def test_npy_comes_back(store: Store, tmp_path: Path) -> None:
    for level in ("word", "sentence"):
        done = good("export", store.path, "--to", "npy", "-o", tmp_path / level, "--level", level, "--json")
        assert (done.json["output"], done.json["features"]) == (str(tmp_path / level), [*LAYERS])
        array = np.load(tmp_path / level / "vectors.npy")
        assert np.array_equal(array, layers_of(store, level).transpose(1, 0, 2))
        assert array.dtype == np.float16
        files = (tmp_path / level / "vectors.npy", tmp_path / level / "rows.jsonl")
        back = import_vectors(files[0], tmp_path / f"{level}-back", level=level, ids=files[1])
        assert np.array_equal(back.numpy(level, "layer_01"), store.numpy(level, "layer_03"))
        names = [column.name for column in store.schema(level).columns]
        assert back.polars(level, names).equals(store.polars(level, names))
    flags = ("--level", "token", "--layers=-1", "--limit", "4")
    good("export", store.path, "--to", "npy", "-o", tmp_path / "one", *flags)
    ids = store.polars("token", ["doc_id"])["doc_id"].to_numpy()
    assert np.array_equal(np.load(tmp_path / "one" / "vectors.npy"), store.numpy("token", "layer_03")[ids < 4])


@pytest.mark.promise("exports")
def test_google_lines_come_back(store: Store, tmp_path: Path) -> None:
    """The first piece of each word is the vector of the word, as the store has it with `word_pooling="first"`."""
    for level in ("token", "word"):
        path = tmp_path / f"{level}.jsonl"
        good("export", store.path, "--to", "google-jsonl", "-o", path, "--level", level)
        line = json.loads(path.read_text("utf-8").splitlines()[3])
        assert (line["linex_index"], line["doc_id"]) == (3, 3)
        own = store.polars(level, ["doc_id", level]).with_row_index().filter(pl.col("doc_id") == 3)
        assert [piece["token"] for piece in line["features"]] == own[level].to_list()
        for piece, row in zip(line["features"], own["index"], strict=True):
            values = np.array([layer["values"] for layer in piece["layers"]], np.float16)
            assert np.array_equal(values, layers_of(store, level)[:, row])
        back = import_by_recipe(path, tmp_path / level)
        for name, number in zip(LAYERS, ("layer_00", "layer_01"), strict=True):
            # WordPiece splits words at punctuation, which joined pieces cannot tell.
            expected = store.numpy(level, name)
            if level == "token":
                pieces = store.polars("token", ["token", "is_special"])
                expected = expected[~(pieces["token"].str.starts_with("##") | pieces["is_special"]).to_numpy()]
            assert np.array_equal(back.numpy("word", number), expected)


def embeddings_of_structural_probes(path: Path, sentences: list[list[str]], layer_index: int) -> list[Any]:
    """`generate_token_embeddings_from_hdf5` of structural-probes' data.py (Hewitt and Manning 2019), in a few lines."""
    import h5py

    found = []
    with h5py.File(path, "r") as file:
        indices = filter(lambda name: name != "sentence_to_index", list(file.keys()))
        for index in sorted(int(name) for name in indices):
            features = file[str(index)][layer_index]
            assert features.shape[0] == len(sentences[index])
            found.append(features)
    return found


def sentences_of(store: Store, level: str = "word") -> list[list[str]]:
    return store.polars(level, ["doc_id", level]).group_by("doc_id", maintain_order=True).all()[level].to_list()


@pytest.mark.promise("exports")
def test_hdf5_is_read_by_structural_probes_and_comes_back(store: Store, tmp_path: Path) -> None:
    for name in HDF5:
        path = tmp_path / f"{name}.hdf5"
        good("export", store.path, "--to", name, "-o", path, "--level", "word")
        for place, layer in enumerate(LAYERS):
            found = np.concatenate(embeddings_of_structural_probes(path, sentences_of(store), place))
            assert found.dtype == np.float32
            assert np.array_equal(found, store.numpy("word", layer))
        back = import_by_recipe(path, tmp_path / name)
        assert np.array_equal(back.numpy("word", "layer_01"), store.numpy("word", "layer_03"))
        # `generate_subword_embeddings_from_hdf5` wants [CLS] and [SEP], and no name that is not a number.
        good("export", store.path, "--to", name, "-o", path, "--level", "token", "--overwrite")
        pieces = sentences_of(store, "token")
        assert {(words[0], words[-1]) for words in pieces} == {("[CLS]", "[SEP]")}
        assert sum(map(len, embeddings_of_structural_probes(path, pieces, 1))) == store.n_rows("token")
        if name == "neurox-hdf5":
            assert back.polars("word", ["word"]).equals(store.polars("word", ["word"]))


def rows_of_projector(text: str) -> list[list[str]]:
    """`parseTensors` and `parseMetadata` of TensorBoard's data-provider.ts: lines without anything are left out."""
    return [line.split("\t") for line in text.split("\n") if line.strip()]


@pytest.mark.promise("exports")
def test_rows_without_a_vector_and_odd_texts(gaps: Store, tmp_path: Path) -> None:
    for to, name in (("projector", "p"), ("word2vec", "w.txt"), ("npy", "n"), *((to, f"{to}.hdf5") for to in HDF5)):
        done = good("export", gaps.path, "--to", to, "-o", tmp_path / name, "--json")
        assert (done.json["n_rows"], done.json["n_documents"], done.json["n_without_vector"]) == (6, 5, 1)
    kept = gaps.numpy("word", "embedding")[[0, 2, 3, 4, 5]]
    columns, *rows = rows_of_projector((tmp_path / "p" / "metadata.tsv").read_text("utf-8"))
    assert [row[columns.index("word")] for row in rows] == ["New York", "a b", "'\"\\", "x/y", "x\0"]
    assert {len(row) for row in rows} == {len(columns)}
    values = rows_of_projector((tmp_path / "p" / "vectors.tsv").read_text())
    assert np.array_equal(np.array(values, np.float32), kept)
    found = open_checkpoint(str(tmp_path / "w.txt")).static
    assert words_of(tmp_path / "w.txt") == ["New_York/a/0", "a_b/b/0", "'\"\\/c/0", "x_y/d/0", "x\0/y/d/0"]
    assert np.array_equal(found.read()[0][:-1], kept)
    flags = {"store_dtype": "float32"}
    ids = tmp_path / "n" / "rows.jsonl"
    arrays = import_vectors(tmp_path / "n" / "vectors.npy", tmp_path / "back", level="word", ids=ids, **flags)
    elmo = import_by_recipe(tmp_path / "structural-probes-hdf5.hdf5", tmp_path / "elmo", **flags)
    for back in (arrays, elmo):
        feature = back.features("word")[0].name
        assert np.array_equal(back.numpy("word", feature), gaps.numpy("word", "embedding"), equal_nan=True)


@pytest.mark.promise("kill-published")
@pytest.mark.parametrize("to", FORMATS)
def test_a_full_disk_leaves_nothing_and_the_next_run_starts_again(store: Store, tmp_path: Path, to: str) -> None:
    whole, out = tmp_path / f"whole{ENDINGS[to]}", tmp_path / f"out{ENDINGS[to]}"
    settings = {"to": to, "level": "word", "feature": None if FORMATS[to].has_layers else "layer_03"}
    bertfeat.export(store, whole, **settings)
    sizes = [file.stat().st_size for file in ([whole] if whole.is_file() else whole.iterdir())]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes) - 1, hard))
    try:
        with pytest.raises(RunError, match=r"file too large.*; raise the file size limit"):
            bertfeat.export(store, out, **settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == [whole.name]
    bertfeat.export(store, out, **settings)
    assert content_of(out) == content_of(whole)


def content_of(path: Path) -> Any:
    return {file.name: file.read_bytes() for file in path.iterdir()} if path.is_dir() else path.read_bytes()


def test_mistakes_are_one_line(store: Store, gaps: Store, tmp_path: Path) -> None:
    out, text, mine = tmp_path / "out", tmp_path / "w.txt", tmp_path / "mine.txt"
    mine.write_text("mine")
    words = ("--level", "word")
    for made, to, output, flags, said in (
        (store, "google-jsonl", out, words, "name a file that ends in .jsonl or .json"),
        (store, "npy", out, (*words, "--layers", "9"), "layer 9 is out of range"),
        (store, "word2vec", text, words, "several features at level word: layer_02, layer_03; name one: --feature"),
        (store, "word2vec", mine, words, "there is a file already"),
        (store, "google-jsonl", tmp_path / "g.jsonl", ("--level", "sentence"), "token or word"),
        (store, "neurox-hdf5", tmp_path / "n.hdf5", ("--level", "sentence"), "word"),
        (gaps, "google-jsonl", tmp_path / "g.jsonl", (), "1 of 6 word rows have no vector, and JSON has no"),
    ):
        assert said in refused("export", made.path, "--to", to, "-o", output, *flags)
    assert mine.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    good("export", gaps.path, "--to", "npy", "-o", out)
    assert "there is an export to npy already" in refused("export", gaps.path, "--to", "npy", "-o", out)


def python_with(module: str, variable: str) -> str:
    """Return an interpreter that has a module: this one, or the one that the environment names."""
    python = os.environ.get(variable) or (sys.executable if find_spec(module) else None)
    return python or pytest.skip(
        f"{module} is not installed; set {variable} to the python of an environment that has it"
    )


@pytest.mark.promise("exports")
@pytest.mark.peer
@pytest.mark.parametrize("level", ["word", "token"])
def test_neurox_reads_it(store: Store, tmp_path: Path, level: str) -> None:
    """`NEUROX_PYTHON` names the interpreter of an environment with NeuroX, h5py and torch."""
    python = python_with("neurox", "NEUROX_PYTHON")
    good("export", store.path, "--to", "neurox-hdf5", "-o", tmp_path / "n.hdf5", "--level", level)
    # NeuroX goes by the ending .json for these lines.
    good("export", store.path, "--to", "google-jsonl", "-o", tmp_path / "g.json", "--level", level)
    expected = np.concatenate([store.numpy(level, name) for name in LAYERS], axis=1)
    lengths = store.polars(level, ["doc_id"])["doc_id"].value_counts().sort("doc_id")["count"].to_list()
    for name in ("n.hdf5", "g.json"):
        script = [python, str(TESTS / "peers" / "neurox_activations.py"), str(tmp_path / name), str(tmp_path / "o.npy")]
        done = subprocess.run(script, check=True, timeout=300, capture_output=True, text=True)
        assert json.loads(done.stdout) == {"lengths": lengths, "n_layers": 2}
        assert np.array_equal(np.load(tmp_path / "o.npy").astype(np.float16), expected)


@pytest.mark.promise("exports")
@pytest.mark.peer
def test_gensim_reads_it(store: Store, gaps: Store, tmp_path: Path) -> None:
    """`STATIC_PYTHON` names the interpreter of an environment with gensim."""
    python = python_with("gensim", "STATIC_PYTHON")
    for made, feature in ((store, "layer_03"), (gaps, "embedding")):
        bertfeat.export(made, tmp_path / "w.vec", to="word2vec", level="word", feature=feature, overwrite=True)
        keys = words_of(tmp_path / "w.vec")
        (tmp_path / "keys.json").write_text(json.dumps([keys]), "utf-8")
        script = [python, str(TESTS / "peers" / "static_vectors.py"), "gensim", str(tmp_path / "w.vec")]
        subprocess.run([*script, str(tmp_path / "keys.json"), str(tmp_path / "o.npy")], check=True, timeout=300)
        kept = made.valid("word", feature)
        assert len(keys) == np.count_nonzero(kept)
        assert np.array_equal(np.load(tmp_path / "o.npy"), made.numpy("word", feature, "float32")[kept])
