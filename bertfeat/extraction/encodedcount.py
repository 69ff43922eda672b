"""Counter of the documents and tokens of a shard that are encoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertfeat.extraction.preparedtext import PreparedText, tokens_of
from bertfeat.progress import Report
from bertfeat.records import IntArray, Pack


class EncodedCount:
    """Counter of what is encoded of a shard; reports the start, and the state after each pack.

    A document is encoded when all its windows are. With document context, a window counts for its first document and
    for those after it that have no window of their own.
    """

    def __init__(self, prepared: PreparedText, packs: Sequence[Pack], report: Report) -> None:
        """Start to count; what is in no pack of `packs` counts as encoded, as it came from a cache."""
        n_documents = len(prepared.text.documents)
        self._document = prepared.text.windows.spans.document
        owners, n_windows = np.unique(self._document, return_counts=True)
        self._n_left = np.zeros(n_documents, np.int64)
        self._n_left[owners] = n_windows
        self._size = np.zeros(n_documents, np.int64)
        self._size[owners] = np.diff(owners, append=n_documents)
        self._n_documents = self._n_tokens = 0
        self._n_in_all = tokens_of(prepared.packs)
        self._report = report
        self._report(0, 0, self._n_in_all)
        n_known = self._n_in_all - tokens_of(packs)
        if n_known:
            served = np.unique(np.concatenate([np.zeros(0, np.int64), *(pack.served[0] for pack in packs)]))
            all_served = np.concatenate([pack.served[0] for pack in prepared.packs])
            self._count(np.setdiff1d(all_served, served), n_known)

    def add(self, pack: Pack) -> None:
        """Count a pack, or the part of one."""
        self._count(pack.served[0], pack.n_tokens)

    def _count(self, windows: IntArray, n_tokens: int) -> None:
        documents = self._document[windows]
        np.subtract.at(self._n_left, documents, 1)
        touched = np.unique(documents)
        self._n_documents += int(self._size[touched[self._n_left[touched] == 0]].sum())
        self._n_tokens += n_tokens
        self._report(self._n_documents, self._n_tokens, self._n_in_all)
