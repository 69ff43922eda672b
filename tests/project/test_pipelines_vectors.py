"""Recipes that make tables of vectors from HDF5 and from google's JSON lines: import gives their rows and vectors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.pipeline_runs import refusal
from tests.support.vector_files import (
    PIECES,
    RECIPE,
    SENTENCES,
    google_line,
    google_vectors,
    import_by_recipe,
    numbers,
    sentence_arrays,
    write_conll,
    write_google,
    write_hdf5,
    write_table,
)

WORDS = [word for words in SENTENCES for word in words]


def half(array: npt.ArrayLike) -> npt.NDArray[np.float16]:
    """Return values as a store of float16 holds them."""
    return np.asarray(array).astype(np.float16)


def said(path: Path, ids: Path | None = None, *flags: object) -> str:
    out = path.parent / "out"
    line = refusal(RECIPE, "--vectors", path, *(["--ids", ids] if ids else []), *flags, "--output", out)
    assert not [*out.glob("*")]
    return line


def test_hdf5_has_a_dataset_for_each_sentence(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    arrays = sentence_arrays()
    probes = write_hdf5(tmp_path / "probes.hdf5", arrays)
    store = import_by_recipe(probes, tmp_path / "s", ids=write_conll(tmp_path / "w.conll"))
    frame = store.polars("word")
    assert frame["word"].to_list() == WORDS
    assert frame["label"].to_list() == [f"L{len(word)}" for word in WORDS]
    for layer in range(3):
        wanted = np.concatenate([array[layer] for array in arrays.values()])
        assert np.array_equal(store.numpy("word", layer), half(wanted))
    bare = import_by_recipe(probes, tmp_path / "bare").polars("word", ["doc_id", "word_index", "word"])
    assert bare.rows() == [(d, w, None) for d, words in enumerate(SENTENCES) for w in range(len(words))]
    # allennlp names the sentences, also where one vector stands for all layers.
    single = {name: array.mean(axis=0) for name, array in arrays.items()}
    elmo = write_hdf5(tmp_path / "elmo.h5", single, SENTENCES)
    (tmp_path / "ids.txt").write_text("a\nb\nc\nd\n")
    named = import_by_recipe(elmo, tmp_path / "elmo", ids=tmp_path / "ids.txt")
    assert [feature.name for feature in named.features("word")] == ["embedding"]
    assert named.polars("word")["word"].to_list() == WORDS
    assert named.polars("word")["doc_id"].unique(maintain_order=True).to_list() == list("abcd")


def test_words_that_are_not_those_of_the_vectors(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    probes = write_hdf5(tmp_path / "p.hdf5", sentence_arrays())
    elmo = write_hdf5(tmp_path / "e.hdf5", sentence_arrays(), SENTENCES)
    google = write_google(tmp_path / "g.jsonl")
    fewer, other = [*SENTENCES[:1], ["It"], *SENTENCES[2:]], [["The", "bench", "closed"], *SENTENCES[1:]]
    for path, sentences, wanted in [
        (probes, fewer, "sentence 1 (It) has 1 words, the vectors have 2"),
        (probes, SENTENCES[:3], "w.conll: has 3 sentences, the vectors have more"),
        (probes, [*SENTENCES, ["More"]], "w.conll: has more sentences than the vectors, which have 4"),
        (elmo, other, "sentence 0 (The bench closed) has the word 'bench' at 1, the vectors have 'bank'"),
        (google, [["The", "bank"]], "sentence 0 (The bank) has 2 words, and the vectors continue with 'closed'"),
        (google, other, "has the word 'bench', and the vectors have the piece 'bank'"),
        (google, [[*SENTENCES[0], "early"]], "has the word 'early', and the vectors have no more pieces"),
    ]:
        assert wanted in said(path, write_conll(tmp_path / "w.conll", sentences))


def test_files_that_are_not_those_of_the_programs(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    line = json.loads(google_line(0, PIECES[1], numbers(4, 1, 2), [0]))
    path, where = tmp_path / "g.jsonl", "g.jsonl:1: cannot be read as a line of extract_features.py"
    for changed in ({"linex_index": 7}, {"features": []}):
        path.write_text(json.dumps({**line, **changed}) + "\n")
        assert where in said(path)
    assert "cannot be read as sentences 0, 1, ..." in said(write_hdf5(tmp_path / "p.hdf5", {"1": numbers(2, 3, 4)}))


def test_word_pieces_become_words(tmp_path: Path) -> None:
    path = write_google(tmp_path / "g.jsonl")
    pieces = google_vectors()
    store = import_by_recipe(path, tmp_path / "own")
    assert store.polars("word")["word"].to_list() == [
        *("the", "bank", "closed", "it", "rained", "we", "crossed", "the", "elan", "unaffably", "[UNK]")
    ]
    # The file has the last layer first; the first piece of each word.
    firsts = np.concatenate([p[1:-1] if n != 2 else p[[1, 2, 3, 4, 6]] for n, p in enumerate(pieces)])
    assert np.array_equal(store.numpy("word", 1), half(firsts[:, 0]))
    assert np.array_equal(store.numpy("word", 0), half(firsts[:, 1]))
    for name in ("w.conll", "t.csv"):
        given = write_conll(tmp_path / name) if name == "w.conll" else write_table(tmp_path / name)
        words = import_by_recipe(path, tmp_path / name[0], ids=given)
        assert words.polars("word")["word"].to_list() == WORDS
        assert np.array_equal(words.numpy("word", 0), half(firsts[:, 1]))


def test_word_pieces_become_texts(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl.gz"
    path.write_bytes(gzip.compress(write_google(tmp_path / "g.jsonl", (1, 3)).read_bytes()))
    pieces = google_vectors()
    (tmp_path / "t.jsonl").write_text("".join(f'{{"text": "text {n}", "doc_id": {n + 5}}}\n' for n in range(4)))
    mean = import_by_recipe(path, tmp_path / "mean", "sentence", tmp_path / "t.jsonl")
    assert [feature.name for feature in mean.features("sentence")] == ["layer_01", "layer_03"]
    assert mean.polars("sentence", ["doc_id", "text"]).row(1) == (6, "text 1")
    assert np.array_equal(mean.numpy("sentence", 3)[1], half(pieces[1][1:-1, 1].astype(np.float64).mean(axis=0)))
