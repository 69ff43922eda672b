"""The page on the store's format is enough to write a reader from, and its examples and tables hold for real stores."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

import bertfeat
from bertfeat.levels import LEVELS
from tests.support.places import ROOT, TESTS

PAGE = (ROOT / "docs" / "store-format.md").read_text(encoding="utf-8")
KINDS = [("array", "float16"), ("binary", "float32")]


class PageReader:
    """A reader of stores written from docs/store-format.md alone: it uses nothing of the package."""

    def __init__(self, root: Path) -> None:
        self.root = root
        data = max((root / "manifests").glob("*.json")).read_bytes()
        self.manifest = json.loads(data)
        check = xxhash.xxh3_128_hexdigest(data[:-50])
        if (self.manifest["check"], self.manifest["format_version"]) != (check, 1):
            raise ValueError("damaged, or of a newer format")

    def vectors(self, level: str, column: str) -> npt.NDArray[Any]:
        dim = next(f["dim"] for f in self.manifest["levels"][level]["features"] if f["name"] == column)
        dtype = np.dtype(self.manifest["store_dtype"]).newbyteorder("<")
        blocks = [np.empty((0, dim), dtype)]
        for part in self._parts(level):
            if part["runs"]:
                with (self.root / part["path"]).open("rb") as file:
                    for n_rows, offset in zip(part["runs"]["rows"], part["runs"]["offsets"][column], strict=True):
                        values = os.pread(file.fileno(), n_rows * dim * dtype.itemsize, offset)
                        blocks.append(np.frombuffer(values, dtype).reshape(n_rows, dim))
            else:
                for value in pq.read_table(self.root / part["path"], columns=[column])[column].to_pylist():
                    value = np.frombuffer(value, dtype) if isinstance(value, bytes) else value
                    blocks.append(np.full((1, dim), np.nan, dtype) if value is None else np.array([value], dtype))
        return np.concatenate(blocks)

    def table(self, level: str) -> pa.Table:
        names = [column["name"] for column in self.manifest["levels"][level]["columns"]]
        return pa.concat_tables(pq.read_table(self.root / p["path"], columns=names) for p in self._parts(level))

    def _parts(self, level: str) -> list[dict[str, Any]]:
        parts = [part for shard in self.manifest["shards"] for part in shard["parts"] if part["level"] == level]
        if any((self.root / part["path"]).stat().st_size != part["n_bytes"] for part in parts):
            raise ValueError("a part has another size")
        return parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of a few lines, one of them empty, in several shards and row groups: one per encoding and type."""
    folder = tmp_path_factory.mktemp("format")
    lines = (ROOT / "examples" / "data" / "peps.txt").read_text(encoding="utf-8").splitlines()[:16]
    (folder / "corpus.txt").write_text("\n".join([*lines[:8], "", *lines[8:]]) + "\n", encoding="utf-8")
    settings: dict[str, Any] = {"levels": "token,word,sentence", "layers": "last4"}
    for encoding, dtype in KINDS:
        place = folder / f"{encoding}-{dtype}"
        settings |= {"vector_encoding": encoding, "store_dtype": dtype, "shard_bytes": 3_000_000 * int(dtype[-2:]) // 8}
        bertfeat.extract(folder / "corpus.txt", place, **settings)
    return folder


def check_same(root: Path) -> None:
    reader, store = PageReader(root), bertfeat.open_store(root)
    for level in store.levels:
        names = [column.name for column in store.schema(level).columns]
        assert reader.table(level).equals(store.arrow(level, names))
        for feature in store.features(level):
            expected = store.numpy(level, feature.name)
            found = reader.vectors(level, feature.name)
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize(("encoding", "dtype"), KINDS)
def test_the_reader_reads_what_bertfeat_reads(folder, encoding, dtype):
    root = folder / f"{encoding}-{dtype}"
    check_same(root)
    reader = PageReader(root)
    assert len(reader.manifest["shards"]) > 1
    # The empty line has no vector, and its part no runs.
    assert np.isnan(reader.vectors("sentence", "layer_06")).all(axis=1).nonzero()[0].tolist() == [8]
    parts = [part for shard in reader.manifest["shards"] for part in shard["parts"]]
    assert {part["runs"] is not None for part in parts if part["level"] == "sentence"} == {True, False}


def test_the_reader_reads_the_first_store_of_the_format():
    check_same(TESTS / "data" / "store")


def keys_of(*headings: str) -> set[str]:
    """Return the keys in the first column of the first table after a heading or a line of the page."""
    place = PAGE
    for heading in headings:
        assert heading in place, heading
        place = place.split(heading, 1)[1]
    table = re.search(r"(?:^\|.*\n)+", place, re.MULTILINE)
    assert table
    cells = [line.split("|")[1] for line in table[0].splitlines()[2:]]
    return {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}


def sealed(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    content: dict[str, Any] = json.loads(data)
    assert xxhash.xxh3_128_hexdigest(data[:-50]) == content["check"]
    return content


def test_the_tables_name_every_key_of_a_real_store(folder):
    root = folder / "array-float16"
    manifest = sealed(root / "manifests/00000.json")
    assert set(manifest) == keys_of("## Manifest")
    shard = manifest["shards"][0]
    assert set(shard) == keys_of("An entry of `shards`:")
    assert set(shard["parts"][0]) == keys_of("An entry of `parts`:")
    assert set(manifest["levels"]["token"]["features"][0]) == keys_of("## Vector columns")
    assert set(manifest["history"][0]) == keys_of("An entry of `history`:")
    work = root / "_bertfeat/work" / manifest["plan_hash"]
    assert set(sealed(work / "plan.json")) == keys_of("## Plan")
    assert set(sealed(work / "00000.json")) == keys_of("## Receipts") | set(shard)
    told = json.loads(pq.read_metadata(root / shard["parts"][0]["path"]).metadata[b"bertfeat"])
    # Only for prompts, `--pooling model`, `--unknown-words zero`, `--rows`, `--positions`, or imported vectors.
    absent = {"prompt", "prompts", "sentence_sha256", "unknown_words", "imported", "rows", "positions"}
    assert keys_of("### File metadata") == set(told) | absent
    row = next((TESTS / "data" / "store").glob("_bertfeat/work/*/*.bad.jsonl"))
    assert set(json.loads(row.read_text())) == keys_of("## Quarantine")


def test_the_page_describes_a_grown_store_and_the_hash_of_its_plan(folder, tmp_path):
    shutil.copytree(folder / "array-float16", tmp_path / "s")
    (tmp_path / "later.txt").write_text("One more line.\nAnd another.\n")
    store = bertfeat.append(tmp_path / "s", str(tmp_path / "later.txt"))
    check_same(store.path)
    before, after = (sealed(store.path / f"manifests/0000{n}.json") for n in (0, 1))
    plan = sealed(store.path / "_bertfeat/work" / after["plan_hash"] / "plan.json")
    assert plan["fields"]["base"] == before["plan_hash"]
    decisive = {name: value for name, value in plan["fields"].items() if name not in ("model", "revision")}
    hashed = [decisive, [[file["format"], file["digest"]] for file in plan["inputs"]]]
    canonical = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(canonical.encode()).hexdigest() == after["plan_hash"]
    assert after["inputs"] == before["inputs"] + plan["inputs"]
    assert after["shards"][:-1] == before["shards"]


def test_the_page_names_every_column_with_its_type_and_nulls():
    rows = re.findall(r"^\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|$", PAGE.split("## Columns")[1], re.MULTILINE)
    level, found = "", {}
    for first, names, kind, nulls in rows[1:]:
        level = first.strip() or level
        for name in re.findall(r"`(\w+)`", names):
            found[level, name] = (kind, nulls.strip())
    for entry_level, entry in LEVELS.items():
        for column in entry.columns:
            kind, nulls = found.get((str(entry_level), column.name)) or found["all", column.name]
            assert f"`{column.type}`" in kind, column
            assert (nulls != "never") == column.nullable, column
