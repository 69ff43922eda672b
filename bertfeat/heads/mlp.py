"""A multi-layer perceptron over rows of features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from torch import nn

from bertfeat.heads.base import Labels
from bertfeat.heads.batching import BatchSize
from bertfeat.heads.hyperparameters import positive_integer
from bertfeat.heads.matrices import Sequences, as_matrix
from bertfeat.heads.networks import Body, RowByRow
from bertfeat.heads.neural import NeuralProbe, share


class MLPProbe(ClassifierMixin, NeuralProbe):  # type: ignore[misc]  # scikit-learn has no types
    """A multi-layer perceptron: hidden layers with ReLU and dropout, then a softmax.

    Args:
        hidden_size: Width of the hidden layers.
        n_layers: How many hidden layers there are.
        dropout: Share of hidden values that are dropped in training.
        lr: AdamW's learning rate.
        weight_decay: AdamW's weight decay, or a list of values to choose from on dev.
        batch_size: Rows of a minibatch.
        max_epochs: The most epochs.
        patience: Epochs without a better score after which training stops.
        mix: How many layers the vectors are the concatenation of, lowest first, to be reduced to one by a learned
            scalar mix; None for no mix.
        standardize: Whether vectors are standardised first, each column for itself.
        class_weight: None, or "balanced" for classes to count alike whatever their number of rows.
        metric: What training is stopped by: "accuracy" ("auto" is the same), "macro_f1" or "loss".
        validation_fraction: Share of the rows that is held out where no dev is given, class by class; up to 128 MB
            of float32.
        early_stopping: Whether training stops by the score on dev and keeps the best epoch; else all epochs are run,
            and the last one is kept.
        seed: Of the first weights, the order of rows and the dropout.
        device: "auto" (CUDA if it is there, else the CPU), "cpu", "cuda", "cuda:1", ...

    Example:
        >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
        >>> probe = MLPProbe(early_stopping=False, lr=0.01).fit(X, ["odd", "odd", "even", "even"])
        >>> probe.predict(X).tolist()
        ['odd', 'odd', 'even', 'even']
    """

    head = "mlp"

    def __init__(
        self,
        *,
        hidden_size: int = 256,
        n_layers: int = 1,
        dropout: float = 0.1,
        lr: float = 1e-3,
        weight_decay: float | Sequence[float] = 0.01,
        batch_size: int = 256,
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
        self.hidden_size = hidden_size
        self.n_layers = n_layers
        self.dropout = dropout
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
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

    def predict(self, X: object) -> Labels:  # noqa: N803
        """Return the class of each row, (n_rows,), of the labels' own type.

        Args:
            X: Vectors (n_rows, dim), in memory or as a stream.

        Raises:
            UserError: X has another width than it was fitted on, or a vector holds NaN or infinity.
        """
        codes = self._scores(self._sequences(X)).argmax(axis=1)
        return np.asarray(self.classes_[codes])

    def predict_proba(self, X: object) -> npt.NDArray[np.float32]:  # noqa: N803
        """Return the probabilities of the classes, float32 (n_rows, n_classes).

        Args:
            X: Vectors (n_rows, dim), in memory or as a stream.

        Raises:
            UserError: X has another width than it was fitted on, or a vector holds NaN or infinity.
        """
        return self._probabilities(self._sequences(X))

    def _sequences(self, X: object) -> Sequences:  # noqa: N803
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
