"""CTranslate2: one worker with all threads, or several workers with one thread each.

Its encoder gives the last layer only. int8 has scales for each channel of the weights and for each token.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import ctranslate2
import numpy as np
import torch
from ctranslate2.converters import TransformersConverter

from benchmarks.speed.peers import Task
from benchmarks.speed.peers.budgeted import BudgetedPeer


class Peer(BudgetedPeer):
    """CTranslate2, sorted."""

    def __init__(self, task: Task) -> None:
        if task.layers != (task.n_layers,):
            raise ValueError("CTranslate2 gives the last layer only")
        super().__init__(task)
        n_cores = os.cpu_count() or 1
        self.n_parallel = n_cores if task.settings["workers"] else 1
        folder = Path(task.scratch) / "ctranslate2"
        if not folder.exists():
            TransformersConverter(task.model).convert(str(folder))
        self._encoder = ctranslate2.Encoder(
            str(folder),
            compute_type=task.dtype,
            inter_threads=self.n_parallel,
            intra_threads=n_cores // self.n_parallel,
        )

    def states(self, ids: Sequence[Sequence[int]]) -> dict[int, torch.Tensor]:
        """Return the states of the last layer."""
        found = self._encoder.forward_batch([list(row) for row in ids])
        return {self.task.n_layers: torch.from_numpy(np.array(found.last_hidden_state))}
