"""Measures of a network: its scores of rows, and the score on dev that stops training and chooses parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, codes_of
from bertfeat.heads.batching import BatchSize, ordered_batches
from bertfeat.heads.entities import entity_scores
from bertfeat.heads.matrices import Sequences
from bertfeat.heads.scores import macro_f1
from bertfeat.records import Float64Array


@dataclass(frozen=True)
class Measure:
    """Results of a network on dev: `score` by the metric, and the mean loss, None if no label is a known class."""

    metric: str
    score: float
    loss: float | None

    def is_better_than(self, other: Measure | None) -> bool:
        """Return whether the score is better than another's, or the same with a lower loss."""
        if other is None:
            return True
        # A network may have an F1 of 0 for some epochs, until it finds its first entity, while its loss falls.
        return self._key() > other._key()

    def report(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return {"metric": self.metric, "dev_score": self.score, "dev_loss": self.loss}

    def _key(self) -> tuple[float, float]:
        loss = math.inf if self.loss is None else self.loss
        return (-loss if self.metric == "loss" else self.score, -loss)


class DevSplit:
    """Labelled sequences that training is judged on; labels that training has not seen count as errors.

    Args:
        data: The sequences.
        labels: The label of each row, (n_rows,).
        classes: The probe's classes, sorted.
        class_weights: Their weights in the loss.
        metric: accuracy, macro_f1, entity_f1 or loss.

    Raises:
        UserError: The metric is the loss, and training has not seen any of the labels.
    """

    def __init__(
        self, data: Sequences, labels: Labels, classes: Labels, class_weights: Float64Array, metric: str
    ) -> None:
        self.metric, self._data, self._labels, self._classes = metric, data, labels, classes
        self._class_weights = torch.from_numpy(class_weights).float()
        self._codes = torch.from_numpy(codes_of(labels, classes))
        if metric == "loss" and not (self._codes >= 0).any():
            raise UserError("dev holds no label that train has seen, so it has no loss; pass another metric")

    def measure(self, network: nn.Module, device: torch.device) -> Measure:
        """Measure a network.

        Raises:
            UserError: A vector holds NaN or infinity.
        """
        try:
            scores = predict_scores(network, self._data, len(self._classes), device)
        except UserError as error:
            raise UserError(f"dev: {error}") from None
        known = self._codes >= 0
        loss = None
        if known.any():
            losses = cross_entropy(scores[known], self._codes[known], weight=self._class_weights, reduction="none")
            loss = losses.mean(dtype=torch.float64).item()
        predicted = self._classes[scores.argmax(dim=1).numpy()]
        return Measure(self.metric, self._score(predicted, loss), loss)

    def _score(self, predicted: Labels, loss: float | None) -> float:
        if self.metric == "loss":
            return math.inf if loss is None else loss
        if self.metric == "entity_f1":
            return entity_scores(self._labels, predicted, self._data.lengths).f1
        if self.metric == "macro_f1":
            return macro_f1(self._labels, predicted)
        return float(np.mean(self._labels == predicted))


def predict_scores(network: nn.Module, data: Sequences, n_classes: int, device: torch.device) -> torch.Tensor:
    """Return the scores of the classes before the softmax, float32 (n_rows, n_classes), on the CPU.

    Raises:
        UserError: A vector holds NaN or infinity; the message names the row.
    """
    scores = torch.zeros((data.vectors.shape[0], n_classes))
    network.eval()
    with torch.inference_mode():
        for batch in ordered_batches(data, BatchSize.for_evaluation(data.dim)):
            scores[torch.from_numpy(batch.rows)] = network(batch.vectors.to(device), batch.lengths).cpu()
    return scores
