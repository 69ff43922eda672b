"""Networks of neural heads: standardising, mixing, and the bodies that score rows alone or in their sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from bertfeat.ragged import ragged_arange, run_of
from bertfeat.records import Float64Array, IntArray
from bertfeat.vectors.standardized import Scaling


class ScalarMix(nn.Module):
    """gamma * sum over layers of softmax(w)_l * h_l (Peters et al. 2018, equation 1).

    Starts as the plain mean of the layers: w = 0, gamma = 1.
    """

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.n_layers = n_layers
        self.weights = nn.Parameter(torch.zeros(n_layers))
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, layers: torch.Tensor) -> torch.Tensor:
        """Mix layers, float (n_rows, n_layers, hidden), into (n_rows, hidden)."""
        shares = self.gamma * torch.softmax(self.weights, dim=0)
        return torch.einsum("nld,l->nd", layers, shares)

    def report(self) -> dict[str, Any]:
        """Return the weights of the layers, which sum to 1, the lowest layer first, and gamma."""
        shares = torch.softmax(self.weights.detach().double(), dim=0)
        return {"weights": shares.tolist(), "gamma": self.gamma.item()}


class Body(nn.Module):
    """Base of the bodies, which score rows; `output`, a linear layer, is the last step."""

    output: nn.Linear

    def forward(self, vectors: torch.Tensor, lengths: IntArray) -> torch.Tensor:
        """Return scores (n_rows, n_classes) of vectors (n_rows, dim), of sequences end to end, none of length 0."""
        raise NotImplementedError


class Network(nn.Module):
    """A network that standardises vectors, mixes their layers unless `n_layers` is None, and scores rows by a body."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, scaling: Scaling, n_layers: int | None, body: Body) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(scaling.mean))
        self.register_buffer("scale", torch.tensor(scaling.scale))
        self.mix = None if n_layers is None else ScalarMix(n_layers)
        self.body = body

    def start_at(self, shares: Float64Array) -> None:
        """Let the scores start at the shares of the classes, (n_classes,).

        Standardised vectors have mean 0, so only the intercept can learn the frequency of classes. That would take some
        thousand steps if one class has nearly all rows, as O among tags.
        """
        with torch.no_grad():
            self.body.output.bias.copy_(torch.from_numpy(np.log(shares)))

    def forward(self, vectors: torch.Tensor, lengths: IntArray) -> torch.Tensor:
        """Return the scores of the classes, float32 (n_rows, n_classes); see `Body`."""
        vectors = (vectors - self.mean) / self.scale
        if self.mix is not None:
            vectors = self.mix(vectors.reshape(len(vectors), self.mix.n_layers, -1))
        scores: torch.Tensor = self.body(vectors, lengths)
        return scores


class RowByRow(Body):
    """Modules applied to each row alone."""

    def __init__(self, hidden: nn.Module, output: nn.Linear) -> None:
        super().__init__()
        self.hidden = hidden
        self.output = output

    def forward(self, vectors: torch.Tensor, lengths: IntArray) -> torch.Tensor:  # noqa: ARG002
        """Return scores (n_rows, n_classes) for vectors (n_rows, dim)."""
        scores: torch.Tensor = self.output(self.hidden(vectors))
        return scores


class BiLSTM(Body):
    """A BiLSTM with dropout and a linear layer; sequences are packed without padding.

    On a CPU, torch's own LSTM over packed steps runs at the speed of its matrix products if it is wide. oneDNN's LSTM
    over padded batches takes 1.6 times as long (768 wide, 32 sentences, one thread) and is faster for small ones only.
    """

    def __init__(self, dim: int, hidden_size: int, n_layers: int, dropout: float, n_classes: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(dim, hidden_size, n_layers, bidirectional=True, dropout=dropout if n_layers > 1 else 0.0)
        self.output = nn.Linear(2 * hidden_size, n_classes)

    def forward(self, vectors: torch.Tensor, lengths: IntArray) -> torch.Tensor:
        """Return scores (n_rows, n_classes) for vectors (n_rows, dim) of sequences that lie end to end."""
        order, n_running = _by_step(lengths)
        by_step = torch.from_numpy(order).to(vectors.device)
        back = torch.from_numpy(np.argsort(order)).to(vectors.device)
        packed = PackedSequence(self.dropout(vectors[by_step]), torch.from_numpy(n_running))
        states, _ = self.lstm(packed)
        scores: torch.Tensor = self.output(self.dropout(states.data[back]))
        return scores


def _by_step(lengths: IntArray) -> tuple[IntArray, IntArray]:
    """Return the order of rows by step, the longest sequence first, and the number of sequences at each step."""
    rank = np.argsort(np.argsort(-lengths, kind="stable"))
    steps = ragged_arange(np.zeros_like(lengths), lengths)
    order = np.lexsort((rank[run_of(lengths)], steps))
    return order.astype(np.int64), np.bincount(steps).astype(np.int64)
