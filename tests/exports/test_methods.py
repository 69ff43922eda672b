"""`bertfeat inspect STORE --methods`: the paragraph says what the store records, and cites what was used."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import bertfeat
from bertfeat.extraction.importing import import_vectors
from tests.support.command_line import good, refused
from tests.support.vector_files import numbers, write_npy

ROOT = Path(__file__).parents[2]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "c.txt").write_text("the bank\nshe sells sea shells by the sea shore\n")
    return tmp_path / "c.txt"


def methods_of(store: Path) -> tuple[str, str]:
    found = good("inspect", store, "--methods", "--json").json
    assert good("inspect", store, "--methods").out == f"{found['methods']}\n\n{found['bibtex']}\n"
    return found["methods"], found["bibtex"]


def test_the_paragraph_has_the_values_of_the_plan(tiny_folder: Path, corpus: Path, tmp_path: Path) -> None:
    settings = {"levels": "token,word,sentence", "layers": "0,-1", "combine": "none,mean", "word_pooling": "max"}
    settings |= {"prompt": "find it:", "store_dtype": "float32", "positions": "0,last"}
    store = bertfeat.extract(
        corpus, tmp_path / "s", model=str(tiny_folder), max_length=16, stride=3, include_special_tokens=True, **settings
    )
    said, bibtex = methods_of(store.path)
    plan, counts = store.plan, store.manifest.totals.counts
    assert plan.model.weights_sha256
    columns = "layer_00 (32 values), layer_03 (32 values), mean_00_03 (32 values)"
    for words in (
        f"2 documents ({counts['n_tokens']} tokens) were encoded by {tiny_folder.name} (bert, 3 blocks",
        f"sha256 of its weights {plan.model.weights_sha256})",
        *(f"{name} {version}" for name, version in plan.metadata["versions"].items()),
        f"computed in {plan.fields['compute_dtype']} on {plan.fields['device_kind']} and stored in float32.",
        "The prompt 'find it:' was put before each document.",
        "Only chosen rows were kept: positions [-1, 0].",
        "in windows of at most 16 tokens that share 3; 0 tokens were cut off.",
        f"Level token: {store.n_rows('token')} rows, {columns}.",
        f"Level word: {store.n_rows('word')} rows, {columns}; pooling: max.",
        f"Level sentence: 2 rows, {columns}; pooling: mean of all tokens.",
    ):
        assert words in said
    assert str(tiny_folder.parent) not in said + bibtex
    assert bibtex.count("@inproceedings") == 2
    assert bibtex.endswith(f"Cite {tiny_folder.name} too, as its authors ask.")


def test_other_vectors_are_not_called_contextual(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("the 1 2 3\nbank 2 3 4\nsea 0 0 1\n")
    bertfeat.extract(corpus, tmp_path / "static", model=str(tmp_path / "glove.txt"), levels="sentence", pooling="max")
    vectors = write_npy(tmp_path / "v.npy", numbers(3, 2))
    imported = import_vectors(vectors, tmp_path / "imported", level="sentence", model="mine")
    (file,) = imported.metadata["imported"]
    said, bibtex = methods_of(imported.path)
    assert said == (
        f"Vectors of mine for 3 documents were imported from v.npy (sha256 {file['sha256']}) with bertfeat "
        f"{bertfeat.__version__} and stored in float16. Level sentence: 3 rows, embedding (2 values)."
    )
    static, static_bibtex = methods_of(tmp_path / "static")
    assert "encoded by glove.txt (static vectors; sha256" in static
    assert static.endswith("Level sentence: 2 rows, layer_00 (3 values); pooling: max without special tokens.")
    for text in (said, static):
        assert "block" not in text
        assert "window" not in text
    for entries in (bibtex, static_bibtex):
        assert entries.count("@") == 1
    assert "a model; --methods takes a store" in refused("inspect", "minilm", "--methods")


def test_the_entries_are_those_of_the_citation_file() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    entries = (ROOT / "bertfeat" / "exports" / "methods.bib").read_text("utf-8")
    (paper,) = cited["references"]
    authors = " and ".join(f"{who['family-names']}, {who['given-names']}" for who in paper["authors"])
    for text in (cited["title"], cited["authors"][0]["name"], authors, paper["title"].removeprefix("BERT")):
        assert f"{text}}}" in entries
    for text in (f"{{{paper['year']}}}", f"{{{paper['start']}--{paper['end']}}}", paper["identifiers"][0]["value"]):
        assert text in entries
