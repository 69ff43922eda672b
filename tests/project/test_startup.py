"""The start of a command: the libraries that mistakes, finished stores and `inspect` load, in one process for all."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import bertfeat
from tests.support.command_line import good
from tests.support.vector_files import write_npy

LIBRARIES = ("torch", "transformers", "huggingface_hub", "pandas", "scipy", "sklearn", "polars", "pyarrow", "faiss")
# The libraries that the commands may load, in the order in which they run.
_TABLES = frozenset({"polars", "pyarrow"})
ALLOWED = {
    **dict.fromkeys(("inspect", "probe", "convert"), frozenset[str]()),
    **dict.fromkeys(("compact", "layers", "export", "import", "extract"), _TABLES),
    **dict.fromkeys(("search", "serve", "map"), _TABLES | {"faiss"}),
    "card": _TABLES | {"faiss", "huggingface_hub"},
}
# Runs commands in one process; prints what each ended with, and which libraries were loaded by then.
DRIVER = f"""
import contextlib, io, json, os, sys
from bertfeat.cli import main

for arguments, cache in json.loads(sys.argv[1]):
    sys.argv, os.environ["BERTFEAT_CACHE"], code = ["bertfeat", *arguments], cache, None
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main()
        except SystemExit as done:
            code = done.code
    loaded = [name for name in {LIBRARIES!r} if name in sys.modules]
    print(json.dumps([code, out.getvalue(), loaded]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A folder with inputs, a finished store, and an index and a probe of it."""
    folder = tmp_path_factory.mktemp("startup")
    (folder / "five.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    (folder / "table.csv").write_text("text,label\none,a\ntwo,b\n")
    (folder / "glove.txt").write_text("one 1 2\n")
    # The first reading of a file of word vectors parses it, with polars; what it finds is kept.
    good("inspect", folder / "glove.txt")
    flags = ("--model", tiny_folder, "--level", "sentence", "--layers", "-1")
    good("extract", folder / "five.txt", "-o", folder / "store", *flags)
    bertfeat.build_index(folder / "store", folder / "index", level="sentence", feature="layer_03").close()
    bertfeat.import_vectors(write_npy(folder / "bare.npy", np.eye(3)), folder / "bare", level="sentence")
    bertfeat.build_index(folder / "bare", folder / "bare-index").close()
    labels = pl.DataFrame({"doc_id": range(5), "label": list("abaab")})
    bertfeat.fit_probe(folder / "store", "label", labels=labels, head="centroid").save(folder / "probe")
    return folder


def run_all(commands: list[list[str]], caches: list[str]) -> list[tuple[int, str, list[str]]]:
    argument = json.dumps(list(zip(commands, caches, strict=True)))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, argument], capture_output=True, text=True, timeout=120, check=True
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.promise("quick")
def test_a_command_loads_no_library_that_it_does_not_need(place: Path, tiny_folder: Path, tmp_path: Path) -> None:
    cold, warm = str(tmp_path / "cache"), os.environ["BERTFEAT_CACHE"]
    # A config that no run has seen needs transformers.
    shutil.copytree(Path(warm) / "models", Path(cold) / "models")
    model = ["--layers", "-1", "--model", str(tiny_folder)]
    five, table = str(place / "five.txt"), str(place / "table.csv")
    new, store, index = ["-o", str(tmp_path / "new")], str(place / "store"), str(place / "index")
    probe, none = str(place / "probe"), str(place / "none")
    sentences, static = ["--level", "sentence"], ["--model", str(place / "glove.txt")]
    new_map = ["-o", str(tmp_path / "new.parquet")]
    vectors = str(write_npy(place / "vectors.npy", np.eye(5)))
    # Libraries stay loaded: a command comes after those that may load less.
    cases: list[tuple[list[str], int, str, str]] = [
        (["inspect", store], 0, "documents", warm),
        (["inspect", str(tiny_folder)], 0, "hidden size", warm),
        (["inspect", index], 0, "vectors", warm),
        (["inspect", probe], 0, "centroid", warm),
        (["probe", "fit", none, *new], 2, "no such folder", warm),
        (["probe", "fit", store, *new, "--head", "lgreg"], 2, "did you mean 'logreg'", warm),
        (["probe", "fit", store, "-o", probe], 2, "there is a probe already", warm),
        (["convert", str(tiny_folder), *new], 2, "its weights need no conversion", warm),
        (["export", store, *new, "--to", "npz"], 2, "did you mean 'npy'", warm),
        (["compact", none], 2, "no such folder", warm),
        (["compact", store], 0, "1 shard", warm),
        (["layers", none, *new], 2, "no such folder", warm),
        (["import", vectors, *new, *sentences, "--ids", table], 2, "table.csv has 2 rows", warm),
        (["import", vectors, "-o", str(tmp_path / "imported"), *sentences], 0, "sentence 5", warm),
        (["extract", f"{none}.txt", *new, *model], 2, "no such file", cold),
        (["extract", table, *new, *model, "--text-column", "body"], 2, "no column 'body'", cold),
        (["extract", table, *new, *model, *sentences, "--keep-columns", "lable"], 2, "no column 'lable'", cold),
        (["extract", five, *new, *model[2:], "--layers", "last5"], 2, "--layers 'last5' is not a layer", cold),
        (["extract", five, *new, *model, "--level", "wrod"], 2, "'wrod' must be one of", cold),
        (["extract", five, *new, *model, "--device", "tpu"], 2, "--device 'tpu' must be one of", cold),
        (["extract", five, *new, *model, "--max-length", "65"], 2, "--max-length 65 is more than", cold),
        (["extract", five, *new, *static, *sentences, "--layers", "3"], 2, "are layer 0 only", cold),
        (["extract", five, *new, "--model", "./none"], 2, "no such folder", cold),
        (["extract", five, "-o", store, *model, *sentences, "--device", "cpu"], 0, "already complete", warm),
        (["extract", five, "-o", store, *model[2:], *sentences, "--layers", "0"], 2, "layers", warm),
        (["map", none, *new_map, "--no-page"], 2, "no such folder", warm),
        (["map", store, *new_map, "--no-page", "--word", "a", *sentences], 2, "a row is a whole text", warm),
        (["search", none, "one"], 2, "none", warm),
        (["search", index, "one", "-k", "0"], 2, "k 0 is below 1", warm),
        (["search", index, "one", "-k", "2", "--columns", "nope"], 2, "no column 'nope'", warm),
        (["serve", none], 2, "none", warm),
        (["serve", str(place / "bare-index"), "--port", "0"], 2, "no text to show", warm),
    ]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases.append((["serve", index, "--port", port], 2, f"port {port} of 127.0.0.1: Address already in use", warm))
        cases.append((["card", none], 2, "no such folder", warm))
        cases.append((["card", store], 0, "# Features of", warm))
        found = run_all([arguments for arguments, *_ in cases], [cache for *_, cache in cases])
    for (arguments, code, said, _), (ended, printed, loaded) in zip(cases, found, strict=True):
        assert (ended, said in printed) == (code, True), (arguments, ended, printed)
        assert set(loaded) <= ALLOWED[arguments[0]], (arguments, loaded)
    assert not (tmp_path / "new").exists()


def test_a_finished_store_is_compared_with_the_whole_plan(place: Path, tiny_folder: Path, tmp_path: Path) -> None:
    """The quick answer checks what a run would: inputs, settings and the model's files."""

    def again(*flags: str, model: Path = tiny_folder, corpus: Path = place / "five.txt") -> Any:
        from tests.support.command_line import bertfeat as run

        return run(
            "extract", corpus, "-o", place / "store", "--model", model, "--level", "sentence", "--layers", "-1", *flags
        )

    assert "already complete" in again().out
    changed = tmp_path / "five.txt"
    changed.write_text("one\ntwo\nthree\nfour\nsix\n")
    other = tmp_path / "model"
    other.mkdir()
    for path in tiny_folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    assert "already complete" in again(model=other).out
    settings = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 63}))
    for result in (again(corpus=changed), again("--stride", "3"), again(model=other)):
        assert (result.code, result.out) == (2, "")
