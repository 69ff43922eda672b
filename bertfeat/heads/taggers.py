"""Taggers: a label for each word of a sentence, from a softmax over its vector or from a BiLSTM over all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from bertfeat.heads.base import Labels
from bertfeat.heads.batching import BatchSize
from bertfeat.heads.entities import entity_scores
from bertfeat.heads.hyperparameters import positive_integer, share
from bertfeat.heads.matrices import Sequences, flatten_labels
from bertfeat.heads.networks import BiLSTM, Body, RowByRow
from bertfeat.heads.neural import NeuralProbe
from bertfeat.heads.scores import primary_metric
from bertfeat.records import Float32Array


@dataclass(kw_only=True, eq=False, repr=False)
class Tagger(NeuralProbe):
    """Base of the taggers, which learn from and label sequences.

    X is a list of arrays (n_words, dim), one per sequence, or `Sequences`, in memory or over a stream. A sequence may
    be empty. Further parameters are those of `NeuralProbe`.

    Args:
        batch_tokens: The most words of a minibatch; a longer sequence is a minibatch alone.
    """

    is_tagger = True
    metrics = (*NeuralProbe.metrics, "entity_f1")

    batch_size: int = 32
    batch_tokens: int = 2048

    def predict(self, X: object) -> list[Labels]:
        """Return the class of each word, one array (n_words,) per sequence.

        Raises:
            UserError: X has another width than it was fitted on, or a vector holds NaN or infinity.
        """
        data = self._sequences(X)
        return _by_sequence(self._labels(data), data)

    def predict_proba(self, X: object) -> list[Float32Array]:
        """Return the probabilities of the classes, float32 (n_words, n_classes) per sequence; see `predict`."""
        data = self._sequences(X)
        return _by_sequence(self._probabilities(data), data)

    def score(self, X: object, y: object) -> float:
        """Return the F1 of entities where the classes are tags such as B-PER, else the accuracy of words.

        Args:
            X: Sequences.
            y: Labels, flat or one list per sequence.

        Raises:
            UserError: The labels do not fit X, or X cannot be predicted on.
        """
        data = self._sequences(X)
        truth, predicted = flatten_labels(y, data.lengths), self._labels(data)
        if primary_metric(self.classes_.tolist()) == "entity_f1":
            return entity_scores(truth, predicted, data.lengths).f1
        return float(np.mean(truth == predicted))

    def _labels(self, data: Sequences) -> Labels:
        codes = self._scores(data).argmax(axis=1)
        return np.asarray(self.classes_[codes])

    def _sequences(self, X: object) -> Sequences:
        return Sequences.of(X)

    def _metric(self, classes: Labels) -> str:
        return primary_metric(classes.tolist()) if self.metric == "auto" else self.metric

    def _batch_size(self) -> BatchSize:
        n_tokens = positive_integer("batch_tokens", self.batch_tokens)
        return BatchSize(positive_integer("batch_size", self.batch_size), n_tokens)


@dataclass(kw_only=True, eq=False, repr=False)
class LinearTagger(Tagger):
    """A softmax over the vector of each word, without its neighbours.

    See `NeuralProbe` and `Tagger` for the parameters.
    """

    head = "linear"

    def _body(self, dim: int, n_classes: int) -> Body:
        output = nn.Linear(dim, n_classes)
        # The loss is convex: random weights would only be noise that training has to remove first.
        nn.init.zeros_(output.weight)
        return RowByRow(nn.Identity(), output)


@dataclass(kw_only=True, eq=False, repr=False)
class BiLSTMTagger(Tagger):
    """A BiLSTM over each sequence and a softmax over its states: the paper's head, two layers, 768 per direction.

    Further parameters are those of `NeuralProbe` and `Tagger`.

    Args:
        hidden_size: Width of the states of each direction.
        n_layers: The number of layers.
        dropout: Share of the values that training drops, of the input, between layers and of the output.

    Examples:
        >>> X = [np.array([[0.0], [1.0], [0.0]]), np.array([[1.0], [0.0]])] * 4  # a word after a 1 is "after"
        >>> y = [["no", "no", "after"], ["no", "after"]] * 4
        >>> tagger = BiLSTMTagger(hidden_size=8, lr=0.05, early_stopping=False).fit(X, y)
        >>> [labels.tolist() for labels in tagger.predict(X[:2])]
        [['no', 'no', 'after'], ['no', 'after']]
    """

    head = "bilstm"

    hidden_size: int = 768
    n_layers: int = 2
    dropout: float = 0.3
    max_epochs: int = 30

    def _body(self, dim: int, n_classes: int) -> Body:
        width, n_layers = (positive_integer(name, getattr(self, name)) for name in ("hidden_size", "n_layers"))
        return BiLSTM(dim, width, n_layers, share("dropout", self.dropout), n_classes)


def _by_sequence(flat: npt.NDArray[Any], data: Sequences) -> list[npt.NDArray[Any]]:
    # Without sequences, np.split still returns one empty piece.
    return np.split(flat, data.starts[1:-1])[: len(data)]
