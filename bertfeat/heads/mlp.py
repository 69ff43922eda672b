"""A multi-layer perceptron over rows of features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.base import ClassifierMixin
from torch import nn

from bertfeat.heads.base import Labels
from bertfeat.heads.batching import BatchSize
from bertfeat.heads.hyperparameters import positive_integer, share
from bertfeat.heads.matrices import Sequences, as_matrix
from bertfeat.heads.networks import Body, RowByRow
from bertfeat.heads.neural import NeuralProbe
from bertfeat.records import Float32Array


@dataclass(kw_only=True, eq=False, repr=False)
class MLPProbe(ClassifierMixin, NeuralProbe):  # type: ignore[misc]  # scikit-learn has no types
    """A multi-layer perceptron: hidden layers with ReLU and dropout, then a softmax.

    Further parameters are those of `NeuralProbe`.

    Args:
        hidden_size: Width of the hidden layers.
        n_layers: The number of hidden layers.
        dropout: Share of the hidden values that training drops.

    Examples:
        >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
        >>> probe = MLPProbe(early_stopping=False, lr=0.01).fit(X, ["odd", "odd", "even", "even"])
        >>> probe.predict(X).tolist()
        ['odd', 'odd', 'even', 'even']
    """

    head = "mlp"

    hidden_size: int = 256
    n_layers: int = 1
    dropout: float = 0.1
    batch_size: int = 256

    def predict(self, X: object) -> Labels:
        """Return the class of each row, (n_rows,), of the labels' own type; see `RowProbe`."""
        codes = self._scores(self._sequences(X)).argmax(axis=1)
        return np.asarray(self.classes_[codes])

    def predict_proba(self, X: object) -> Float32Array:
        """Return the probabilities of the classes, float32 (n_rows, n_classes); see `predict`."""
        return self._probabilities(self._sequences(X))

    def _sequences(self, X: object) -> Sequences:
        matrix = as_matrix(X)
        return Sequences(matrix, np.ones(matrix.shape[0], dtype=np.int64))

    def _batch_size(self) -> BatchSize:
        n_rows = positive_integer("batch_size", self.batch_size)
        return BatchSize(n_rows, n_rows)

    def _body(self, dim: int, n_classes: int) -> Body:
        width = positive_integer("hidden_size", self.hidden_size)
        dropout = share("dropout", self.dropout)
        steps: list[nn.Module] = []
        for _ in range(positive_integer("n_layers", self.n_layers)):
            steps += [nn.Linear(dim, width), nn.ReLU(), nn.Dropout(dropout)]
            dim = width
        return RowByRow(nn.Sequential(*steps), nn.Linear(dim, n_classes))
