"""JSON files of a store, edited and sealed again: every mistyped value or missing key is one line."""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import xxhash

from bertfeat.choices import Level
from bertfeat.cli.summary import inspect_store
from bertfeat.durable.decoding import decode
from bertfeat.errors import BertfeatError, StoreError
from bertfeat.extraction.deepcheck import recheck
from bertfeat.extraction.run import extract
from bertfeat.records import PartInfo
from bertfeat.store import codec, open_for_writing, open_store, verify
from bertfeat.store.reader import Store
from tests.support.drill import write_corpus
from tests.support.families import build_model

FILES = ("manifest.json", "_bertfeat/plan.json", "_bertfeat/receipts/00001.json")
OTHERS = [None, True, -1, 0, 3, 0.5, 2**70, "x", "", "../x", [], [1], {}, {"x": 1}]
# Calls that may change a store.
WRITES = ("resume", "extract")


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("json")
    corpus = write_corpus(folder / "corpus.jsonl", 8)
    corpus.write_text(corpus.read_text() + "{bad\n")
    return {
        "inputs": str(corpus),
        "model": str(build_model("bert", folder / "model", num_hidden_layers=2)),
        "id_column": "id",
        "bad_rows": "quarantine",
        "levels": ["token", "sentence"],
        "layers": "1,2",
        "max_length": 12,
        "shard_bytes": 15_000,
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory, settings) -> Store:
    store = extract(output=tmp_path_factory.mktemp("made") / "s", **settings)
    assert len(store.plan.shards) > 1
    return store


def places(content: Any, *above: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value in a JSON value; of a list, the first two entries and the last."""
    if above:
        yield above
    if isinstance(content, dict):
        for name, value in content.items():
            yield from places(value, *above, name)
    if isinstance(content, list):
        for number in sorted({0, 1, len(content) - 1} & set(range(len(content)))):
            yield from places(content[number], *above, number)


def edits(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a JSON object with one value replaced, left out, or one key added."""
    for place in places(content):
        for other in (*OTHERS, "left out", "added"):
            edited = copy.deepcopy(content)
            inner: Any = edited
            for name in place[:-1]:
                inner = inner[name]
            if other == "left out":
                del inner[place[-1]]
            elif other == "added":
                if not isinstance(inner[place[-1]], dict):
                    continue
                inner[place[-1]]["x"] = 1
            else:
                inner[place[-1]] = other
            yield f"{'.'.join(map(str, place))} = {other!r:.20}", edited


def read_everything(root: Path) -> None:
    store = open_store(root, allow_incomplete=True)
    _ = (repr(store), store.metadata, store.plan, store.receipts(), store.bad_rows())
    for level in store.levels:
        feature = store.features(level)[0].name
        n_rows = store.n_rows(level)
        store.numpy(level, feature)
        store.take(level, feature, [n_rows - 1])
        store.valid(level, feature)
        list(store.batches(level, feature, columns=["doc_id"]))
        store.rows(level, [0], ["doc_id"])
        store.polars(level)
        store.feature(level, feature)


def inspect(root: Path) -> None:
    json.dumps(inspect_store(str(root)))


def resume(root: Path, plan: Any) -> None:
    with open_for_writing(root, plan) as writer:
        writer.pending()
        writer.receipts()
        _ = writer.is_complete


class Tries:
    """Calls on edited stores, and their outcomes."""

    def __init__(self, made: Store, folder: Path) -> None:
        self.made, self.folder = made, folder
        self.tally: Counter[str] = Counter()
        self.raw: list[str] = []

    def on(self, name: str, content: dict[str, Any], what: str, calls: dict[str, Callable[[Path], object]]) -> None:
        for call, run in calls.items():
            root = self.folder / "s"
            if call in WRITES or not root.exists():
                shutil.rmtree(root, ignore_errors=True)
                shutil.copytree(self.made.path, root)
            good = (root / name).read_bytes()
            (root / name).write_bytes(codec.seal(content))
            try:
                run(root)
                self.tally[f"{call} done"] += 1
            except BertfeatError as error:
                self.tally[f"{call} refused"] += 1
                if "\n" in str(error):
                    self.raw.append(f"{call} {name} {what}: {error}")
            except Exception as error:
                self.raw.append(f"{call} {name} {what}: {type(error).__name__}: {error}")
            if call in WRITES:
                shutil.rmtree(root)
            else:
                (root / name).write_bytes(good)


def edited_files(made: Store) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (name, what, content)
        for name in FILES
        for what, content in edits(codec.unseal((made.path / name).read_bytes()))
    ]


def cheap_calls(made: Store) -> dict[str, Callable[[Path], object]]:
    plan = made.plan
    return {"read": read_everything, "verify": verify, "inspect": inspect, "resume": lambda root: resume(root, plan)}


def test_some_edited_files_are_one_line(made, tmp_path):
    tries = Tries(made, tmp_path)
    for name, what, content in random.Random(3).sample(edited_files(made), 25):
        tries.on(name, content, what, cheap_calls(made))
    assert tries.raw == []


def test_a_plan_with_other_columns_than_its_settings_give_is_one_line(made, settings, tmp_path):
    tries = Tries(made, tmp_path)
    name = "_bertfeat/plan.json"
    whats = (
        "plan.schemas.token = 'left out'",
        "plan.schemas.token.columns.0 = 'left out'",
        "plan.schemas.token.columns.1 = 'left out'",
        "plan.schemas.sentence.features = []",
        "plan.schemas.sentence.features.1.name = ''",
    )
    edited = {what: content for file, what, content in edited_files(made) if file == name}
    for what in whats:
        tries.on(name, edited[what], what, {"extract": lambda root: extract(output=root, **settings)})
    assert tries.raw == []


