"""How much memory a build takes, stage by stage, and which index fits into what there is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from bertfeat.ann.blueprint import FactoryInfo
from bertfeat.ann.buildsettings import BuildSettings
from bertfeat.ann.factory import describe
from bertfeat.errors import UserError
from bertfeat.nearest import Metric

# What exact search and a product of matrices in faiss work in.
_MAX_EXACT_BYTES = 256 << 20
_TILE_BYTES = 24 << 20
# A batch of a source, as it is read, and what is made of it.
_BATCH_BYTES = 48 << 20
_MAX_CHUNK_ROWS = 8192
_MAX_PIECE_BYTES = 64 << 20
_LIST_BYTES = 160  # of an empty inverted list
# Trained on fewer vectors a list than these, lists fit the sample and not the rest; what little memory may bring it to.
_LEAST_EACH = 39
_SCARCE_EACH = 16
_MAX_LISTS_COMPARED = 8192


@dataclass(frozen=True, slots=True)
class Shape:
    """The vectors that an index is built from: how many, and their width before the transform."""

    n_vectors: int
    dim: int


@dataclass(frozen=True)
class MemoryPlan:
    """How an index is built within the memory that there is, if it can be.

    Attributes:
        info: The index.
        shape: The vectors.
        settings: What is asked for.
    """

    info: FactoryInfo
    shape: Shape
    settings: BuildSettings

    @property
    def index_bytes(self) -> int:
        """The memory of the finished index."""
        lists = _LIST_BYTES * (self.info.n_lists or 0)
        return self.info.estimate_bytes(self.shape.n_vectors) + self.info.table_bytes + lists

    @property
    def exact_bytes(self) -> int:
        """What exact search may work in."""
        return max(4 << 20, min(_MAX_EXACT_BYTES, self.settings.max_memory_bytes // 8))

    @cached_property
    def n_training(self) -> int:
        """How many vectors to train on: as many as are wanted and there are, or as many as the memory holds."""
        if not self.info.needs_training:
            return 0
        wanted = min(self.settings.n_training or self.info.n_training_wanted, self.shape.n_vectors)
        left = self.settings.max_memory_bytes - self._training_bytes(0)
        least = max(self.info.n_training_min, _SCARCE_EACH * (self.info.n_lists or 0))
        holds = max(left // self._training_bytes_each, min(least, wanted))
        return int(min(wanted, holds))

    @property
    def n_chunk_rows(self) -> int:
        """How many vectors go into the index at once; it decides how a graph grows, so it depends on nothing else."""
        most = max(256, self.settings.max_memory_bytes // 16 // (16 * self.shape.dim))
        # A graph grows better, and on more threads, the more it gets at once.
        wanted = max(_MAX_CHUNK_ROWS, self.shape.n_vectors // 64 if self.info.is_graph else 0)
        return int(min(wanted, most))

    @property
    def n_piece_rows(self) -> int:
        """How many vectors lie between two points from which a broken build goes on."""
        if self.settings.n_piece_rows is not None:
            return self.settings.n_piece_rows
        n_bytes = max(1 << 20, min(_MAX_PIECE_BYTES, self.settings.max_memory_bytes // 16))
        return int(max(self.n_chunk_rows, n_bytes // (self.info.code_bytes + 8)))

    @property
    def stages(self) -> dict[str, int]:
        """The most memory that each stage holds, in bytes."""
        n_queries = min(self.settings.n_queries, self.shape.n_vectors)
        # A query, its hits by all parameters that are tried, and those of the truth.
        queries = n_queries * (12 * self.shape.dim + 4096)
        batch = self._batch_bytes
        return {
            "transform": batch + 64 * self.shape.dim**2,
            "truth": batch + queries + self.exact_bytes,
            "training": self._training_bytes(self.n_training),
            "adding": batch + self._adding_bytes(),
            "tuning": batch + self.index_bytes + queries + self.exact_bytes,
        }

    @property
    def peak_bytes(self) -> int:
        """The most memory that any stage holds, in bytes."""
        return max(self.stages.values())

    @property
    def growing_bytes(self) -> int:
        """The most memory that adding to the finished index holds: what stores the vectors is copied when it grows."""
        return self._batch_bytes + self.n_chunk_rows * 16 * self.shape.dim + _TILE_BYTES + 2 * self.index_bytes

    @property
    def fits(self) -> bool:
        """Whether no stage holds more than it may."""
        return self.peak_bytes <= self.settings.max_memory_bytes

    @property
    def _batch_bytes(self) -> int:
        return _BATCH_BYTES + 24 * self.shape.dim * min(_MAX_CHUNK_ROWS, self.shape.n_vectors)

    @property
    def _training_bytes_each(self) -> int:
        info = self.info
        # What transforms in front leave of a vector, and what is left of that beside its centroid; OPQ learns by a
        # handful of copies.
        n_numbers = info.dim + info.index_dim * (bool(info.prefix) + (info.storage != "Flat"))
        return 4 * (n_numbers + 5 * info.dim * ("OPQ" in info.prefix)) + 16

    def _training_bytes(self, n_training: int) -> int:
        return n_training * self._training_bytes_each + 2 * self.info.fixed_bytes + _TILE_BYTES + _BATCH_BYTES

    def _adding_bytes(self) -> int:
        n_bytes = _TILE_BYTES + self.n_chunk_rows * 16 * self.shape.dim
        if self.info.is_mergeable:
            # Lists of a piece grow by doubling; put together, they have their size from the start.
            n_rows = min(self.n_piece_rows, self.shape.n_vectors)
            piece = n_rows * (self.info.code_bytes + 8) + _LIST_BYTES * (self.info.n_lists or 0)
            return n_bytes + max(self.info.fixed_bytes + 3 * piece, self.index_bytes + piece)
        if self.info.is_graph:
            # Links that are found and not yet made, and who was visited.
            return n_bytes + self.index_bytes + self.shape.n_vectors * (32 + self.settings.threads)
        # Its blocks grow by doubling, and are copied when they do.
        return n_bytes + 3 * self.index_bytes


def plan_memory(text: str, shape: Shape, settings: BuildSettings) -> MemoryPlan:
    """Return how an index is built; it may not fit.

    Raises:
        UserError: The factory string is wrong, or there are too few vectors to train it.
    """
    info = describe(text, settings.transform.out_dim(shape.dim), settings.metric)
    if shape.n_vectors < info.n_training_min:
        best = next(ladder(shape.n_vectors, info.dim, settings.metric))
        raise UserError(
            f"index {text!r} is trained on {info.n_training_min} vectors or more, and there are {shape.n_vectors}; "
            f"use {best}, or index more vectors"
        )
    if settings.n_training is not None and settings.n_training < info.n_training_min:
        raise UserError(f"n_training is {settings.n_training}: index {text!r} takes {info.n_training_min} or more")
    return MemoryPlan(info, shape, settings)


def check_memory(plan: MemoryPlan) -> None:
    """Refuse an index that does not fit into the memory that there is.

    Raises:
        UserError: The message names the best index that fits.
    """
    if plan.fits:
        return
    stage = max(plan.stages, key=lambda name: plan.stages[name])
    n_vectors, dim, limit = plan.shape.n_vectors, plan.info.dim, plan.settings.max_memory_bytes
    best = best_that_fits(plan.shape, plan.settings)
    remedy = f"{best.info.text} fits ({size(best.peak_bytes)})" if best else "no index of these vectors fits"
    raise UserError(
        f"index {plan.info.text!r} of {n_vectors} vectors of {dim} dimensions takes {size(plan.peak_bytes)} "
        f"({stage}), more than max_memory {size(limit)}; {remedy}"
    )


def check_growth(plan: MemoryPlan) -> None:
    """Refuse to add to an index up to the shape of a plan where that does not fit into the memory that there is.

    Raises:
        UserError: The message says how much it takes.
    """
    check_memory(plan)
    limit = plan.settings.max_memory_bytes
    if plan.growing_bytes > limit:
        raise UserError(
            f"adding to index {plan.info.text!r} up to {plan.shape.n_vectors} vectors takes "
            f"{size(plan.growing_bytes)}, more than the max_memory {size(limit)} that it was built with; build it "
            f"again, which takes {size(plan.peak_bytes)}"
        )


def best_that_fits(shape: Shape, settings: BuildSettings) -> MemoryPlan | None:
    """Return how the index that keeps vectors best is built, of those that fit; None if none does."""
    dim = settings.transform.out_dim(shape.dim)
    plans = (plan_memory(text, shape, settings) for text in ladder(shape.n_vectors, dim, settings.metric))
    return next((plan for plan in plans if plan.fits), None)


def ladder(n_vectors: int, dim: int, metric: Metric) -> Iterator[str]:
    """Yield the indexes worth building, from the one that keeps vectors best to the one that takes least.

    On token vectors of MiniLM (60,000 of 384 dimensions, cosine, all lists probed) recall@10 was 1.00 for SQfp16, 0.99
    for SQ8, 0.98 for SQ6, 0.96 for RaBitQ4, 0.90 for RaBitQ2 and 0.82 for RaBitQ. PQ is left out: in 64 bytes a vector
    it found 0.72, where RaBitQ found 0.82 in 66, and it trained twenty times as long. So is a refinement: what it
    is refined by takes as many bytes as without it, and finds no more.
    """
    yield "Flat"
    lists = list_prefix(n_vectors)
    last = None
    for storage in ("Flat", "SQfp16", "SQ8", "SQ6", "RaBitQ4", "RaBitQ2", "RaBitQ"):
        if lists or storage.startswith("SQ"):
            text = f"{lists}{storage}"
            n_bytes = describe(text, dim, metric).code_bytes
            # RaBitQ keeps some numbers of each vector beside its bits, so it takes more where vectors are narrow.
            if last is None or n_bytes < last:
                yield text
                last = n_bytes


def list_prefix(n_vectors: int) -> str:
    """Return how many lists to cut so many vectors into, as a factory string has it; empty if they are too few.

    Some 4 sqrt(n) lists: comparing a query with all of them then costs about what the vectors of some lists do.
    """
    n_lists = 1 << round(math.log2(4 * max(n_vectors, 1) ** 0.5))
    while n_lists * _LEAST_EACH > n_vectors:
        n_lists //= 2
    if n_lists < 8:
        return ""
    # A graph finds the lists faster than comparing with so many.
    return f"IVF{n_lists}," if n_lists <= _MAX_LISTS_COMPARED else f"IVF{n_lists}_HNSW32,"


def size(n_bytes: int) -> str:
    """Return a number of bytes as people write it."""
    for unit, divisor in (("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= divisor:
            return f"{n_bytes / divisor:.1f} {unit}"
    return f"{n_bytes / 1e3:.1f} kB"
