"""Edited JSON of probes and indexes, sealed again: it is used as it is, or refused in one line."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import bertfeat
from bertfeat.errors import BertfeatError
from bertfeat.heads.probedocument import digest_of
from bertfeat.store.reader import Store
from tests.support.command_line import bertfeat as bertfeat_cli
from tests.support.index_stores import documents, tiny_store

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")

VALUES = [None, -1, float("inf"), "x", [], {}, 10**30, True, 0.5, "", 2**40, [None], {"x": 1}, "9" * 3000, 0, 1]
VALUES += [[10**12], ["a", "b"], "\0a", "../../.."]
DELETE = object()
HEADS = {"logreg": {}, "knn": {}, "centroid": {}, "mlp": {"max_epochs": 1}, "bilstm": {"max_epochs": 1}}
INDEXES = {
    "flat": {"level": "sentence", "transform": "center"},
    "lists": {"level": "word", "index": "IVF8,SQ8", "transform": "whiten:8"},
    "graph": {"level": "word", "index": "HNSW8", "metric": "l2"},
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> tuple[Store, Store]:
    """A small store, and the same with more rows."""
    folder = tmp_path_factory.mktemp("stores")
    levels = "sentence,word"
    return tuple(tiny_store(folder / str(n), tiny_folder, documents(n), levels=levels) for n in (8, 12))


@pytest.fixture(scope="module")
def made(stores: tuple[Store, Store], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make a probe of a head, or an index, once."""
    folder = tmp_path_factory.mktemp("made")

    def make(name: str) -> Path:
        if not (folder / name).exists():
            if name in INDEXES:
                bertfeat.build_index(stores[0], folder / name, threads=1, **INDEXES[name]).close()
            else:
                level, label = ("word", "n_tokens") if name == "bilstm" else ("sentence", "label")
                probe = bertfeat.fit_probe(stores[0], label, level=level, head=name, **HEADS[name])
                probe.save(folder / name)
        return folder / name

    return make


def places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON document, of long lists and objects the first ones."""
    if at:
        yield at
    if isinstance(node, dict | list):
        for key in list(node)[:30] if isinstance(node, dict) else range(min(3, len(node))):
            yield from places(node[key], (*at, key))


def forgeries(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield documents with one value replaced, one key deleted, or one added."""
    for at in places(document):
        for value in [*VALUES, DELETE]:
            forged = copy.deepcopy(document)
            parent = forged
            for key in at[:-1]:
                parent = parent[key]
            if value is DELETE:
                del parent[at[-1]]
            else:
                parent[at[-1]] = value
            yield f"{'.'.join(map(str, at))} = {value!r:.30}", forged


def seal(path: Path, document: dict[str, Any]) -> None:
    """Write a document with the digest that it should have."""
    if path.name == "probe.json":
        document["sha256"] = digest_of(document)
    else:
        document.pop("check", None)
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        document["check"] = xxhash.xxh3_128_hexdigest(text.encode())
    # The module json writes Infinity, which is not JSON; 1e400 is, and reads as infinity.
    path.write_text(json.dumps(document).replace("Infinity", "1e400"))


def command(*arguments: str | Path) -> Callable[[], None]:
    def call() -> None:
        result = bertfeat_cli(*arguments)
        if result.code:
            assert (result.code in (2, 3), result.err.count("\n")) == (True, 1), result.err
            assert "should not have happened" not in result.err, result.err
            raise BertfeatError(result.err)

    return call


def probe_calls(probe: Path, store: Store) -> Iterator[Callable[[], object]]:
    yield lambda: bertfeat.load_probe(probe).summary()
    yield lambda: bertfeat.load_probe(probe).score(store)
    yield lambda: bertfeat.load_probe(probe).predict(store)
    yield lambda: bertfeat.load_probe(probe).predict_texts(["the bank"])
    yield command("probe", "score", probe, store.path, "--no-intervals")
    yield command("inspect", probe)


def index_calls(index: Path, grown: Store) -> Iterator[Callable[[], object]]:
    def search() -> None:
        with bertfeat.open_index(index) as found:
            found.search(np.ones((2, 32), np.float32), k=3)
            found.search("the bank" if found.level == "sentence" else "the [bank]", k=2)

    yield command("index", "info", index)
    yield command("index", "info", index, "--json")
    yield search
    yield command("index", "eval", index, "--n-queries", "5")
    yield command("index", "update", index, grown.path)


def check(source: Path, stores: tuple[Store, Store], folder: Path, stride: int) -> None:
    """Make every call on every forged document; only a result or an error of one line may come."""
    name = "probe.json" if (source / "probe.json").exists() else "index.json"
    said: list[str] = []
    for number, (what, document) in enumerate(forgeries(json.loads((source / name).read_text()))):
        if number % stride:
            continue
        copied = folder / "copy"
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(source, copied)
        seal(copied / name, document)
        for call in probe_calls(copied, stores[0]) if name == "probe.json" else index_calls(copied, stores[1]):
            try:
                call()
            except BertfeatError as error:
                said.append(str(error).strip())
            except BaseException as error:
                raise AssertionError(f"{what}: {error!r}") from error
    assert len(said) > 5
    assert [line for line in said if "\n" in line] == []


@pytest.mark.parametrize("name", ["logreg", "flat"])
def test_a_forged_document_is_refused_or_used_as_it_is(name, made, stores, tmp_path):
    # The stride is prime, so that every value and most places are tried.
    check(made(name), stores, tmp_path, stride=83)


@pytest.mark.long
@pytest.mark.parametrize("name", [*HEADS, *INDEXES])
def test_every_forged_document_is_refused_or_used_as_it_is(name, made, stores, tmp_path):
    check(made(name), stores, tmp_path, stride=1)


@pytest.mark.parametrize(("name", "value"), [("hidden_size", 2**40), ("n_layers", 2**40), ("hidden_size", 10**30)])
@pytest.mark.parametrize("head", ["mlp", "bilstm"])
def test_a_network_larger_than_its_arrays_is_refused_before_it_is_built(head, name, value, made, tmp_path):
    shutil.copytree(made(head), tmp_path / "probe")
    document = json.loads((tmp_path / "probe" / "probe.json").read_text())
    document["params"][name] = value
    seal(tmp_path / "probe" / "probe.json", document)
    with pytest.raises(BertfeatError, match=f"{name} {value} is more than the saved arrays have; save it again"):
        bertfeat.load_probe(tmp_path / "probe")
