"""bertfeat: `bertfeat.extract` as users call it. Every call opens and checks the model again.

In memory, the model is loaded once and `Flow` encodes the texts: `bertfeat.embed` without its loading.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bertfeat
from benchmarks.speed.peers import Task
from bertfeat.choices import Level
from bertfeat.extraction.documents import documents_of
from bertfeat.extraction.flow import Flow


class Peer:
    """bertfeat; it chooses its packs itself, so there is no batch size to try."""

    BATCHES = (0,)

    def __init__(self, task: Task) -> None:
        self._task = task
        self._settings: dict[str, Any] = {
            "model": task.model,
            **task.output.settings(),
            "max_length": task.max_length,
            "device": task.device,
            "compute_dtype": task.dtype,
            "is_split_into_words": task.output.level == "word",
            **task.settings,
        }
        self._flow: Flow | None = None

    def run(self, corpus: Path, output: Path, batch: int) -> dict[str, Any]:  # noqa: ARG002
        """Encode a corpus to a store."""
        store = bertfeat.extract(corpus, output, **self._settings)
        seconds: dict[str, float] = {}
        for receipt in store.receipts():
            for stage, value in receipt.seconds.items():
                seconds[stage] = seconds.get(stage, 0.0) + value
        return {"stages_s": seconds}

    def embed(self, texts: Sequence[str], batch: int) -> np.ndarray:  # noqa: ARG002
        """Return sentence embeddings, (n_texts, hidden)."""
        if self._flow is None:
            self._flow = Flow.of(bertfeat.ExtractConfig.from_dict(self._settings))
        table = self._flow.run(documents_of(texts))[Level.SENTENCE]
        return next(iter(table.vectors.values()))
