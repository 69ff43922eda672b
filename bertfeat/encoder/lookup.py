"""Table of static vectors on a device: token ids in, vectors out."""

from __future__ import annotations

import torch
from torch import nn

from bertfeat.encoder.tokenvectors import TokenVectors, read_arrays
from bertfeat.encoder.wordvectors import WordVectors, read_vectors


class Lookup(nn.Module):
    """The vectors of tokens, which know no context.

    Args:
        vectors: float32 (n_rows, dim).
        mapping: int64 (n_ids,): the row of each token; None if rows are token ids.
        weights: float32 (n_ids,): what each token's vector is multiplied by; None if nothing.
    """

    def __init__(
        self, vectors: torch.Tensor, mapping: torch.Tensor | None = None, weights: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        self.vectors = nn.Parameter(vectors, requires_grad=False)
        self.mapping = None if mapping is None else nn.Parameter(mapping, requires_grad=False)
        self.weights = None if weights is None else nn.Parameter(weights, requires_grad=False)

    @classmethod
    def of(cls, found: WordVectors | TokenVectors) -> Lookup:
        """Load the vectors of a file or folder.

        Raises:
            CheckpointError: A number cannot be read or is not finite.
        """
        if isinstance(found, WordVectors):
            return cls(torch.from_numpy(read_vectors(found)))
        vectors, *others = read_arrays(found)
        mapping, weights = (None if array is None else torch.from_numpy(array) for array in others)
        return cls(torch.from_numpy(vectors), mapping, weights)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the vectors of token ids, int64 (n,), as float32 (n, dim)."""
        found = self.vectors.index_select(0, ids if self.mapping is None else self.mapping[ids])
        return found if self.weights is None else found * self.weights[ids].unsqueeze(1)
