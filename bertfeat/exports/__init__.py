"""Exports: the vectors of a store as files of other tools, and a store's card for a hub of data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertfeat.lazy_names import lazy_names

if TYPE_CHECKING:
    from bertfeat.exports.card import dataset_card

__all__ = ["card", "dataset_card", "exporting", "frame_files", "methods", "word_types"]

__getattr__ = lazy_names(__name__, {"exports.card": "dataset_card"})
