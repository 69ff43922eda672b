"""Small real stores that the tests of probes share, extracted once per run with the packaged MiniLM.

The labels are real too: which of three sources a sentence comes from, and the chemicals and diseases of BC5CDR.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import bertfeat
from bertfeat.choices import Level
from bertfeat.records import Column, LevelTable, ShardResult
from bertfeat.store.reader import Store, open_store
from bertfeat.store.writer import open_for_writing
from tests.support.places import ROOT, TESTS
from tests.support.store_fakes import HIDDEN, LAST4, METADATA, make_plan, write_jsonl

NER = TESTS / "data" / "ner"
PEPS = ROOT / "examples" / "data" / "peps.txt"

N_TRAIN, N_DEV = 40, 15
N_TRAIN_SENTENCES, N_DEV_SENTENCES = 80, 40
# Short windows, so that some words lose their tokens and have no vector.
MAX_LENGTH = 48


@dataclass(frozen=True)
class Stores:
    """Training and dev stores of each kind, and the files that they were extracted from."""

    train: Store
    dev: Store
    words_train: Store
    words_dev: Store
    files: dict[str, Path]


def blocks(name: str) -> list[str]:
    """Return the sentences of a CoNLL file as they are."""
    return [block for block in (NER / name).read_text("utf-8").split("\n\n") if block.strip()]


def texts(name: str) -> list[str]:
    return [" ".join(line.split("\t")[0] for line in block.splitlines()) for block in blocks(name)]


def corpus(start: int, stop: int) -> list[dict[str, object]]:
    """Return sentences of three sources, interleaved; one of each source is whitespace and has no vector."""
    sources = {
        "medical": texts("bc5cdr_test.tsv"),
        "social": texts("wnut17_test.conll"),
        "python": [line for line in PEPS.read_text("utf-8").splitlines() if len(line) > 40],
    }
    return [
        {
            "id": f"{domain}-{n}",
            "text": " " if n == start + 5 else lines[n],
            "domain": domain,
            # Half of the rows lack this label.
            "is_medical": None if n % 2 else int(domain == "medical"),
            "one": "same",
        }
        for n in range(start, stop)
        for domain, lines in sources.items()
    ]


@functools.cache
def make_stores(folder: Path) -> Stores:
    """Extract the stores into a folder; a second call returns the same ones, which must not be changed."""
    import torch

    from bertfeat.devices import one_thread

    files = {
        "train": write_jsonl(folder / "train.jsonl", corpus(0, N_TRAIN)),
        "dev": write_jsonl(folder / "dev.jsonl", corpus(N_TRAIN, N_TRAIN + N_DEV)),
        "words_train": folder / "words_train.conll",
        "words_dev": folder / "words_dev.conll",
    }
    conll, last = blocks("bc5cdr_test.tsv"), N_TRAIN_SENTENCES + N_DEV_SENTENCES
    files["words_train"].write_text("\n\n".join(conll[:N_TRAIN_SENTENCES]) + "\n", "utf-8")
    files["words_dev"].write_text("\n\n".join(conll[N_TRAIN_SENTENCES:last]) + "\n", "utf-8")
    kept = {"id_column": "id", "keep_columns": "domain,is_medical,one"}
    sentences = {"levels": "sentence", "combine": "concat", **kept}
    words = {"levels": "token,word", "combine": "none", "max_length": MAX_LENGTH, "on_overlong": "truncate"}
    stores = {}
    # Small matrices, and other tests may run at the same time.
    with one_thread(torch.device("cpu")):
        for name, path in files.items():
            settings = words if name.startswith("words") else sentences
            stores[name] = bertfeat.extract(path, folder / f"{name}_store", layers="last4", **settings)
    return Stores(**stores, files=files)


_TYPES = {pl.Int64: "int64", pl.Int32: "int32", pl.String: "string", pl.Boolean: "bool", pl.Float64: "double"}


def write_fake(
    root: Path,
    shards: list[dict[Level, pl.DataFrame]],
    vectors: Callable[[Level, int, int], np.ndarray],
    *,
    combine: str = "concat",
    valid: Callable[[Level, int, int], np.ndarray] | None = None,
    **metadata: Any,
) -> Store:
    """Write a store of given columns.

    Args:
        root: Its folder.
        shards: The columns of each level, shard by shard.
        vectors: The vectors of the rows `start` to `stop - 1` of a level, (n_rows, 4 * HIDDEN), lowest layer first.
        combine: Which vector columns are written.
        valid: Which rows have a vector; all without it.
        **metadata: Values of the store's metadata that differ from the default.
    """
    levels = tuple(level for level in Level if level in shards[0])
    columns = {
        level: tuple(
            Column(name, _TYPES[type(kind)], nullable=name != "doc_id")
            for name, kind in shards[0][level].schema.items()
        )
        for level in levels
    }
    counts = tuple(shard[levels[-1]].height for shard in shards)
    plan = make_plan(counts, levels=levels, combine=combine, dtype="float32", columns=columns)
    plan = replace(plan, metadata={**METADATA, **metadata})
    place = dict.fromkeys(levels, 0)

    def table(level: Level, frame: pl.DataFrame) -> LevelTable:
        start, stop = place[level], place[level] + frame.height
        place[level] = stop
        rows = vectors(level, start, stop).astype(np.float32)
        found = {
            f.name: rows if f.combine == "concat" else rows[:, (n := LAST4.index(f.layers[0]) * HIDDEN) : n + HIDDEN]
            for f in plan.schemas[level].features
        }
        has = None if valid is None else valid(level, start, stop)
        return LevelTable(level, frame.height, {c: frame[c].to_list() for c in frame.columns}, found, has)

    with open_for_writing(root, plan) as writer:
        for spec, shard in zip(plan.shards, shards, strict=True):
            tables = {level: table(level, shard[level]) for level in levels}
            writer.commit(spec, ShardResult(tables, (), {}, {}))
        writer.complete()
    return open_store(root)


def word_frame(first_doc: int, lengths: list[int], labels: Callable[[int, int], str | None]) -> pl.DataFrame:
    """Return the columns of the words of documents; `labels` says what the n-th word of a document is labelled."""
    rows = [(first_doc + d, n) for d, length in enumerate(lengths) for n in range(length)]
    return pl.DataFrame(
        {
            "doc_id": [doc for doc, _ in rows],
            "word_index": pl.Series([n for _, n in rows], dtype=pl.Int32),
            "word": [f"w{n}" for _, n in rows],
            "label": pl.Series([labels(doc, n) for doc, n in rows], dtype=pl.String),
        },
        schema_overrides={"doc_id": pl.Int64},
    )


def numbered(level: Level, start: int, stop: int) -> np.ndarray:
    """Return vectors (n_rows, 4 * HIDDEN) that identify their row: row + component / 16."""
    return np.arange(start, stop)[:, None] + np.arange(4 * HIDDEN) / 16
