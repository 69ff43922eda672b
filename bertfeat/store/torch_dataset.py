"""Data set of torch over the rows of a level, for its `DataLoader`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from bertfeat.records import BoolArray, IntArray

if TYPE_CHECKING:
    from bertfeat.store.reader import Store


class FeatureDataset(torch.utils.data.Dataset[Any]):
    """Rows of a level with a vector and a label: `rows`, int64 (n_items,), and texts as labels: `classes`, or None."""

    def __init__(self, store: Store, level: str, feature: str | int, labels: pl.Series | None) -> None:
        self._store, self._level, self._feature = store, level, feature
        has_all: BoolArray = store.valid(level, feature)
        self.classes: list[Any] | None = None
        self._labels: npt.NDArray[Any] | None = None
        if labels is not None:
            has_all &= labels.is_not_null().to_numpy()
            labels = labels.filter(has_all)
            if not labels.dtype.is_numeric():
                self.classes = labels.unique().sort().to_list()
                labels = labels.rank("dense").cast(pl.Int64) - 1
            self._labels = labels.to_numpy().astype(np.float32 if labels.dtype.is_float() else np.int64)
        self.rows: IntArray = np.flatnonzero(has_all)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return some items, in the order of `indices`; `DataLoader` calls this for each batch."""
        places = np.array(indices, np.int64)
        vectors = self._store.take(self._level, self._feature, self.rows[places])
        found = list(torch.from_numpy(vectors.astype(np.float32)))
        return found if self._labels is None else list(zip(found, self._labels[places], strict=True))
