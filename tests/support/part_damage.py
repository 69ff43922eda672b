"""Damage to parts outside of the vectors' own bytes, and the outcome of every reader.

    python -m tests.support.part_damage FOLDER SEED TRIES

prints a JSON object: the count of each outcome, and examples of forbidden ones.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.choices import Level
from bertfeat.durable.files import digest_of
from bertfeat.errors import StoreError
from bertfeat.store import schema
from bertfeat.store.manifest import Manifest
from bertfeat.store.reader import open_store
from bertfeat.store.vector_layout import VectorLayout
from bertfeat.store.writer import open_for_writing
from tests.support.store_fakes import make_plan, make_result, part_at, rewrite_manifest

LEVEL = "word"
SHARDS = (60, 9)
KINDS = [(dtype, encoding) for dtype in ("float16", "float32") for encoding in ("array", "binary")]
REWRITTEN: list[dict[str, Any]] = [
    {"data_page_size": 300, "write_batch_size": 5, "data_page_version": "2.0", "write_statistics": True},
    {"write_statistics": True, "write_page_index": True, "row_group_size": 25},
    {"compression": "zstd", "use_dictionary": True},
]


@dataclass(frozen=True)
class Part:
    """An undamaged part: its bytes, the places that may be damaged, and the numbers in its footer."""

    root: Path
    path: Path
    data: bytes
    mutable: list[int]
    footer: int
    near: list[int]
    numbers: list[int]
    want: dict[str, np.ndarray]


def make_parts(folder: Path) -> Iterator[Part]:
    """Make stores of all kinds, and yield the first part of each; one has null vectors."""
    schema._ROW_GROUP_BYTES = 40 * 2 * 32
    for dtype, encoding in KINDS:
        plan = make_plan(SHARDS, levels=(Level.WORD,), dtype=dtype, encoding=encoding)
        for number, options in enumerate([None, *REWRITTEN, {"nulls": True}]):
            root = folder / f"{dtype}-{encoding}-{number}"
            nulls = bool(options and options.get("nulls"))
            with open_for_writing(root, plan) as writer:
                for shard in writer.pending():
                    writer.commit(shard, make_result(plan, shard, nulls=nulls))
                writer.complete()
            if options and not nulls:
                rewrite(root, options)
            yield part_of(root, VectorLayout.of(plan))


def rewrite(root: Path, options: dict[str, Any]) -> None:
    """Write the first part again with pyarrow, and have the manifest say so."""
    path = part_at(root, LEVEL, 0)
    defaults = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pq.read_table(path), path, **{**defaults, **options})

    def change(manifest: Manifest) -> Manifest:
        first, *others = manifest.shards
        part = replace(first.parts[0], n_bytes=path.stat().st_size, digest=digest_of(path), runs=None)
        return manifest.with_shards([replace(first, parts=(part,)), *others])

    rewrite_manifest(root, change)


def part_of(root: Path, vectors: VectorLayout) -> Part:
    store = open_store(root)
    path = root / store.parts(LEVEL)[0].path
    data = path.read_bytes()
    names = [feature.name for feature in store.features(LEVEL)]
    is_value = np.zeros(len(data), bool)
    runs = store.parts(LEVEL)[0].runs
    for feature in store.features(LEVEL) if runs is not None else ():
        for n_rows, offset in zip(runs.rows, runs.offsets[feature.name], strict=True):
            is_value[offset : offset + n_rows * feature.dim * vectors.numpy.itemsize] = True
    mutable = np.flatnonzero(~is_value)
    # Headers and levels come before values, or at the beginning of a column.
    near = np.flatnonzero(~is_value & (np.convolve(is_value, np.ones(60), "full")[59:] > 0))
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(leaf) for group in groups for leaf in range(metadata.num_columns)]
    numbers = {group.num_rows for group in groups}
    numbers |= {n for c in chunks for n in (c.num_values, c.total_compressed_size, c.data_page_offset)}
    want = {name: store.numpy(LEVEL, name) for name in (*names, "mean_last4", "concat_04_06")}
    return Part(
        root, path, data, mutable.tolist(), footer, near.tolist() or [4], sorted(n for n in numbers if n > 0), want
    )


def varint(number: int) -> bytes:
    """Return a number as it is in a footer: zigzag, seven bits per byte."""
    number, out = number << 1, bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def byte(rng: random.Random, old: int) -> int:
    return rng.choice([rng.randrange(256), old ^ 1 << rng.randrange(8), (old + 1) & 255, (old - 1) & 255, 0, 18])


def change_bytes(rng: random.Random, part: Part, data: bytearray) -> None:
    places = rng.choice([part.mutable, part.near, range(part.footer, len(data))])
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        place = rng.choice(places)
        data[place] = byte(rng, data[place])


def change_number(rng: random.Random, part: Part, data: bytearray) -> None:
    """Replace a number of the footer by another one, or by a similar number."""
    for _ in range(rng.choice([1, 1, 2])):
        old = rng.choice(part.numbers)
        new = rng.choice([*part.numbers, old + 1, old - 1, old + 2, old * 2, 0])
        coded, place = varint(old), part.footer
        found = []
        while (place := bytes(data).find(coded, place + 1)) >= 0:
            found.append(place)
        replacement = varint(new)
        if found and len(replacement) == len(coded):
            place = rng.choice(found)
            data[place : place + len(coded)] = replacement


def cut(rng: random.Random, part: Part, data: bytearray) -> None:
    """Remove a piece or insert some bytes, with the length of the footer unchanged or corrected."""
    place = rng.choice([rng.randrange(len(data)), rng.randrange(part.footer, len(data))])
    n_bytes = rng.randrange(1, 9)
    is_cut = rng.random() < 0.5
    data[place : place + n_bytes if is_cut else place] = b"" if is_cut else rng.randbytes(n_bytes)
    if place > part.footer and rng.random() < 0.7:
        data[-8:-4] = max(0, len(data) - 8 - part.footer).to_bytes(4, "little")


CHANGES = [change_bytes, change_bytes, change_number, cut]


def reads(rng: random.Random, part: Part) -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], bool]]]:
    """Yield readers by name, each with a check of what it gives."""
    name = rng.choice(list(part.want))
    want = part.want[name]
    stored = name not in ("mean_last4", "concat_04_06")
    n_rows = len(want)
    start = rng.randrange(n_rows)
    rows = rng.sample(range(n_rows), 20)
    same = lambda array: lambda got: np.array_equal(got, array, equal_nan=True)  # noqa: E731
    store = open_store(part.root)
    yield "slice", lambda: store.slice(LEVEL, name, start, n_rows), same(want[start:])
    yield "take", lambda: store.take(LEVEL, name, rows), same(want[rows])
    yield "valid", lambda: store.valid(LEVEL, name), same(~np.isnan(want).any(axis=1))
    yield (
        "batches",
        lambda: list(open_store(part.root).batches(LEVEL, name, batch_size=17, columns=["doc_id", "label"])),
        lambda got: (
            np.array_equal(np.concatenate([batch.vectors for batch in got]), want, equal_nan=True)
            and [len(batch.columns) for batch in got] == [len(batch.vectors) for batch in got]
        ),
    )
    fresh, columns = open_store(part.root), ["doc_id", "word", "label"]
    if stored:
        yield "polars", lambda: fresh.polars(LEVEL, [name]), lambda got: vectors_equal(got.to_arrow()[name], want)
    yield "columns", lambda: readable(fresh.polars(LEVEL, columns)), lambda got: len(got) == n_rows
    yield "rows", lambda: readable(fresh.rows(LEVEL, rows, columns)), lambda got: len(got) == len(rows)


def readable(frame: pl.DataFrame) -> list[Any]:
    """Make Python objects of a frame, which fails for text that is not UTF-8."""
    return frame.rows()


def vectors_equal(column: pa.ChunkedArray, want: np.ndarray) -> bool:
    null = np.full(want.shape[1], np.nan)
    rows = [np.frombuffer(row, want.dtype) if isinstance(row, bytes) else row for row in column.to_pylist()]
    return np.array_equal(np.array([null if row is None else row for row in rows], want.dtype), want, equal_nan=True)


def outcome(read: Callable[[], Any], is_right: Callable[[Any], bool]) -> tuple[str, str]:
    try:
        got = read()
    except StoreError as error:
        is_line = "\n" not in str(error)
        return ("refused", "") if is_line else ("MANY LINES", str(error))
    except BaseException as error:
        return "RAW", f"{type(error).__name__}: {error}"[:300]
    return ("right", "") if is_right(got) else ("WRONG", "")


def main(folder: Path, seed: int, n_tries: int) -> None:
    limit = 8 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    rng = random.Random(seed)
    parts = list(make_parts(folder))
    tally: Counter[str] = Counter()
    examples = []
    for number in range(n_tries):
        part = rng.choice(parts)
        data = bytearray(part.data)
        change = rng.choice(CHANGES)
        change(rng, part, data)
        part.path.write_bytes(data)
        for name, read, is_right in reads(rng, part):
            what, why = outcome(read, is_right)
            tally[what] += 1
            if what not in ("right", "refused"):
                examples.append(f"{what} {name} {part.root.name} {change.__name__} try {number}: {why}")
        part.path.write_bytes(part.data)
    print(json.dumps({"tries": n_tries, **tally, "examples": examples[:20]}))


if __name__ == "__main__":
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
