"""Synthetic plans and shard results whose values follow from arithmetic, and ways to read the stores of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bertfeat.choices import Level
from bertfeat.durable.records import seal
from bertfeat.records import (
    BadRow,
    Column,
    FeatureColumn,
    FileSlice,
    InputFile,
    LevelSchema,
    LevelTable,
    ModelInfo,
    Plan,
    ShardResult,
    ShardSpec,
)
from bertfeat.store.folder import folder_at
from bertfeat.store.manifest import Manifest, read_manifest
from bertfeat.store.plan_file import hash_of_plan
from bertfeat.store.reader import Store
from bertfeat.store.writer import open_for_writing

N_LAYERS = 6
HIDDEN = 4
LAST4 = (3, 4, 5, 6)

DOC_ID = Column("doc_id", "int64", nullable=False)
COLUMNS = {
    Level.TOKEN: (DOC_ID, Column("token_index", "int32", nullable=False), Column("token", "string", nullable=False)),
    Level.WORD: (DOC_ID, Column("word", "string"), Column("label", "string")),
    Level.SPAN: (DOC_ID, Column("text", "string", nullable=False)),
    Level.SENTENCE: (DOC_ID, Column("text", "string", nullable=False)),
}


METADATA = {
    "model": "tiny",
    "revision": None,
    "family": "bert",
    "weights_sha256": "a" * 64,
    "tokenizer_sha256": "b" * 64,
    "n_layers": N_LAYERS,
    "hidden_size": HIDDEN,
    "layers": list(LAST4),
    "combine": ["none", "concat"],
    "word_pooling": "first",
    "pooling": "mean",
    "include_special_tokens": False,
    "document_context": False,
    "max_length": 32,
    "stride": 8,
    "on_overlong": "window",
    "store_dtype": "float32",
    "compute_dtype": "float32",
    "versions": {"torch": "2.13.0"},
}


def write_jsonl(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def features(combine: str = "none,concat", layers: tuple[int, ...] = LAST4) -> tuple[FeatureColumn, ...]:
    columns = [FeatureColumn(f"layer_{n:02d}", (n,), "none", HIDDEN) for n in layers if "none" in combine]
    if "concat" in combine:
        columns.append(FeatureColumn("concat_last4", layers, "concat", HIDDEN * len(layers)))
    return tuple(columns)


def make_plan(
    n_rows: tuple[int, ...] = (5, 4, 3),
    *,
    levels: tuple[Level, ...] = (Level.TOKEN,),
    combine: str = "none,concat",
    dtype: str = "float16",
    encoding: str = "array",
    columns: Mapping[Level, tuple[Column, ...]] = COLUMNS,
    kept_schema: str | None = None,
    after: Plan | None = None,
    digest: str = "ab",
    **fields: Any,
) -> Plan:
    """Make a plan of one shard for each entry of `n_rows`; one that grows the store of the plan `after`."""
    fields = {"layers": "last4", "store_dtype": dtype, "vector_encoding": encoding, **fields}
    first, number = 0, 0
    if after is not None:
        fields["base"] = after.plan_hash
        number = after.shards[-1].index + 1
        first = after.shards[-1].first_row + after.shards[-1].n_rows
    shards = []
    for index, count in enumerate(n_rows, start=number):
        shards.append(ShardSpec(index, first, count, (FileSlice(0, first * 10, first + 1, count),)))
        first += count
    inputs = (InputFile("corpus.txt", "txt", None, 120, digest),)
    return Plan(
        plan_hash=hash_of_plan(fields, inputs),
        fields=fields,
        inputs=inputs,
        model=ModelInfo("tiny", None, "bert", "00", "11", N_LAYERS, HIDDEN, 32, 1000),
        schemas={level: LevelSchema(level, columns[level], features(combine)) for level in levels},
        shards=tuple(shards),
        metadata={"model": "tiny", "layers": list(LAST4), "versions": {"torch": "2.13.0"}},
        kept_schema=kept_schema,
    )


def layer_values(first_row: int, n_rows: int, layer: int, dtype: str) -> np.ndarray:
    """Return vectors (n_rows, HIDDEN) of 100 * layer + row + component / 4."""
    rows = np.arange(first_row, first_row + n_rows)[:, None]
    return (100 * layer + rows + np.arange(HIDDEN) / 4).astype(dtype)


def vectors_of(feature: FeatureColumn, first_row: int, n_rows: int, dtype: str) -> np.ndarray:
    return np.concatenate([layer_values(first_row, n_rows, layer, dtype) for layer in feature.layers], axis=1)


def column_values(column: Column, first_row: int, n_rows: int) -> Any:
    rows = range(first_row, first_row + n_rows)
    if column.type.startswith("int"):
        return np.arange(first_row, first_row + n_rows)
    return [None if column.nullable and row % 3 == 0 else f"{column.name} {row} ü" for row in rows]


def make_table(plan: Plan, shard: ShardSpec, level: Level, *, nulls: bool = False) -> LevelTable:
    """Make a shard's table; with `nulls`, every third row has no vector."""
    schema, first, n = plan.schemas[level], shard.first_row, shard.n_rows
    columns = {column.name: column_values(column, first, n) for column in schema.columns}
    vectors = {f.name: vectors_of(f, first, n, plan.fields["store_dtype"]) for f in schema.features}
    return LevelTable(level, n, columns, vectors, valid=(np.arange(n) % 3 != 1) if nulls else None)


