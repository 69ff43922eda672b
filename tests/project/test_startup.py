"""The start of a command: what a mistake, a finished store and `inspect` import, one process for all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bertfeat
from tests.support.command_line import good

LIBRARIES = ("torch", "transformers", "huggingface_hub", "pandas", "scipy", "sklearn")
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
    loaded = [name for name in ("faiss", *{LIBRARIES!r}) if name in sys.modules]
    print(json.dumps([code, out.getvalue(), loaded]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A folder with inputs, a finished store and an index of it."""
    folder = tmp_path_factory.mktemp("startup")
    (folder / "five.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    (folder / "table.csv").write_text("text,label\none,a\ntwo,b\n")
    (folder / "rows.jsonl").write_text('{"text": "one", "label": "a"}\n')
    flags = ("--model", tiny_folder, "--level", "sentence", "--layers", "-1")
    good("extract", folder / "five.txt", "-o", folder / "store", *flags)
    bertfeat.build_index(folder / "store", folder / "index", level="sentence", feature="layer_03").close()
    return folder


def run_all(commands: list[list[str]], caches: list[str]) -> list[tuple[int, str, list[str]]]:
    argument = json.dumps(list(zip(commands, caches, strict=True)))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, argument], capture_output=True, text=True, timeout=120, check=True
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_mistakes_finished_stores_and_inspect_load_no_heavy_library(
    place: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    cold, warm, model = (
        str(tmp_path / "cache"),
        os.environ["BERTFEAT_CACHE"],
        ["--layers", "-1", "--model", str(tiny_folder)],
    )
    five, table, rows = (str(place / name) for name in ("five.txt", "table.csv", "rows.jsonl"))
    new, store, index = ["-o", str(tmp_path / "new")], str(place / "store"), str(place / "index")
    sentences = ["--level", "sentence"]
    cases: list[tuple[list[str], int, str, str]] = [
        (["extract", str(place / "none.txt"), *new, *model], 2, "no such file", cold),
        (["extract", table, *new, *model, "--text-column", "body"], 2, "no column 'body'", cold),
        (["extract", rows, *new, *model, "--text-column", "body"], 2, "no column 'body'", cold),
        (["extract", table, *new, *model, *sentences, "--keep-columns", "lable"], 2, "no column 'lable'", cold),
        (["extract", rows, *new, *model, *sentences, "--keep-columns", "lable"], 2, "no row has a column", warm),
        (["extract", five, *new, *model, "--layers", "last5"], 2, "--layers 'last5' is not a layer", cold),
        (["extract", five, *new, *model, "--layers", "4"], 2, "layer 4 is out of range", cold),
        (["extract", five, *new, *model, "--level", "wrod"], 2, "'wrod' must be one of", cold),
        (["extract", five, *new, *model, "--pooling", "avg"], 2, "'avg'", cold),
        (["extract", five, *new, *model, "--device", "tpu"], 2, "--device 'tpu' must be one of", cold),
        (["extract", five, *new, *model, "--max-length", "65"], 2, "--max-length 65 is more than", cold),
        (["extract", five, *new, "--model", "./none"], 2, "no such folder", cold),
        (["extract", five, "-o", store, *model, *sentences, "--device", "cpu"], 0, "already complete", warm),
        (["extract", five, "-o", store, *model, *sentences, "--layers", "0"], 2, "layers", warm),
        (["inspect", store], 0, "5 documents", warm),
        (["inspect", str(tiny_folder)], 0, "3 layers, 32 wide", warm),
        (["search", str(place / "none"), "one"], 2, "none", warm),
        (["search", index, "one", "-k", "0"], 2, "k 0 is below 1", warm),
        (["search", index, "one", "-k", "2", "--columns", "nope"], 2, "no column 'nope'", warm),
        (["search", index, "--queries", "-", "-k", "0"], 2, "k 0 is below 1", warm),
    ]
    found = run_all([arguments for arguments, *_ in cases], [cache for *_, cache in cases])
    for (arguments, code, said, _), (ended, printed, loaded) in zip(cases, found, strict=True):
        assert (ended, said in printed) == (code, True), (arguments, ended, printed)
        assert set(loaded) <= ({"faiss"} if arguments[0] == "search" else set()), (arguments, loaded)
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
