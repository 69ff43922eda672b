"""Forks, Linux's default before Python 3.14, work or end with one line; threads restore what they change for all."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from transformers.utils import logging as transformers_logging

import bertfeat
from bertfeat.encoder import loading
from bertfeat.errors import checkpoint_errors

CODE = """
    import os, sys, numpy as np, bertfeat
    model, folder, *phases = sys.argv[1:]
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
        return [batch.rows.start for batch in bertfeat.open_store(store).batches("sentence", -1, columns=["text"])]

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

    # Each fork would import these again; an import computes nothing.
    import torch, transformers, faiss
    import bertfeat.extraction.run, bertfeat.encoder.loading, bertfeat.search.index
    torch.set_num_threads(2)  # as on any machine with several cores
    for phase in phases:
        before, calls = phase.split(":")
        for name in before.split():
            globals()[name]()
        for name in calls.split():
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
# What the process does before its forks, the calls of forks that work then, and those that are refused.
PHASES = [
    ("", "polars extract search", ""),
    ("product nearest embed", "embed vectors batches", ""),
    ("polars", "numpy embed", "polars rows batches search extract"),
]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fork is a default of Linux")
def test_a_fork_works_or_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one fox\ntwo dogs\n")
    settings = {"model": str(tiny_folder), "levels": "sentence", "layers": -1}
    bertfeat.build_index(bertfeat.extract(tmp_path / "a.txt", tmp_path / "store", **settings), tmp_path / "index")
    phases = [f"{before}:{works} {refused}" for before, works, refused in PHASES]
    command = [sys.executable, "-c", textwrap.dedent(CODE), tiny_folder, tmp_path, *phases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    expected: list[str] = []
    for _, works, refused in PHASES:
        expected += [f"{name} works" for name in works.split()]
        expected += [f"{name} refused" for name in refused.split()]
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == expected, done.stderr
    assert all("spawn" in line for line in lines if " refused: " in line)


Block = Callable[[], AbstractContextManager[object]]


def state() -> tuple[object, ...]:
    logger = logging.getLogger("transformers")
    return logger.level, list(warnings.filters), warnings.showwarning, transformers_logging.is_progress_bar_enabled()


@pytest.mark.promise("threads")
@pytest.mark.parametrize(
    "block",
    [lambda: checkpoint_errors(Path("m"), "does not load"), loading.no_progress_bars],
    ids=["errors-of-a-model", "bars-of-transformers"],
)
def test_threads_that_overlap_restore_what_they_change(block: Block) -> None:
    """The first to enter is the first to leave: a plain context manager leaves the change of the second for ever."""
    before, inside, first_left = state(), threading.Barrier(3, timeout=30), threading.Event()
    seen = []

    def first() -> None:
        with block():
            inside.wait()
        first_left.set()

    def second() -> None:
        with block():
            inside.wait()
            first_left.wait(30)
            seen.append(state())

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    inside.wait()
    for thread in threads:
        thread.join(30)
    assert seen[0] != before
    assert state() == before
