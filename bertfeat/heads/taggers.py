"""Taggers: a label for each word of a sentence, from a softmax over its vector or from a BiLSTM over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from bertfeat.heads.base import Labels
from bertfeat.heads.batching import BatchSize
from bertfeat.heads.entities import entity_scores
from bertfeat.heads.hyperparameters import positive_integer
from bertfeat.heads.matrices import Sequences
from bertfeat.heads.networks import BiLSTM, Body, RowByRow
from bertfeat.heads.neural import NeuralProbe, share
from bertfeat.heads.scores import primary_metric


class Tagger(NeuralProbe):
    """Base of the taggers: they learn from and label sequences; see `BiLSTMTagger` for their parameters.

    X is a list of arrays (n_words, dim), one a sequence, or `Sequences`, in memory or over a stream. A sequence may be
    empty.
    """

    is_tagger = True
    metrics = (*NeuralProbe.metrics, "entity_f1")

    batch_size: int
    batch_tokens: int

    def predict(self, X: object) -> list[Labels]:  # noqa: N803
        """Return the class of each word, one array (n_words,) a sequence.

        Raises:
            UserError: X has another width than it was fitted on, or a vector holds NaN or infinity.
        """
        data = self._sequences(X)
        return _by_sequence(self._labels(data), data)

    def predict_proba(self, X: object) -> list[npt.NDArray[np.float32]]:  # noqa: N803
        """Return the probabilities of the classes, one array (n_words, n_classes), float32, a sequence.

        Raises:
            UserError: X has another width than it was fitted on, or a vector holds NaN or infinity.
        """
        data = self._sequences(X)
        return _by_sequence(self._probabilities(data), data)

    def score(self, X: object, y: object) -> float:  # noqa: N803
        """Return the F1 of entities where the classes are tags such as B-PER, else the accuracy of words.

        Args:
            X: Sequences.
            y: Labels, flat or one list a sequence.

        Raises:
            UserError: The labels do not fit X, or X cannot be predicted on.
        """
        data = self._sequences(X)
        truth, predicted = self._flat_labels(y, data), self._labels(data)
        if primary_metric(self.classes_.tolist()) == "entity_f1":
            return entity_scores(truth, predicted, data.lengths).f1
        return float(np.mean(truth == predicted))

    def _labels(self, data: Sequences) -> Labels:
        codes = self._scores(data).argmax(axis=1)
        return np.asarray(self.classes_[codes])

    def _sequences(self, X: object) -> Sequences:  # noqa: N803
        return Sequences.of(X)

    def _metric(self, classes: Labels) -> str:
        return primary_metric(classes.tolist()) if self.metric == "auto" else self.metric

    def _batch_size(self) -> BatchSize:
        return BatchSize(
            positive_integer("batch_size", self.batch_size), positive_integer("batch_tokens", self.batch_tokens)
        )


class LinearTagger(Tagger):
    """A softmax over each word's vector alone: what features say without their neighbours.

    See `BiLSTMTagger` for the parameters.
    """

    head = "linear"

    def __init__(
        self,
        *,
        lr: float = 1e-3,
        weight_decay: float | Sequence[float] = 0.01,
        batch_size: int = 32,
        batch_tokens: int = 2048,
        max_epochs: int = 50,
        patience: int = 5,
        mix: int | None = None,
        standardize: bool = True,
        class_weight: str | None = None,
        metric: str = "auto",
        validation_fraction: float = 0.1,
        early_stopping: bool = True,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.batch_tokens = batch_tokens
        self.max_epochs = max_epochs
        self.patience = patience
        self.mix = mix
        self.standardize = standardize
        self.class_weight = class_weight
        self.metric = metric
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.seed = seed
        self.device = device

    def _body(self, dim: int, n_classes: int) -> Body:
        output = nn.Linear(dim, n_classes)
        # There is one minimum to be found from anywhere, and random weights are noise to be unlearned first.
        nn.init.zeros_(output.weight)
        return RowByRow(nn.Identity(), output)


class BiLSTMTagger(Tagger):
    """A BiLSTM over each sequence and a softmax over its states: the paper's head, two layers, 768 wide each way.

    Args:
        hidden_size: Width of the states of each direction.
        n_layers: How many layers there are.
        dropout: Share of the values of the input, between layers and of the output that are dropped in training.
        lr: AdamW's learning rate.
        weight_decay: AdamW's weight decay, or a list of values to choose from on dev.
        batch_size: The most sequences of a minibatch.
        batch_tokens: The most words of a minibatch; a longer sequence is one alone.
        max_epochs: The most epochs.
        patience: Epochs without a better score after which training stops.
        mix: How many layers the vectors are the concatenation of, lowest first, to be reduced to one by a learned
            scalar mix; None for no mix.
        standardize: Whether vectors are standardised first, each column for itself.
        class_weight: None, or "balanced" for classes to count alike whatever their number of words.
        metric: What training is stopped by: "auto" (entity_f1 where the labels are tags such as B-PER, else accuracy),
            "entity_f1", "accuracy", "macro_f1" or "loss".
        validation_fraction: Share of the sequences that is held out where no dev is given; up to 128 MB of float32.
        early_stopping: Whether training stops by the score on dev and keeps the best epoch; else all epochs are run,
            and the last one is kept.
        seed: Of the first weights, the order of sequences and the dropout.
        device: "auto" (CUDA if it is there, else the CPU), "cpu", "cuda", "cuda:1", ...

    Example:
        >>> X = [np.array([[0.0], [1.0], [0.0]]), np.array([[1.0], [0.0]])] * 4  # what comes after a 1 is "after"
        >>> y = [["no", "no", "after"], ["no", "after"]] * 4
        >>> tagger = BiLSTMTagger(hidden_size=8, lr=0.05, early_stopping=False).fit(X, y)
        >>> [labels.tolist() for labels in tagger.predict(X[:2])]
        [['no', 'no', 'after'], ['no', 'after']]
    """

    head = "bilstm"

    def __init__(
        self,
        *,
        hidden_size: int = 768,
        n_layers: int = 2,
        dropout: float = 0.3,
        lr: float = 1e-3,
        weight_decay: float | Sequence[float] = 0.01,
        batch_size: int = 32,
        batch_tokens: int = 2048,
        max_epochs: int = 30,
        patience: int = 5,
        mix: int | None = None,
        standardize: bool = True,
        class_weight: str | None = None,
        metric: str = "auto",
        validation_fraction: float = 0.1,
        early_stopping: bool = True,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.hidden_size = hidden_size
        self.n_layers = n_layers
        self.dropout = dropout
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.batch_tokens = batch_tokens
        self.max_epochs = max_epochs
        self.patience = patience
        self.mix = mix
        self.standardize = standardize
        self.class_weight = class_weight
        self.metric = metric
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.seed = seed
        self.device = device

    def _body(self, dim: int, n_classes: int) -> Body:
        return BiLSTM(
            dim,
            positive_integer("hidden_size", self.hidden_size),
            positive_integer("n_layers", self.n_layers),
            share("dropout", self.dropout),
            n_classes,
        )


def _by_sequence(flat: npt.NDArray[Any], data: Sequences) -> list[npt.NDArray[Any]]:
    return [flat[start:stop] for start, stop in zip(data.starts[:-1].tolist(), data.starts[1:].tolist(), strict=True)]
