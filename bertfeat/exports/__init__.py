"""Exports: the vectors of a store as files of other tools, and a store's card for a hub of data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertfeat.lazynames import lazy_names

if TYPE_CHECKING:
    from bertfeat.exports.datasetcard import dataset_card

__all__ = ["dataset_card", "datasetcard", "exporting", "framefiles", "wordtypes"]

__getattr__ = lazy_names(__name__, {"exports.datasetcard": "dataset_card"})
