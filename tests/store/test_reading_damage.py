"""Damaged parts: whatever other bytes than the vectors' own are changed, a read returns the right rows or one line.

`python -m tests.store.test_reading_damage FOLDER SEED TRIES` damages parts, and prints a JSON object: the count of each
outcome, and examples of forbidden ones.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from bertfeat.durable.files import digest_of
from bertfeat.errors import StoreError
from bertfeat.store.manifest import Manifest
from bertfeat.store.reader import Store, open_store
from tests.support.places import ROOT
from tests.support.store_fakes import KINDS, READS, make_plan, part_at, rewrite_manifest, without_runs, write_store

# How the first part is written again by pyarrow.
REWRITTEN: list[dict[str, Any]] = [
    {"data_page_size": 300, "write_batch_size": 5, "data_page_version": "2.0", "write_statistics": True},
    {"write_statistics": True, "write_page_index": True, "row_group_size": 25},
    {"compression": "zstd", "use_dictionary": True},
]
# What a reader gives of a store; of texts, only their number, for their own bytes may change too.
DRILLED: dict[str, Callable[[Store], Any]] = {
    "numpy": lambda store: store.numpy("token", "layer_04"),
    "slice": lambda store: store.slice("token", "mean_last4", 7, 60),
    "take": lambda store: store.take("token", "concat_04_06", [5, 63, 5, 40]),
    "valid": lambda store: store.valid("token", "layer_04"),
    "batches": lambda store: np.concatenate([b.vectors for b in store.batches("token", "concat_last4", batch_size=17)]),
    "polars": lambda store: store.polars("token", ["layer_04"]).rows(),
    "arrow": lambda store: store.arrow("token", ["layer_06"]).to_pylist(),
    "columns": lambda store: len(store.polars("token", ["doc_id", "token"]).rows()),
    "rows": lambda store: len(store.rows("token", [3, 61, 3], ["token"]).rows()),
}


@dataclass(frozen=True)
class Part:
    """An undamaged part: its bytes, the places that may be damaged, the start of its footer, and what readers give."""

    root: Path
    path: Path
    data: bytes
    places: list[int]
    footer: int
    numbers: list[int]
    good: dict[str, Any]


def make_parts(folder: Path) -> Iterator[Part]:
    """Make stores of all kinds, and yield the first part of each; some have null vectors."""
    for dtype, encoding in KINDS:
        plan = make_plan((60, 9), dtype=dtype, encoding=encoding)
        for number, options in enumerate([None, *REWRITTEN, {}]):
            root = folder / f"{dtype}-{encoding}-{number}"
            write_store(root, plan, nulls=options == {})
            if options:
                rewrite(root, options)
            yield part_of(root, np.dtype(dtype).itemsize)


def rewrite(root: Path, options: dict[str, Any]) -> None:
    """Write the first part again with pyarrow, and have the manifest say so."""
    path = part_at(root, "token", 0)
    defaults = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pq.read_table(path), path, **{**defaults, **options})

    def change(manifest: Manifest) -> Manifest:
        first, *others = manifest.shards
        part = replace(first.parts[0], n_bytes=path.stat().st_size, digest=digest_of(path), runs=None)
        return manifest.with_shards([replace(first, parts=(part,)), *others])

    rewrite_manifest(root, change)


def part_of(root: Path, n_value_bytes: int) -> Part:
    store = open_store(root)
    path = part_at(root, "token", 0)
    data, runs = path.read_bytes(), store.parts("token")[0].runs
    is_value = np.zeros(len(data), bool)
    for feature in store.features("token") if runs is not None else ():
        for n_rows, offset in zip(runs.rows, runs.offsets[feature.name], strict=True):
            is_value[offset : offset + n_rows * feature.dim * n_value_bytes] = True
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(leaf) for group in groups for leaf in range(metadata.num_columns)]
    numbers = {n for c in chunks for n in (c.num_values, c.total_compressed_size, c.data_page_offset) if n > 0}
    good = {name: read(store) for name, read in DRILLED.items()}
    return Part(root, path, data, np.flatnonzero(~is_value).tolist(), footer, sorted(numbers), good)


def change_bytes(rng: random.Random, part: Part, data: bytearray) -> None:
    places = rng.choice([part.places, range(part.footer, len(data))])
    for place in rng.choices(places, k=rng.choice([1, 1, 2, 20])):
        data[place] = rng.choice([rng.randrange(256), data[place] ^ 1 << rng.randrange(8), 0])


def change_number(rng: random.Random, part: Part, data: bytearray) -> None:
    """Replace a number of the footer by another one, or by a similar number."""
    old = rng.choice(part.numbers)
    new = rng.choice([*part.numbers, old + 1, old - 1, old * 2, 0])
    if len(varint(old)) == len(varint(new)):
        data[part.footer :] = data[part.footer :].replace(varint(old), varint(new), rng.choice([1, 2, -1]))


def varint(number: int) -> bytes:
    """Return a number as it is in a footer: zigzag, seven bits per byte."""
    number, out = number << 1, bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def cut(rng: random.Random, part: Part, data: bytearray) -> None:
    """Remove a piece or insert some bytes, with the length of the footer unchanged or corrected."""
    place = rng.choice([rng.randrange(len(data)), rng.randrange(part.footer, len(data))])
    n_bytes, is_cut = rng.randrange(1, 9), rng.random() < 0.5
    data[place : place + n_bytes if is_cut else place] = b"" if is_cut else rng.randbytes(n_bytes)
    if place > part.footer and rng.random() < 0.7:
        data[-8:-4] = max(0, len(data) - 8 - part.footer).to_bytes(4, "little")


def outcome(read: Callable[[Store], Any], part: Part, good: Any) -> str:
    try:
        got = read(open_store(part.root))
    except StoreError as error:
        return "MANY LINES" if "\n" in str(error) else "refused"
    except BaseException as error:
        return f"RAW {error!r}"[:300]
    is_right = np.array_equal(got, good, equal_nan=True) if isinstance(good, np.ndarray) else got == good
    return "right" if is_right else "WRONG"


def drill(folder: Path, seed: int, n_tries: int) -> None:
    limit = 8 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    rng = random.Random(seed)
    parts = list(make_parts(folder))
    tally: Counter[str] = Counter()
    examples = []
    for number in range(n_tries):
        part, change = rng.choice(parts), rng.choice([change_bytes, change_bytes, change_number, cut])
        data = bytearray(part.data)
        change(rng, part, data)
        part.path.write_bytes(data)
        for name, read in DRILLED.items():
            what = outcome(read, part, part.good[name])
            tally[what] += 1
            if what not in ("right", "refused"):
                examples.append(f"{what} {name} {part.root.name} {change.__name__} try {number}")
        part.path.write_bytes(part.data)
    print(json.dumps({"tries": n_tries, **tally, "examples": examples[:20]}))


def damage(tmp_path, n_tries, seed):
    """Damage parts in a separate process, which an exception in the core of Arrow or polars would end."""
    command = [sys.executable, "-m", __name__, str(tmp_path), str(seed), str(n_tries)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found.pop("examples") == []
    assert set(found) == {"tries", "right", "refused"}
    assert min(found["right"], found["refused"]) > n_tries // 2


@pytest.mark.promise("read")
def test_damage_anywhere_but_in_the_vectors_own_bytes_is_refused_or_changes_nothing(tmp_path):
    damage(tmp_path, 60, 1)


@pytest.mark.promise("read")
@pytest.mark.long
def test_10_000_damages_anywhere_but_in_the_vectors_own_bytes(tmp_path):
    damage(tmp_path, 10_000, 2)


def change_page_type(path, name, page_type):
    """Change the type in the header of the first page of a column."""
    metadata = pq.read_metadata(path)
    leaves = [metadata.row_group(0).column(leaf) for leaf in range(metadata.num_columns)]
    data = bytearray(path.read_bytes())
    place = next(leaf.data_page_offset for leaf in leaves if leaf.path_in_schema.split(".")[0] == name) + 1
    assert data[place] == 0
    data[place] = page_type
    path.write_bytes(data)


@pytest.mark.parametrize(("encoding", "nulls"), [("array", False), ("array", True), ("binary", False)])
# An index page, and an unknown type: pyarrow skips them.
@pytest.mark.promise("read")
@pytest.mark.parametrize("page_type", [0x02, 0x40])
def test_a_page_of_another_type_is_refused_by_every_reader_that_decodes(tmp_path, encoding, nulls, page_type):
    write_store(tmp_path / "s", make_plan(encoding=encoding), nulls=nulls)
    change_page_type(part_at(tmp_path / "s", "token", 0), "layer_04", page_type)
    without_runs(tmp_path / "s")
    for read in READS.values():
        with pytest.raises(StoreError, match=r"part-00000-.*: cannot be read: its bytes are not those"):
            read(open_store(tmp_path / "s"))


if __name__ == "__main__":
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    drill(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
