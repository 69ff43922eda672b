"""A folder with corpora, a model, and a store with a probe, a sweep and an index of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import bertfeat
from tests.support.index_stores import documents, tiny_store

CORPORA = {
    "good.txt": b"one fox\ntwo dogs jump\n",
    "long.txt": b"short\n" + b"word " * 100 + b"\n",
    "not.jsonl": b'{"text": "fine"}\nno json\n',
    "columns.csv": b"id,body\n1,a\n",
    "empty.txt": b"",
    "twice.jsonl": b'{"text": "a", "id": 5}\n{"text": "b", "id": 5}\n',
    "latin.txt": "fine\nbroké\n".encode("latin-1"),
    "good.conll": b"EU\tB-ORG\nrejects\tO\n\n",
    "words.jsonl": b'{"text": ["fine", "words"]}\n{"text": ["a", 3]}\n',
    "sheet.xlsx": b"x\n",
    "nested.jsonl": b'{"content": {"body": "a fox", "n": 1}}\n',
}


@pytest.fixture(scope="session")
def place(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, which no test changes: `made` has the store, and what was made from it."""
    folder = tmp_path_factory.mktemp("place")
    for name, content in CORPORA.items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    (folder / "folder" / "mine.txt").write_text("mine")
    (folder / "tiny").symlink_to(tiny_folder)
    made = folder / "made"
    store = tiny_store(made, tiny_folder, documents(12), levels="sentence,word")
    how = {"level": "sentence", "head": "centroid", "dev": store}
    bertfeat.fit_probe(store, "label", **how).save(made / "probe")
    bertfeat.sweep_probes(store, "label", **how).write(made / "sweep")
    bertfeat.build_index(store, made / "index", level="sentence", threads=1).close()
    return folder
