"""Rows of a store for an export: a level, some vectors of it, and the first documents, read shard by shard."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.levels import DOC_ID, LEVELS
from bertfeat.progress import Progress
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
        ids = self.columns[DOC_ID.name]
        for place, (first, last) in enumerate(pairwise(self.bounds.tolist())):
            yield self.first_document + place, ids[first], slice(first, last)


class Selection:
    """The rows and vectors to write; `limit` is the number of documents, None for all."""

    def __init__(self, store: Store, level: Level, features: tuple[FeatureColumn, ...], limit: int | None) -> None:
        self.store, self.level, self.features = store, level, features
        self.n_rows = self.n_documents = self.n_vectors = 0
        # For each shard, the first row of each document, then the number of rows.
        self._bounds: dict[int, IntArray] = {}
        for entry in store.manifest.shards:
            if self.n_documents == limit:
                break
            shard = store.shard(entry.shard)
            ids = shard.polars(level, [DOC_ID.name])[DOC_ID.name]
            starts = np.flatnonzero(ids.ne_missing(ids.shift(1)).to_numpy()[1:]) + 1
            bounds = np.array([0, *starts, len(ids)] if len(ids) else [0], np.int64)
            bounds = bounds[: None if limit is None else limit - self.n_documents + 1]
            self._bounds[entry.shard] = bounds
            self.n_rows += int(bounds[-1])
            self.n_documents += len(bounds) - 1
            self.n_vectors += int(np.count_nonzero(shard.valid(level, features[0].name)[: bounds[-1]]))

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

    def blocks(self, reports: Progress) -> Iterator[Rows]:
        """Yield all documents, some at a time: 4 MB of float32, or one document that is larger."""
        most = max(1, _BLOCK_BYTES // (4 * sum(feature.dim for feature in self.features)))
        n_rows = n_documents = 0
        for number, bounds in self._bounds.items():
            shard, at = self.store.shard(number), 0
            columns = shard.polars(self.level, [column.name for column in shard.schema(self.level).columns])
            while at < len(bounds) - 1:
                reports.stage("exporting rows", n_rows, self.n_rows)
                stop = max(at + 1, int(np.searchsorted(bounds, bounds[at] + most, side="right")) - 1)
                first, last = int(bounds[at]), int(bounds[stop])
                vectors = [shard.slice(self.level, feature.name, first, last) for feature in self.features]
                yield Rows(n_documents, bounds[at : stop + 1] - first, columns[first:last], np.stack(vectors))
                n_rows, n_documents, at = n_rows + last - first, n_documents + stop - at, stop
        reports.stage("exporting rows", n_rows, self.n_rows)
