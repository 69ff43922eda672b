"""Counter of the documents and tokens of a shard that are encoded."""

from __future__ import annotations

import numpy as np

from bertfeat.extraction.preparedtext import PreparedText, tokens_of
from bertfeat.progress import Report
from bertfeat.records import Pack


class EncodedCount:
    """Counter of what is encoded of a shard; reports the start, and the state after each pack.

    A document is encoded when all its windows are. With document context, a window counts for its first document and
    for those after it that have no window of their own.
    """

    def __init__(self, prepared: PreparedText, report: Report) -> None:
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

    def add(self, pack: Pack) -> None:
        """Count a pack, or the part of one."""
        documents = self._document[pack.served[0]]
        np.subtract.at(self._n_left, documents, 1)
        touched = np.unique(documents)
        self._n_documents += int(self._size[touched[self._n_left[touched] == 0]].sum())
        self._n_tokens += pack.n_tokens
        self._report(self._n_documents, self._n_tokens, self._n_in_all)
