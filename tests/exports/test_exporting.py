"""Exports: other tools and `bertfeat import` read back the rows and vectors of the store."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.durable import steps
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import RunError
from bertfeat.exports import exporting
from bertfeat.exports.exporting import FORMATS
from bertfeat.extraction.importing import import_vectors
from bertfeat.store.reader import Store
from tests.support.command_line import good, refused
from tests.support.places import ROOT, TESTS
from tests.support.vector_files import (
    import_by_recipe,
    numbers,
    sentence_arrays,
    write_conll,
    write_npy,
)

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
    frame = pl.DataFrame(rows, ["doc_id", "word"], orient="row").with_columns(note=None, raw=b"\xff", raws=[b"\xff"])
    frame.write_parquet(folder / "rows.parquet")
    settings = {"level": "word", "ids": folder / "rows.parquet", "store_dtype": "float32"}
    return import_vectors(write_npy(folder / "v.npy", vectors), folder / "store", **settings)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a few documents at a time."""
    monkeypatch.setattr(exporting, "_BLOCK_BYTES", 8_000)


def layers_of(store: Store, level: str) -> np.ndarray[Any, Any]:
    return np.stack([store.numpy(level, name) for name in LAYERS])


def words_of(path: Path) -> list[str]:
    """Return the words of a file of word vectors."""
    folder = open_checkpoint(str(path)).static.file.parent
    return [*json.loads((folder / "tokenizer.json").read_bytes())["model"]["vocab"]][:-1]


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
    good("export", store.path, "--to", "npy", "-o", tmp_path / "one", "--level", "token", "--layers=-1", "--limit", "4")
    ids = store.polars("token", ["doc_id"])["doc_id"].to_numpy()
    assert np.array_equal(np.load(tmp_path / "one" / "vectors.npy"), store.numpy("token", "layer_03")[ids < 4])


def test_google_lines_come_back(store: Store, tmp_path: Path) -> None:
    """The first piece of each word is the vector of the word, as the store has it with `word_pooling="first"`."""
    for level in ("token", "word"):
        path = tmp_path / f"{level}.jsonl"
        good("export", store.path, "--to", "google-jsonl", "-o", path, "--level", level)
        line = json.loads(path.read_text("utf-8").splitlines()[3])
        assert [*line] == ["linex_index", "doc_id", "features"]
        assert (line["linex_index"], line["doc_id"]) == (3, 3)
        own = store.polars(level, ["doc_id", level]).with_row_index().filter(pl.col("doc_id") == 3)
        assert [piece["token"] for piece in line["features"]] == own[level].to_list()
        for piece, row in zip(line["features"], own["index"], strict=True):
            assert [*piece] == ["token", "layers"]
            assert [[*layer] for layer in piece["layers"]] == [["index", "values"]] * 2
            assert [layer["index"] for layer in piece["layers"]] == [-2, -1]
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

    observations = [SimpleNamespace(sentence=words) for words in sentences]
    found = []
    with h5py.File(path, "r") as file:
        indices = filter(lambda name: name != "sentence_to_index", list(file.keys()))
        for index in sorted(int(name) for name in indices):
            features = file[str(index)][layer_index]
            assert features.shape[0] == len(observations[index].sentence)
            found.append(features)
    return found


def sentences_of(store: Store, level: str = "word") -> list[list[str]]:
    return store.polars(level, ["doc_id", level]).group_by("doc_id", maintain_order=True).all()[level].to_list()


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
        import h5py

        # `generate_subword_embeddings_from_hdf5` wants [CLS] and [SEP], and no name that is not a number.
        good("export", store.path, "--to", name, "-o", path, "--level", "token", "--overwrite")
        pieces = sentences_of(store, "token")
        assert {(words[0], words[-1]) for words in pieces} == {("[CLS]", "[SEP]")}
        assert sum(map(len, embeddings_of_structural_probes(path, pieces, 1))) == store.n_rows("token")
        # Names of the documents, and words where the file has them.
        with h5py.File(path) as file:
            assert file["7"].attrs["doc_id"] == store.polars("word", ["doc_id"])["doc_id"].to_list()[-1]
            assert ("sentence_to_index" in file) == (name == "neurox-hdf5")
        if name == "neurox-hdf5":
            assert back.polars("word", ["word"]).equals(store.polars("word", ["word"]))


