"""Names that are longer than the system allows: every public call reports them in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import bertfeat
from bertfeat.errors import UserError
from bertfeat.search import read_qrels

LONG = "9" * 5_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> bertfeat.Store:
    folder = tmp_path_factory.mktemp("long-names")
    (folder / "a.txt").write_text("a bank\nthe river\n")
    return bertfeat.extract(folder / "a.txt", folder / "store", layers="-1", levels="sentence")


CALLS = {
    "model": lambda store, folder: bertfeat.embed(["a"], model=LONG),
    "folder of a model": lambda store, folder: bertfeat.embed(["a"], model=f"./{LONG}"),
    "input": lambda store, folder: bertfeat.extract(LONG, folder / "out"),
    "output": lambda store, folder: bertfeat.extract(store.manifest.inputs[0].path, folder / LONG),
    "store": lambda store, folder: bertfeat.open_store(LONG),
    "probe": lambda store, folder: bertfeat.load_probe(LONG),
    "labels": lambda store, folder: bertfeat.fit_probe(store, "label", labels=LONG),
    "index": lambda store, folder: bertfeat.open_index(LONG),
    "place of an index": lambda store, folder: bertfeat.build_index(store, folder / LONG),
    "relevance": lambda store, folder: read_qrels(LONG),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_name_that_is_too_long_is_one_line(what: str, store: bertfeat.Store, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        CALLS[what](store, tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
