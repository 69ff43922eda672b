"""Table of static vectors on a device: token ids in, vectors out."""

from __future__ import annotations

import torch
from torch import nn

from bertfeat.records import Float32Array, IntArray


class Lookup(nn.Module):
    """The vectors of tokens, which know no context.

    Args:
        vectors: float32 (n_rows, dim).
        mapping: int64 (n_ids,): the row of each token; None if rows are token ids.
        weights: float32 (n_ids,): what each token's vector is multiplied by; None if nothing.
    """

    def __init__(self, vectors: Float32Array, mapping: IntArray | None, weights: Float32Array | None) -> None:
        super().__init__()
        self.vectors = _fixed(vectors)
        self.mapping = None if mapping is None else _fixed(mapping)
        self.weights = None if weights is None else _fixed(weights)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the vectors of token ids, int64 (n,), as float32 (n, dim)."""
        found = self.vectors.index_select(0, ids if self.mapping is None else self.mapping[ids])
        return found if self.weights is None else found * self.weights[ids].unsqueeze(1)


def _fixed(array: Float32Array | IntArray) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(array), requires_grad=False)
