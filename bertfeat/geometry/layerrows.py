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
from bertfeat.records import BoolArray, FeatureColumn, Float32Array, Int32Array, IntArray
from bertfeat.store.reader import Store

# The vectors of a block, all layers together, as float32.
_BLOCK_BYTES = 64_000_000
_LEAST_ROWS = 3


@dataclass(frozen=True, slots=True, eq=False)
class LayerColumn:
    """A layer of a store, or another stored feature where no single layer is stored.

    Attributes:
        side: "store", or "other" for the second store.
        store: Its store.
        feature: The feature.
        rows: int64 (n_rows,): the rows of the level that are measured.
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
        documents: int32 (n_rows,): the number of each row's document; equal numbers are consecutive.
        types: int32 (n_rows,): the number of each row's word type; None at the sentence level.
        names: The word types.
    """

    columns: Sequence[LayerColumn]
    documents: Int32Array
    types: Int32Array | None
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.documents)

    def blocks(self, chosen: Sequence[int]) -> Iterator[tuple[slice, dict[int, Float32Array]]]:
        """Yield the rows in order, block by block, with the vectors of some columns by their numbers."""
        width = sum(self.columns[number].feature.dim for number in chosen)
        step = max(16, _BLOCK_BYTES // (4 * width))
        for start in range(0, len(self), step):
            stop = min(start + step, len(self))
            yield slice(start, stop), {number: self.columns[number].take(start, stop) for number in chosen}


def read_rows(store: Store, other: Store | None, level: str) -> LayerRows:
    """Find the rows to measure: those with a vector in every layer, of both stores if there are two.

    Special tokens are left out. Rows of two stores are matched by document, by the number of the word or token in it,
    and by the word or token itself; at the sentence level by document and text.

    Raises:
        UserError: A store has no such level, too few rows have vectors, or the stores have no common rows.
        StoreError: A part is missing or damaged.
    """
    here = store.schema(level).level
    types: dict[str, int] = {}
    frame = _keys(store, here, types)
    if other is not None:
        _check_pair(store, other, here)
        frame = _common(frame, _keys(other, here, types), LEVELS[here].keys)
        if not len(frame):
            what = f"{here}s" if LEVELS[here].surface else "texts"
            raise UserError(
                f"{store.path} and {other.path}: no common rows at level {here}: no document has the same id and the "
                f"same {what} in both; extract the same corpus with the same ids"
            )
    if len(frame) < _LEAST_ROWS:
        raise UserError(
            f"{store.path}: {len(frame)} rows at level {here} have a vector; layers need {_LEAST_ROWS} or more"
        )
    sides = [("store", store, "row")] if other is None else [("store", store, "row"), ("other", other, "row_other")]
    columns = [
        LayerColumn(side, one, here, feature, frame[name].to_numpy())
        for side, one, name in sides
        for feature in _features(one, here)
    ]
    documents = frame["doc_id"].rle_id().cast(pl.Int32).to_numpy()
    has_types = bool(LEVELS[here].surface)
    return LayerRows(columns, documents, frame["type"].to_numpy() if has_types else None, list(types))


def _features(store: Store, level: Level) -> list[FeatureColumn]:
    """Return the layers that can be read, ascending; without any, the stored features."""
    found = []
    for layer in range(store.metadata["n_layers"] + 1):
        try:
            found.append(store.feature(level, layer))
        except UserError:
            continue
    return found or list(store.features(level))


def _keys(store: Store, level: Level, types: dict[str, int]) -> pl.DataFrame:
    """Return the keys of the rows that count, shard by shard, with `row` and `type`: no text stays in memory.

    `type` is the number of the word in `types`, which grows; at the sentence level a hash of the text.
    """
    entry = LEVELS[level]
    there = store.columns(level)
    surface = entry.surface or ("text" if "text" in there else "")
    special = ["is_special"] if "is_special" in there else []
    names = [*entry.keys, *([surface] if surface else []), *special]
    frames = []
    for shard in store.manifest["shards"]:
        frame = store.shard(shard["shard"]).polars(level, names)
        if entry.surface:
            numbers = [types.setdefault(word, len(types)) for word in frame[surface].to_list()]
            code = pl.Series("type", numbers, pl.Int32)
        else:
            code = frame[surface].hash().alias("type") if surface else pl.Series("type", [0] * len(frame), pl.UInt64)
        kept = ~frame["is_special"] if special else pl.repeat(True, len(frame), eager=True)
        frames.append(frame.select(entry.keys).with_columns(code, kept.alias("kept")))
    if not frames:
        raise UserError(f"{store.path}: has no rows; layers need {_LEAST_ROWS} or more")
    found = pl.concat(frames).with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    return found.filter(pl.Series(_valid(store, level)) & pl.col("kept")).drop("kept")


def _valid(store: Store, level: Level) -> BoolArray:
    flags: Any = np.ones(store.n_rows(level), bool)
    for feature in _features(store, level):
        flags &= store.valid(level, feature.name)
    return np.asarray(flags)


def _common(one: pl.DataFrame, two: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the rows of the first frame that the second one has too, in order, with `row_other`.

    Rows with equal keys, which an import may hold, are matched in their order.
    """
    on = [*keys, "type"]
    first, second = (frame.with_columns(pl.int_range(pl.len()).over(on).alias("copy")) for frame in (one, two))
    return first.join(second, on=[*on, "copy"], how="inner", suffix="_other", maintain_order="left")


def _check_pair(store: Store, other: Store, level: Level) -> None:
    other.schema(level)
    kinds = [
        next(column.type for column in one.schema(level).columns if column.name == "doc_id") for one in (store, other)
    ]
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