def test_word2vec_has_unique_keys_and_is_a_model(store: Store, tmp_path: Path, tiny_folder: Path) -> None:
    """A corpus of single words with themselves as ids makes static vectors of these words."""
    words = ["bank", "river", "money"]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps({"text": word, "id": word}) + "\n" for word in words))
    settings = {"model": str(tiny_folder), "levels": "sentence", "layers": "-1", "id_column": "id"}
    listed = bertfeat.extract(tmp_path / "words.jsonl", tmp_path / "listed", **settings)
    good("export", listed.path, "--to", "word2vec", "-o", tmp_path / "v.txt")
    found = bertfeat.Encoder(str(tmp_path / "v.txt")).words(["money bank"])["layer_00"].to_list()
    assert np.array_equal(np.array(found, np.float16), listed.numpy("sentence", "layer_03")[[2, 0]])
    flags = ("--feature", "layer_03", "--level", "word", "--limit", "5")
    good("export", store.path, "--to", "word2vec", "-o", tmp_path / "w.txt", *flags)
    header, *lines = (tmp_path / "w.txt").read_text("utf-8").splitlines()
    keys = [line.split(" ")[0] for line in lines]
    assert header.split() == [str(len(set(keys))), "32"]
    assert keys[0] == "Stabilized/0/0"


def rows_of_projector(text: str) -> list[list[str]]:
    """`parseTensors` and `parseMetadata` of TensorBoard's data-provider.ts: lines without anything are left out."""
    return [line.split("\t") for line in text.split("\n") if line.strip()]


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
    settings = {"store_dtype": "float32"}
    ids = tmp_path / "n" / "rows.jsonl"
    arrays = import_vectors(tmp_path / "n" / "vectors.npy", tmp_path / "back", level="word", ids=ids, **settings)
    elmo = import_by_recipe(tmp_path / "structural-probes-hdf5.hdf5", tmp_path / "elmo", **settings)
    for back in (arrays, elmo):
        feature = back.features("word")[0].name
        assert np.array_equal(back.numpy("word", feature), gaps.numpy("word", "embedding"), equal_nan=True)
    assert arrays.polars("word", ["doc_id", "word"]).equals(gaps.polars("word", ["doc_id", "word"]))
    # JSON has no bytes.
    assert {*arrays.polars("word", ["raw", "raws"]).iter_rows()} == {(r"b'\xff'", r"[b'\xff']")}


def many(folder: Path) -> Store:
    """A store of words in four shards."""
    arrays = [array.transpose(1, 0, 2) for array in sentence_arrays(2, 3).values()]
    vectors = write_npy(folder / "v.npy", np.concatenate(arrays))
    settings = {"level": "word", "ids": write_conll(folder / "c.conll"), "shard_bytes": 1}
    store = import_vectors(vectors, folder / "s", **settings)
    assert len(store.plan.shards) == 4
    return store


class Stopped(BaseException):
    """An interruption at a step."""