def make_result(plan: Plan, shard: ShardSpec, *, nulls: bool = False, n_bad: int = 0) -> ShardResult:
    bad = [BadRow(shard.first_row + k, "corpus.txt", k + 1, "no utf-8", b"\xff\xfe") for k in range(n_bad)]
    return ShardResult(
        tables={level: make_table(plan, shard, level, nulls=nulls) for level in plan.schemas},
        bad_rows=bad,
        counts={"n_documents": shard.n_rows - n_bad, "tokens": 2 * shard.n_rows},
        seconds={"encode": 0.25},
    )


def write_store(root: Path, plan: Plan, *, overwrite: bool = False, **result: Any) -> None:
    """Run a whole extraction, or an append, with synthetic results."""
    with open_for_writing(root, plan, overwrite=overwrite) as writer:
        for shard in writer.pending():
            writer.commit(shard, make_result(plan, shard, **result))
        writer.complete()


def part_name(plan: Plan, shard: int, level: Level = Level.TOKEN) -> str:
    return f"{level}/part-{shard:05d}-{plan.plan_hash[:8]}.parquet"


def part_at(root: Path, level: str, shard: int) -> Path:
    """The part of a shard, whatever its plan."""
    (found,) = Path(root).glob(f"{level}/part-{shard:05d}-*.parquet")
    return found


def rewrite_manifest(root: Path, change: Callable[[Manifest], Manifest]) -> None:
    """Change the newest manifest, and seal it again."""
    manifest = read_manifest(folder_at(root))
    (root / f"manifests/{manifest.version:05d}.json").write_bytes(seal(change(manifest)))


def without_runs(root: Path) -> None:
    """Remove the places of the vectors from a store's manifest."""

    def change(manifest: Manifest) -> Manifest:
        return manifest.with_shards(
            [replace(s, parts=tuple(replace(part, runs=None) for part in s.parts)) for s in manifest.shards]
        )

    rewrite_manifest(root, change)


def contents(root: Path) -> dict[str, bytes]:
    """The reproducible files of a store: everything but receipts and the lock."""
    found = {file.relative_to(root).as_posix(): file for file in sorted(root.rglob("*")) if file.is_file()}
    is_own = re.compile(r"_bertfeat/(lock|work/[0-9a-f]{64}/\d+\.json)")
    return {name: file.read_bytes() for name, file in found.items() if not is_own.fullmatch(name)}


def receipt_files(root: Path) -> list[Path]:
    return sorted(file for file in root.glob("_bertfeat/work/*/*.json") if file.stem.isdigit())


KINDS = [(dtype, encoding) for dtype in ("float16", "float32") for encoding in ("array", "binary")]
# Every way to read vectors of the level "token" of a store with several parts.
READS: dict[str, Callable[[Store], object]] = {
    "numpy": lambda store: store.numpy("token", "layer_04"),
    "torch": lambda store: store.torch("token", "layer_04"),
    "take": lambda store: store.take("token", "mean_last4", [0, 5]),
    "slice": lambda store: store.slice("token", "layer_04", 0, 6),
    "batches": lambda store: list(store.batches("token", "mean_last4")),
    "valid": lambda store: store.valid("token", "layer_04"),
    "polars": lambda store: store.polars("token", ["layer_04"]),
    "arrow": lambda store: store.arrow("token"),
}


def n_bytes_read() -> int:
    """Return the bytes that this process has read, from disks or from memory."""
    return int(Path("/proc/self/io").read_text().split()[1])


def decoded(store: Store, level: str, name: str) -> np.ndarray:
    """Return a stored column as pyarrow alone decodes it; NaN for null vectors."""
    dtype = store.manifest.store_dtype
    dim = store.feature(level, name).dim
    rows = [row for part in store.parts(level) for row in pq.read_table(store.path / part.path)[name].to_numpy()]
    vectors = [
        [np.nan] * dim if row is None else np.frombuffer(row, dtype) if isinstance(row, bytes) else row for row in rows
    ]
    return np.array(vectors, dtype).reshape(-1, dim)
