"""What a factory string makes of vectors: the index itself, what training it needs, and how much memory it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import faiss

from bertfeat.ann.structure import leaves
from bertfeat.nearest import Metric


@dataclass(frozen=True, slots=True)
class FactoryInfo:
    """What a factory string makes of vectors of some width.

    Attributes:
        text: The string.
        metric: How vectors are compared.
        dim: The width of the vectors that it takes.
        index_dim: Their width behind PCA, OPQ and the like.
        storage: How vectors are kept: `Flat`, `SQ8`, ...
        prefix: The transforms in front, as they were written.
        refine: How they are kept a second time, to order what was found; None if they are not.
        n_lists: The inverted lists; None if there are none.
        n_links: The links of a vector in the graph; None if there is none.
        code_bytes: The bytes of a vector, without its id and links.
        fixed_bytes: What is there before a vector is: matrices, code books, centroids.
        table_bytes: What is computed when it is loaded and stands in no file.
        n_training_min: The vectors that training cannot do with fewer of; 0 if there is none.
        n_training_wanted: The vectors that it does well with.
    """

    text: str
    metric: Metric
    dim: int
    index_dim: int
    storage: str
    prefix: str = ""
    refine: str | None = None
    n_lists: int | None = None
    n_links: int | None = None
    code_bytes: int = 0
    fixed_bytes: int = 0
    table_bytes: int = 0
    n_training_min: int = 0
    n_training_wanted: int = 0

    @property
    def needs_training(self) -> bool:
        """Whether it learns from a sample before it takes vectors."""
        return self.n_training_min > 0

    @property
    def is_ivf(self) -> bool:
        """Whether vectors lie in inverted lists, of which a search looks at some."""
        return self.n_lists is not None

    @property
    def is_graph(self) -> bool:
        """Whether a search follows the links of a graph of vectors."""
        return self.n_links is not None

    @property
    def is_fast_scan(self) -> bool:
        """Whether codes lie in blocks of 32, interleaved."""
        return "x4fs" in self.storage

    @property
    def is_mergeable(self) -> bool:
        """Whether pieces of it, filled one by one, put together give the same index as adding all to one."""
        return not self.is_graph and not self.is_fast_scan

    def make(self) -> Any:
        """Return the index, untrained and empty."""
        return make(self.text, self.dim, self.metric)

    def estimate_bytes(self, n_vectors: int) -> int:
        """Return the bytes of the index with so many vectors, as a file and, but for `table_bytes`, in memory."""
        bytes_each = self.code_bytes + 8 * self.is_ivf + (link_bytes(self.n_links) if self.n_links else 0)
        n_padded = 16 * (self.n_lists or 1) if self.is_fast_scan else 0
        return int(self.fixed_bytes + bytes_each * n_vectors + self.code_bytes * n_padded)


def metric_type(metric: Metric) -> int:
    """Return faiss's number of a metric; cosines are inner products of vectors of unit length."""
    return int(faiss.METRIC_L2 if metric is Metric.L2 else faiss.METRIC_INNER_PRODUCT)


def make(text: str, dim: int, metric: Metric) -> Any:
    """Return the index of a factory string that has been checked, untrained and empty."""
    index = faiss.index_factory(dim, text, metric_type(metric))
    for part in leaves(index):
        codes = faiss.downcast_index(part.storage) if isinstance(part, faiss.IndexHNSW) else part
        if hasattr(codes, "do_polysemous_training"):
            # Numbers the code words so that Hamming distances say something, which no search here uses, and takes
            # longer than the rest of the training.
            codes.do_polysemous_training = False
    return index


def link_bytes(n_links: int) -> float:
    """Return the expected bytes of a vector's links, with its level and offset.

    It has 2 M of them in the lowest level and M in each higher one, which it reaches with probability 1/M each.
    """
    return 4 * (2 * n_links + n_links / (n_links - 1)) + 12


def code_bytes(index: Any) -> int:
    """Return the bytes of a vector in an index that was just made."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        return code_bytes(index.base_index) + code_bytes(index.refine_index)
    if isinstance(index, faiss.IndexPreTransform):
        return code_bytes(index.index)
    if isinstance(index, faiss.IndexHNSW):
        return code_bytes(index.storage)
    return int(index.code_size)
