"""Rows of one store, or the rows that two stores have in common, read block by block for all layers together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.finite import first_not_finite
from bertfeat.levels import LEVELS
from bertfeat.records import FeatureColumn, Float32Array, Int32Array, IntArray
from bertfeat.store.reader import Store

# The vectors of a block, all layers together, as float32.
_BLOCK_BYTES = 64_000_000
# The unbiased estimate of CKA needs four.
_LEAST_ROWS = 4


@dataclass(frozen=True, slots=True, eq=False)
class LayerColumn:
    """A layer of a store, or another stored feature where no single layer is stored.

    `side` is "store", or "other" for the second store; `rows` are the rows of the level that are measured, (n_rows,).
    """

    side: str
    store: Store
    level: Level
    feature: FeatureColumn
    rows: IntArray

    def take(self, start: int, stop: int) -> Float32Array:
        """Return the vectors of some of `rows`, float32 (n, dim).

        Raises:
            UserError: A vector holds NaN or infinity.
        """
        found = self.store.take(self.level, self.feature.name, self.rows[start:stop])
        bad = first_not_finite(found)
        if bad is not None:
            raise UserError(
                f"{self.store.path}: {self.feature.name} of {self.level} row {self.rows[start + bad]} holds NaN or "
                "infinity; run bertfeat verify, and extract the store again"
            )
        return found.astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True, eq=False)
class LayerRows:
    """The measured rows and their columns.

    Attributes:
        columns: The layers of the store, ascending; then those of the other store.
        documents: int32 (n_rows,): the number of each row's document, ascending.
        types: int32 (n_rows,): the number of each row's word type; -1 without a word.
        names: The word types.
    """

    columns: Sequence[LayerColumn]
    documents: Int32Array
    types: Int32Array
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.documents)

    def blocks(self, chosen: Sequence[int]) -> Iterator[tuple[slice, dict[int, Float32Array]]]:
        """Yield the rows in order, block by block, with the vectors of some columns by their numbers."""
        step = max(16, _BLOCK_BYTES // (4 * sum(self.columns[number].feature.dim for number in chosen)))
        for start in range(0, len(self), step):
            stop = min(start + step, len(self))
            yield slice(start, stop), {number: self.columns[number].take(start, stop) for number in chosen}


def read_rows(store: Store, other: Store | None, level: Level) -> LayerRows:
    """Find the rows to measure: those with a vector in every layer, of both stores if there are two.

    Special tokens are left out. Rows of two stores are matched by document, by the number of the word or token in it,
    and by the word or token itself; at the sentence level by document and text. A word or text that one store does not
    know is not compared.

    Raises:
        UserError: A store has no such level, too few rows have vectors, or the stores have no common rows.
        StoreError: A part is missing or damaged.
    """
    if other is not None:
        _check_pair(store, other, level)
    names: dict[str, int] = {}
    sides = [("store", store, "row"), *([] if other is None else [("other", other, "row_other")])]
    frames = [_keys(one, level, names) for _, one, _ in sides]
    frame = _common(frames[0], frames[1], LEVELS[level].keys) if other is not None else frames[0]
    if other is not None and not len(frame):
        what = f"{level}s" if LEVELS[level].surface else "texts"
        raise UserError(
            f"{store.path} and {other.path}: no common rows at level {level}: no document has the same id and the same "
            f"{what} in both; extract the same corpus with the same ids"
        )
    if len(frame) < _LEAST_ROWS:
        counted = f"{len(frame)} row{'s' * (len(frame) != 1)} at level {level}"
        have = "are in both stores with a vector" if other is not None else "have a vector"
        raise UserError(f"{store.path}: {counted} {have}; layers need {_LEAST_ROWS} or more")
    columns = [
        LayerColumn(side, one, level, feature, frame[row].to_numpy())
        for side, one, row in sides
        for feature in _features(one, level)
    ]
    documents = frame["doc_id"].rle_id().cast(pl.Int32).to_numpy()
    types = frame["type"].fill_null(-1).to_numpy() if LEVELS[level].surface else np.full(len(frame), -1, np.int32)
    return LayerRows(columns, documents, types, list(names))


def _features(store: Store, level: Level) -> list[FeatureColumn]:
    """Return the layers that can be read, ascending; without any, the stored features."""
    found = []
    for layer in range(store.metadata["n_layers"] + 1):
        try:
            found.append(store.feature(level, layer))
        except UserError:
            continue
    return found or list(store.features(level))


def _keys(store: Store, level: Level, numbers: dict[str, int]) -> pl.DataFrame:
    """Return the keys of the rows that count, shard by shard, with `row` and `type`: no text stays in memory.

    `type` is the number of the word in `numbers`, which grows, or a hash of the text; null where it is unknown.
    """
    entry, there = LEVELS[level], store.columns(level)
    surface = entry.surface or "text"
    special = ["is_special"] if "is_special" in there else []
    frames = []
    for shard in store.manifest.shards:
        frame = store.shard(shard.shard).polars(level, [*entry.keys, surface, *special])
        if entry.surface:
            words = frame[surface].to_list()
            found = [None if word is None else numbers.setdefault(word, len(numbers)) for word in words]
            kind = pl.Series("type", found, pl.Int32)
        else:
            kind = frame.select(pl.when(pl.col(surface).is_not_null()).then(pl.col(surface).hash()).alias("type"))[
                "type"
            ]
        frames.append(frame.select(*entry.keys, *special).with_columns(kind))
    if not frames:
        raise UserError(f"{store.path}: has no rows; layers need {_LEAST_ROWS} or more")
    flags: Any = np.logical_and.reduce([store.valid(level, feature.name) for feature in _features(store, level)])
    keys = pl.concat(frames).with_row_index("row").with_columns(pl.col("row").cast(pl.Int64), pl.Series("kept", flags))
    return keys.filter(pl.all_horizontal("kept", *(~pl.col(name) for name in special))).drop("kept", *special)


def _common(one: pl.DataFrame, two: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the rows of the first frame that the second one has too, in order, with `row_other`."""
    both = one.join(two, on=keys, how="inner", suffix="_other", maintain_order="left")
    same = pl.col("type").eq(pl.col("type_other")).fill_null(True)
    return both.filter(same).with_columns(pl.coalesce("type", "type_other").alias("type"))


def _check_pair(store: Store, other: Store, level: Level) -> None:
    schemas = [one.schema(level) for one in (store, other)]
    kinds = [next(column.type for column in schema.columns if column.name == "doc_id") for schema in schemas]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{store.path} and {other.path}: no common rows: doc_id is {kinds[0]} in the first and {kinds[1]} in the "
            "second; extract both with the same id column"
        )
    digests = [one.metadata.get("tokenizer_sha256") for one in (store, other)]
    if level is Level.TOKEN and digests[0] != digests[1]:
        raise UserError(
            f"{store.path} and {other.path}: tokens of two tokenizers cannot be matched; pass `level='word'`"
        )
