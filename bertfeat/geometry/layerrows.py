"""Rows of one store, or the rows that two stores have in common, by document, number and word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS
from bertfeat.records import FeatureColumn
from bertfeat.store.reader import Store

# The unbiased estimate of CKA needs four.
_LEAST_ROWS = 4


def matched_rows(store: Store, other: Store | None, level: Level) -> tuple[pl.DataFrame, list[str]]:
    """Return the rows to measure, those with a vector in every layer, and the word types.

    Special tokens are left out. Rows of two stores are matched by document, by the number of the word or token in it,
    and by the word or token itself; at the sentence level by document and text. A word or text that one store does not
    know is not compared.

    Returns:
        A frame with `row`, `row_other` if there are two stores, the ascending number of the `document`, and the number
        of the word `type`, -1 without a word; and the words by these numbers.

    Raises:
        UserError: A store has no such level, too few rows have vectors, or the stores have no common rows.
        StoreError: A part is missing or damaged.
    """
    if other is not None:
        _check_pair(store, other, level)
    names: dict[str, int] = {}
    frame, have = _keys(store, level, names), "have a vector"
    if other is not None:
        frame, have = _common(frame, _keys(other, level, names), LEVELS[level].keys), "are in both stores with a vector"
        if not len(frame):
            what = f"{level}s" if LEVELS[level].surface else "texts"
            raise UserError(
                f"{store.path} and {other.path}: no common rows at level {level}: no document has the same id and the "
                f"same {what} in both; extract the same corpus with the same ids"
            )
    if len(frame) < _LEAST_ROWS:
        counted = f"{len(frame)} row{'s' * (len(frame) != 1)} at level {level}"
        raise UserError(f"{store.path}: {counted} {have}; layers need {_LEAST_ROWS} or more")
    known = pl.col("type").fill_null(-1) if LEVELS[level].surface else pl.lit(-1)
    document = pl.col("doc_id").rle_id().cast(pl.Int32).alias("document")
    return frame.with_columns(document, known.cast(pl.Int32).alias("type")), list(names)


def layer_features(store: Store, level: Level) -> list[FeatureColumn]:
    """Return the layers that can be read, ascending; without any, the stored features."""
    found = []
    for layer in range(store.metadata["n_layers"] + 1):
        try:
            found.append(store.feature(level, layer))
        except UserError:
            continue
    return found or list(store.features(level))


def _keys(store: Store, level: Level, numbers: dict[str, int]) -> pl.DataFrame:
    """Return the keys of the rows that count, with `row` and `type`: no text stays in memory.

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
    flags: Any = np.logical_and.reduce([store.valid(level, feature.name) for feature in layer_features(store, level)])
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
