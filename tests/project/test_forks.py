"""Forked processes, as multiprocessing's default on Linux before Python 3.14: each call works or ends with one line."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import bertfeat

CODE = """
    import os, sys, numpy as np, bertfeat
    model, folder, before, *calls = sys.argv[1:]
    store, index, fresh = (os.path.join(folder, name) for name in ("store", "index", "fresh"))

    def embed():
        return bertfeat.embed(["one fox"] * 40, model, layers=-1).shape

    def product():
        import torch
        return float((torch.ones(900, 900) @ torch.ones(900, 900)).sum())

    def nearest():
        import faiss
        vectors = np.random.default_rng(0).random((3000, 32), np.float32)
        found = faiss.IndexFlatL2(32)
        found.add(vectors)
        return found.search(vectors, 3)[0].shape

    def polars():
        return bertfeat.open_store(store).polars("sentence").height

    def rows():
        return bertfeat.open_store(store).rows("sentence", [1, 0], ["text"]).height

    def batches():
        return [batch.start for batch in bertfeat.open_store(store).batches("sentence", -1, columns=["text"])]

    def numpy():
        opened = bertfeat.open_store(store)
        return opened.numpy("sentence", -1).shape, opened.arrow("sentence").num_rows

    def search():
        return len(bertfeat.open_index(index, store=store).search("one fox", 1))

    def vectors():
        from pathlib import Path
        from bertfeat.ann.folder import read_description
        from bertfeat.ann.index import load_index
        opened = load_index(Path(index), read_description(Path(index)))
        return opened.search(np.ones((40, 32), np.float32), 2)

    def extract():
        return len(bertfeat.extract(os.path.join(folder, "a.txt"), fresh, model=model, levels="sentence", layers=-1))

    # Each child would import these again; an import computes nothing.
    import torch, transformers, faiss
    import bertfeat.extraction.run, bertfeat.encoder.loading, bertfeat.search.index
    torch.set_num_threads(2)  # as on any machine with several cores
    for name in filter(None, before.split(",")):
        globals()[name]()
    for name in calls:
        child = os.fork()
        if not child:
            try:
                globals()[name]()
            except bertfeat.BertfeatError as error:
                print(name, "refused:", error, flush=True)
            else:
                print(name, "works", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forks")
    (folder / "a.txt").write_text("one fox\ntwo dogs\n")
    store = bertfeat.extract(folder / "a.txt", folder / "store", model=str(tiny_folder), levels="sentence", layers=-1)
    bertfeat.build_index(store, folder / "index")
    return folder


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fork is a default of Linux")
@pytest.mark.parametrize(
    ("before", "works", "refused"),
    [
        ("", "polars rows extract search embed", ""),
        ("product,nearest,embed", "embed vectors batches", ""),
        ("polars", "numpy embed", "polars rows batches search extract"),
    ],
)
def test_a_fork_works_or_is_refused(
    folder: Path, tiny_folder: Path, before: str, works: str, refused: str, tmp_path: Path
) -> None:
    calls = [*works.split(), *refused.split()]
    command = [sys.executable, "-c", textwrap.dedent(CODE), tiny_folder, folder, before, *calls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert list(lines) == calls, done.stderr
    assert {name for name, said in lines.items() if said == "works"} == set(works.split()), lines
    assert all("spawn" in lines[name] for name in refused.split())
