"""Rows of a store for an export: a level, some vectors of it, and the first documents, read shard by shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.levels import DOC_ID, LEVELS
from bertfeat.records import BoolArray, FeatureColumn, IntArray
from bertfeat.store.reader import Store

_BLOCK_BYTES = 4 << 20


class Rows(NamedTuple):
    """Whole documents of a level.

    `first_document` counts the documents before; `bounds` (n_documents + 1) are their first rows here, then the number
    of rows; `columns` are all columns without vectors; `vectors` is (n_features, n_rows, dim) of the stored type, NaN
    in a row without a vector.
    """

    first_document: int
    bounds: IntArray
    columns: pl.DataFrame
    vectors: npt.NDArray[Any]

    @property
    def has_vector(self) -> BoolArray:
        """Which rows have a vector, bool (n_rows,)."""
        found: BoolArray = ~np.isnan(self.vectors[0, :, 0])
        return found

    def documents(self) -> Iterator[tuple[int, Any, slice]]:
        """Yield number, id and rows of each document."""
        ids, bounds = self.columns[DOC_ID.name], self.bounds.tolist()
        for place, (first, last) in enumerate(pairwise(bounds)):
            yield self.first_document + place, ids[first], slice(first, last)


class ShardRows(NamedTuple):
    """The rows to write of a shard: its number, how many rows and documents, and how many rows have a vector."""

    number: int
    n_rows: int
    n_documents: int
    n_vectors: int


@dataclass(frozen=True)
class Selection:
    """The rows and vectors to write; `limit` is the number of documents, None for all."""

    store: Store
    level: Level
    features: tuple[FeatureColumn, ...]
    limit: int | None

    @cached_property
    def shards(self) -> list[ShardRows]:
        """What to write of each shard; reads the ids only, and which rows have a vector."""
        found, n_left = [], self.limit
        for number in (shard.shard for shard in self.store.manifest.shards):
            if n_left is not None and n_left <= 0:
                break
            shard = self.store.shard(number)
            bounds = self._bounds(shard)[: None if n_left is None else n_left + 1]
            n_rows, n_documents = int(bounds[-1]), len(bounds) - 1
            n_vectors = int(np.count_nonzero(shard.valid(self.level, self.features[0].name)[:n_rows]))
            found.append(ShardRows(number, n_rows, n_documents, n_vectors))
            n_left = None if n_left is None else n_left - n_documents
        return found

    @property
    def n_rows(self) -> int:
        """The rows."""
        return sum(shard.n_rows for shard in self.shards)

    @property
    def n_vectors(self) -> int:
        """The rows with a vector."""
        return sum(shard.n_vectors for shard in self.shards)

    def words(self, rows: Rows) -> list[str]:
        """Return the word or token of each row.

        Raises:
            UserError: A row has none, as in a store of imported vectors without words.
        """
        found = rows.columns[LEVELS[self.level].surface].to_list()
        if None in found:
            reason = f"rows of level {self.level} have no words; import the vectors with words, or export to npy"
            raise UserError(f"{self.store.path}: {reason}")
        return found

    def _bounds(self, shard: Store) -> IntArray:
        """Return the first row of each document of a shard, then the number of rows."""
        ids = shard.polars(self.level, [DOC_ID.name])[DOC_ID.name]
        starts = np.flatnonzero(ids.ne_missing(ids.shift(1)).to_numpy()[1:]) + 1
        return np.array([0, *starts, len(ids)] if len(ids) else [0], np.int64)

    def blocks(self, chosen: ShardRows, first_document: int) -> Iterator[Rows]:
        """Yield the documents of a shard, some at a time: 4 MB of float32, or one document that is larger."""
        shard = self.store.shard(chosen.number)
        bounds = self._bounds(shard)[: chosen.n_documents + 1]
        columns = shard.polars(self.level, [column.name for column in shard.schema(self.level).columns])
        most = max(1, _BLOCK_BYTES // (4 * sum(feature.dim for feature in self.features)))
        at = 0
        while at < chosen.n_documents:
            stop = max(at + 1, int(np.searchsorted(bounds, bounds[at] + most, side="right")) - 1)
            first, last = int(bounds[at]), int(bounds[stop])
            vectors = [shard.slice(self.level, feature.name, first, last) for feature in self.features]
            yield Rows(first_document + at, bounds[at : stop + 1] - first, columns[first:last], np.stack(vectors))
            at = stop