@pytest.mark.parametrize("to", FORMATS)
def test_a_stop_or_a_full_disk_leaves_nothing_and_the_next_run_starts_again(
    tmp_path: Path, to: str, capfd: pytest.CaptureFixture[str]
) -> None:
    store, whole, out = many(tmp_path), tmp_path / f"whole{ENDINGS[to]}", tmp_path / f"out{ENDINGS[to]}"
    settings = {"to": to, "feature": None if FORMATS[to].has_layers else "layer_01"}
    bertfeat.export(store, whole, **settings)

    def stop(name: str) -> None:
        if name in ("export.synced", "folder.synced"):
            raise Stopped

    with mock.patch.object(steps, "hook", stop), pytest.raises(Stopped):
        bertfeat.export(store, out, **settings)
    sizes = [file.stat().st_size for file in ([whole] if whole.is_file() else whole.iterdir())]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (150, max(sizes) - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(RunError, match=r"file too large.*; raise the file size limit"):
                bertfeat.export(store, out, **settings)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not out.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    bertfeat.export(store, out, **settings)
    assert content_of(out) == content_of(whole)
    # h5py reports what it cannot write when it frees its objects.
    assert capfd.readouterr() == ("", "")


def content_of(path: Path) -> Any:
    return {file.name: file.read_bytes() for file in path.iterdir()} if path.is_dir() else path.read_bytes()


def test_mistakes_are_one_line(store: Store, gaps: Store, tmp_path: Path) -> None:
    out, text, mine = tmp_path / "out", tmp_path / "w.txt", tmp_path / "mine.txt"
    mine.write_text("mine")
    one = write_npy(tmp_path / "one.npy", numbers(2, 1))
    (tmp_path / "ids.txt").write_text("a b\nc\n")
    spaced = import_vectors(one, tmp_path / "spaced", level="sentence", ids=tmp_path / "ids.txt")
    (tmp_path / "rows.jsonl").write_text('{"doc_id": "a"}\n{"doc_id": "b"}\n')
    wordless = import_vectors(one, tmp_path / "wordless", level="word", ids=tmp_path / "rows.jsonl")
    nothing = np.full((2, 2), np.nan, np.float32)
    nothing = import_vectors(write_npy(tmp_path / "n.npy", nothing), tmp_path / "nothing", level="sentence")
    words = ("--level", "word")
    for made, to, output, flags, said in (
        (store, "npz", out, (), "--to 'npz'"),
        (store, "google-jsonl", out, words, "name a file that ends in .jsonl or .json"),
        (store, "npy", out, (*words, "--layers", "9"), "layer 9 is out of range"),
        (store, "npy", out, (*words, "--feature", "layer_01"), "layer_01"),
        (store, "npy", out, (*words, "--feature", "layer_02", "--layers", "2"), "drop one"),
        (store, "word2vec", text, words, "several features at level word: layer_02, layer_03; name one: --feature"),
        (store, "word2vec", mine, words, "there is a file already"),
        (store, "npy", tmp_path, words, "holds files that are not part of an export to npy"),
        (store, "google-jsonl", tmp_path / "g.jsonl", ("--level", "sentence"), "token or word"),
        (spaced, "neurox-hdf5", tmp_path / "n.hdf5", (), "this needs level word or token"),
        (spaced, "word2vec", text, (), "doc_id 'a b' is empty or has whitespace"),
        (nothing, "npy", out, (), "no row at level sentence has a vector"),
        (gaps, "google-jsonl", tmp_path / "g.jsonl", (), "1 of 6 word rows have no vector, and JSON has no"),
        (wordless, "word2vec", text, (), "rows of level word have no words; import the"),
        (wordless, "neurox-hdf5", tmp_path / "n.hdf5", (), "rows of level word have no words"),
    ):
        assert said in refused("export", made.path, "--to", to, "-o", output, *flags)
    assert mine.read_text() == "mine"
    assert not out.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    good("export", gaps.path, "--to", "word2vec", "-o", mine, "--overwrite")
    for _ in range(2):
        good("export", gaps.path, "--to", "npy", "-o", out, "--overwrite")
    assert "there is an export to npy already" in refused("export", gaps.path, "--to", "npy", "-o", out)


@pytest.mark.peer
@pytest.mark.parametrize("level", ["word", "token"])
def test_neurox_reads_it(store: Store, tmp_path: Path, level: str) -> None:
    """`NEUROX_PYTHON` names the interpreter of an environment with NeuroX, h5py and torch."""
    python = os.environ.get("NEUROX_PYTHON") or (sys.executable if find_spec("neurox") else None)
    if python is None:
        pytest.skip("NeuroX is not installed; point NEUROX_PYTHON at the python of an environment that has it")
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


@pytest.mark.peer
def test_gensim_reads_it(store: Store, gaps: Store, tmp_path: Path) -> None:
    """`STATIC_PYTHON` names the interpreter of an environment with gensim."""
    python = os.environ.get("STATIC_PYTHON") or (sys.executable if find_spec("gensim") else None)
    if python is None:
        pytest.skip("gensim is not installed; point STATIC_PYTHON at the python of an environment that has it")
    for made, feature in ((store, "layer_03"), (gaps, "embedding")):
        bertfeat.export(made, tmp_path / "w.vec", to="word2vec", level="word", feature=feature, overwrite=True)
        keys = words_of(tmp_path / "w.vec")
        (tmp_path / "keys.json").write_text(json.dumps([keys]), "utf-8")
        script = [python, str(TESTS / "peers" / "static_vectors.py"), "gensim", str(tmp_path / "w.vec")]
        subprocess.run([*script, str(tmp_path / "keys.json"), str(tmp_path / "o.npy")], check=True, timeout=300)
        kept = made.valid("word", feature)
        assert len(keys) == np.count_nonzero(kept)
        assert np.array_equal(np.load(tmp_path / "o.npy"), made.numpy("word", feature, "float32")[kept])
