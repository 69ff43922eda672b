"""The scalar mix of ELMo: one vector from several layers, with a learned weight for each and one scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class ScalarMix(nn.Module):
    """gamma * sum over layers of softmax(w)_l * h_l (Peters et al. 2018, equation 1).

    Starts as the plain mean of the layers: w = 0, gamma = 1.

    Args:
        n_layers: How many layers there are.
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
        """Return the layers' weights, which sum to 1, lowest layer first, and gamma."""
        shares = torch.softmax(self.weights.detach().double(), dim=0)
        return {"weights": shares.tolist(), "gamma": self.gamma.item()}