@pytest.mark.long
def test_every_edited_file_is_one_line(made, settings, tmp_path):
    tries = Tries(made, tmp_path)
    dear: dict[str, Callable[[Path], object]] = {
        "extract": lambda root: extract(output=root, **settings),
        "recheck": lambda root: recheck(root, n_documents=2),
    }
    for number, (name, what, content) in enumerate(edited_files(made)):
        tries.on(name, content, what, cheap_calls(made) | (dear if number % 12 == 0 else {}))
    print(dict(tries.tally))
    assert tries.raw == []


@pytest.mark.parametrize("path", ["../other/token/part-00000.parquet", "/etc/passwd", "token/part-00001.parquet", ""])
def test_the_path_of_a_part_follows_from_level_and_shard(made, tmp_path, path):
    shutil.copytree(made.path, tmp_path / "other")
    shutil.copytree(made.path, tmp_path / "s")
    file = tmp_path / "s/manifest.json"
    manifest = codec.unseal(file.read_bytes())
    manifest["shards"][0]["parts"][0]["path"] = path
    file.write_bytes(codec.seal(manifest))
    with pytest.raises(StoreError, match=r"manifest.json: shard 0 lists .*, not token/part-00000.parquet"):
        open_store(tmp_path / "s")
    assert not verify(tmp_path / "s").is_good


def test_a_large_file_is_written_on_one_line(monkeypatch):
    content = {"format_version": 1, "shards": [1, 2]}
    assert codec.seal(content).count(b"\n") > 1
    monkeypatch.setattr(codec, "_MOST_INDENTED", 10)
    data = codec.seal(content)
    assert data.count(b"\n") == 1
    assert codec.unseal(data) == codec.unseal(codec.seal(content, compact=True)) == content
    # Written otherwise, it says the same.
    assert codec.unseal(json.dumps(json.loads(data), indent=1).encode()) == content
    for at in range(len(data) - 1):
        with pytest.raises(ValueError):  # noqa: PT011
            codec.unseal(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


@pytest.mark.parametrize("check", [r'"\ud800"', '""', "null", "0", "[]", '{"check":"x"}'])
def test_a_check_value_that_is_none_is_that_of_an_edited_file(check):
    with pytest.raises(ValueError, match=r"^damaged or edited"):
        codec.unseal(f'{{"a":1,"check":{check}}}\n'.encode())


def test_an_entry_that_is_twice_in_a_compact_file_is_an_edit():
    data = codec.seal({"a": 1, "b": [1, 2]}, compact=True)
    assert codec.unseal(data) == {"a": 1, "b": [1, 2]}
    for more in (b'{"a":1,"a":2', b'{"check":"x","a":2'):
        with pytest.raises(ValueError, match=r"^damaged or edited"):
            codec.unseal(data.replace(b'{"a":1', more))


def test_canonical_json_in_pieces_is_the_same_text(monkeypatch, made):
    plan = codec.plan_to_json(made.plan)
    values = [plan, {"plan": plan, "a": 1}, {Level.WORD: [], "b": ()}, [[[[[[[1, 2], 3]]]]]], {}, (), None, "ü", 0.5]
    values += [
        list(range(30_000)),
        {"of": [{f"k{n}": n} for n in range(12_345)]},
        {f"k{n}": [n] for n in range(20_001)},
    ]
    for few, most in ((codec._FEW_ENTRIES, codec._PIECE_ENTRIES), (2, 3), (0, 2)):
        monkeypatch.setattr(codec, "_FEW_ENTRIES", few)
        monkeypatch.setattr(codec, "_PIECE_ENTRIES", most)
        for value in values:
            assert b"".join(codec.canonical_pieces(value)).decode() == codec.canonical_json(value)
    with pytest.raises(ValueError, match="not JSON compliant"):
        list(codec.canonical_pieces({"a": [float("nan")]}))


def test_a_quarantine_file_that_was_edited_is_one_line(made, tmp_path):
    for line in (b"{}", b"[]", b"x", b'{"index": 1, "path": 2, "row": 3, "reason": "r", "raw": null}'):
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
        shutil.copytree(made.path, tmp_path / "s")
        file = tmp_path / "s/manifest.json"
        manifest = codec.unseal(file.read_bytes())
        entry = next(shard["quarantine"] for shard in manifest["shards"] if shard["quarantine"])
        (tmp_path / "s" / entry["path"]).write_bytes(line)
        entry |= {"digest": xxhash.xxh3_128_hexdigest(line)}
        file.write_bytes(codec.seal(manifest))
        with pytest.raises(StoreError, match=r"quarantine/.*; run bertfeat verify"):
            open_store(tmp_path / "s").bad_rows()


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (tuple[int, ...], [1, "2"], "1: '2' is not a whole number from 0 on"),
        (tuple[int, ...], [True], "0: True is not a whole number from 0 on"),
        (Mapping[str, float], {"a": None}, "a: None is not a number"),
        (Mapping[Level, str], {"page": "x"}, "page: 'page' is not one of token, word, sentence"),
        (PartInfo, {"level": "word"}, "missing or unknown keys: 'digest', 'n_bytes', 'n_rows', 'path'"),
        (str | None, 5, "5 is not a string"),
    ],
)
def test_a_mistyped_value_is_named_with_its_place(kind, value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        decode(kind, value)
