"""Memory of a build, stage by stage, and the choice of an index that fits into it, before the build."""
# A graph alone is not chosen: for 120,000 token vectors of MiniLM, HNSW32 took four times the memory of IVF1024,SQ8.

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from bertfeat.ann.description import AUTO, BuildSettings
from bertfeat.ann.exact import EXACT_BYTES
from bertfeat.ann.factory import FactoryInfo, describe
from bertfeat.display import human_bytes
from bertfeat.errors import UserError

# Working memory of a matrix product in faiss.
_TILE_BYTES = 24 << 20
# A chunk of a source as float32; and while it is read, with its copies.
CHUNK_BYTES = 16 << 20
_BATCH_BYTES = 3 * CHUNK_BYTES
_MAX_CHUNK_ROWS = 8192
_MAX_PIECE_BYTES = 64 << 20
_LIST_BYTES = 160  # of an empty inverted list
# With fewer training vectors per list, lists fit the sample and not the rest; the second is for little memory.
_LEAST_EACH = 39
_SCARCE_EACH = 16
_MAX_LISTS_COMPARED = 8192
# 40,000 vectors of 384 numbers: a comparison with all of them reads 64 MB.
_MAX_NUMBERS_COMPARED = 1 << 24
# Up to this width, each dimension has a code of its own. A code for two is coarse there: for the first 64 or 128
# principal axes of 200,000 words, it answered half as many queries/s at recall 0.95, since more hits were refined.
_MAX_CODED_ALONE = 128
# Recall@10 when all lists are searched, by storage, the smallest first.
_TYPICAL_RECALL = {"SQ8": 0.985, "SQfp16": 0.998, "Flat": 1.0}


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of vectors, their width before the transform, and the number of queries given to tune by."""

    n_vectors: int
    dim: int
    n_given: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """The memory and the step sizes of a build of an index (`info`) of vectors (`shape`) by `settings`."""

    info: FactoryInfo
    shape: Shape
    settings: BuildSettings

    @property
    def index_bytes(self) -> int:
        """The memory of the finished index."""
        info, n_vectors = self.info, self.shape.n_vectors
        reserved = info.lists_bytes(n_vectors) - info.scan_bytes * n_vectors + _LIST_BYTES * (info.n_lists or 0)
        return info.estimate_bytes(n_vectors) + info.table_bytes + reserved

    @property
    def exact_bytes(self) -> int:
        """The working memory of an exact search."""
        return max(4 << 20, min(EXACT_BYTES, self.settings.max_memory // 8))

    @cached_property
    def n_training(self) -> int:
        """How many vectors to train on: as many as are wanted, but no more than there are or the memory holds."""
        if not self.info.n_training_min:
            return 0
        wanted = min(self.info.n_training_wanted, self.shape.n_vectors)
        left = self.settings.max_memory - self._training_bytes(0)
        least = max(self.info.n_training_min, _SCARCE_EACH * (self.info.n_lists or 0))
        holds = max(left // self._training_bytes_each, min(least, wanted))
        return int(min(wanted, holds))

    @property
    def n_chunk_rows(self) -> int:
        """How many vectors are added at once; a graph depends on it, so it depends on shape and settings alone."""
        most = max(256, self.settings.max_memory // 16 // (16 * self.shape.dim))
        # A graph grows better, and on more threads, when more is added at once.
        wanted = max(_MAX_CHUNK_ROWS, self.shape.n_vectors // 64 if self.info.n_links else 0)
        return int(min(wanted, most, self.settings.n_piece_rows or most))

    @property
    def n_piece_rows(self) -> int:
        """How many vectors are added between two points from which a build can resume."""
        if self.settings.n_piece_rows is not None:
            return self.settings.n_piece_rows
        n_bytes = max(1 << 20, min(_MAX_PIECE_BYTES, self.settings.max_memory // 16))
        return int(max(self.n_chunk_rows, n_bytes // (self.info.code_bytes + 8)))

    @property
    def stages(self) -> dict[str, int]:
        """The most memory that each stage holds, in bytes."""
        n_queries = min(self.settings.n_queries, self.shape.n_vectors) + self.shape.n_given
        # A query, its hits for all parameters that are tried, and its true hits.
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
        """The most memory that any stage holds."""
        return max(self.stages.values())

    @property
    def growing_bytes(self) -> int:
        """The most memory that adding to the finished index holds: storage is copied when it grows."""
        return self._batch_bytes + self.n_chunk_rows * 16 * self.shape.dim + _TILE_BYTES + 2 * self.index_bytes

    @property
    def fits(self) -> bool:
        """Whether no stage holds more than it may."""
        return self.peak_bytes <= self.settings.max_memory

    @property
    def _reading_bytes(self) -> int:
        # The source holds the number of each row that it reads.
        return _BATCH_BYTES + 8 * self.shape.n_vectors

    @property
    def _batch_bytes(self) -> int:
        return self._reading_bytes + 24 * self.shape.dim * min(_MAX_CHUNK_ROWS, self.shape.n_vectors)

    @property
    def _training_bytes_each(self) -> int:
        info = self.info
        # The vector after a rotation, and its difference from a centroid; OPQ learns on several copies.
        n_numbers = info.dim + info.index_dim * (info.has_opq + (info.storage != "Flat"))
        return 4 * (n_numbers + 5 * info.dim * info.has_opq) + 16

    def _training_bytes(self, n_training: int) -> int:
        return n_training * self._training_bytes_each + 2 * self.info.fixed_bytes + _TILE_BYTES + self._reading_bytes

    def _adding_bytes(self) -> int:
        n_bytes = _TILE_BYTES + self.n_chunk_rows * 16 * self.shape.dim
        if self.info.n_links:
            # Links that are found but not yet made, and which vectors were visited.
            return n_bytes + self.index_bytes + self.shape.n_vectors * (32 + self.settings.threads)
        # Lists of a piece grow by doubling; those of the merged index have their size from the start.
        n_rows = min(self.n_piece_rows, self.shape.n_vectors)
        piece = n_rows * (self.info.code_bytes + 8) + _LIST_BYTES * (self.info.n_lists or 0)
        # Codes in blocks are in memory a second time, one after the other, before there is any refinement.
        twice = self.shape.n_vectors * (2 * self.info.scan_bytes + 8 - self.info.code_bytes)
        most = self.index_bytes + max(piece, twice if self.info.scan_bytes else 0)
        return n_bytes + max(self.info.fixed_bytes + 3 * piece + self.info.lists_bytes(n_rows), most)


def plan_build(n_vectors: int, dim: int, settings: BuildSettings, n_given: int = 0) -> list[MemoryPlan]:
    """Return the indexes to build, in turn, until one reaches the recall, with `n_given` queries to tune by."""
    if n_vectors < 1:
        raise UserError("there are no vectors to index; choose a store, level and feature that has some")
    settings.transform_spec.check(dim, n_vectors)
    shape = Shape(n_vectors, dim, n_given)
    if settings.factory == AUTO:
        return _chosen(shape, settings)
    plan = plan_memory(settings.factory, shape, settings)
    check_memory(plan)
    return [plan]


def plan_memory(text: str, shape: Shape, settings: BuildSettings) -> MemoryPlan:
    """Return how the index of a factory string is built; it may not fit. A wrong string is a UserError."""
    return MemoryPlan(describe(text, settings.transform_spec.out_dim(shape.dim), settings.metric), shape, settings)


def check_memory(plan: MemoryPlan) -> None:
    """Raise a UserError that names another index if a plan has too few vectors to train on, or too little memory."""
    name, n_vectors, least = repr(plan.info.text), plan.shape.n_vectors, plan.info.n_training_min
    if n_vectors < least:
        best = next(ladder(plan.shape, plan.settings)).info.text
        raise UserError(
            f"index {name} is trained on {least} vectors or more, and there are {n_vectors}; use {best}, or index more "
            "vectors"
        )
    if not plan.fits:
        stage = max(plan.stages, key=lambda stage: plan.stages[stage])
        fitting = next((other for other in ladder(plan.shape, plan.settings) if other.fits), None)
        remedy = "no index of these vectors fits"
        if fitting is not None:
            remedy = f"{fitting.info.text} fits ({human_bytes(fitting.peak_bytes)})"
        raise UserError(
            f"index {name} of {n_vectors} vectors of {plan.info.dim} dimensions takes {human_bytes(plan.peak_bytes)} "
            f"({stage}), more than max_memory {human_bytes(plan.settings.max_memory)}; {remedy}"
        )


def check_growth(plan: MemoryPlan) -> None:
    """Raise a UserError if growing an index to the shape of a plan does not fit into `max_memory`."""
    check_memory(plan)
    limit = plan.settings.max_memory
    if plan.growing_bytes > limit:
        raise UserError(
            f"adding to index {plan.info.text!r} up to {plan.shape.n_vectors} vectors takes "
            f"{human_bytes(plan.growing_bytes)}, more than the max_memory {human_bytes(limit)} that it was built with; "
            f"build it again, which takes {human_bytes(plan.peak_bytes)}"
        )


def _chosen(shape: Shape, settings: BuildSettings) -> list[MemoryPlan]:
    """Return the indexes of the factory `auto`, the fastest first; raise a UserError if none fits."""
    dim = settings.transform_spec.out_dim(shape.dim)
    lists = list_prefix(shape.n_vectors)
    texts = ["Flat"]
    if shape.n_vectors * dim > _MAX_NUMBERS_COMPARED and lists:
        # Codes of 4 bits for each two dimensions; of few, or of an odd number, for each.
        n_codes = dim if dim <= _MAX_CODED_ALONE or dim % 2 else dim // 2
        stored = [storage for storage, recall in _TYPICAL_RECALL.items() if recall >= settings.recall]
        texts = [f"{lists}PQ{n_codes}x4fs,Refine({storage})" for storage in stored[:2]]
        texts += [f"{lists}{storage}" for storage in stored]
    if fitting := _fitting(texts, shape, settings):
        return fitting
    ordered = list(ladder(shape, settings))
    smaller = [plan for plan in ordered if plan.info.n_lists and plan.fits][:1]
    # Ids and centroids take memory too: where an index without lists has room for longer codes, it finds more.
    longest = smaller[0].info.code_bytes if smaller else 0
    whole = _fitting(["SQ6", "SQ8", "SQfp16", "Flat"], shape, settings)
    smaller += [plan for plan in whole if plan.info.code_bytes > longest]
    if not smaller:
        least = min(ordered, key=lambda plan: plan.peak_bytes)
        raise UserError(
            f"max_memory {human_bytes(settings.max_memory)}: too little for any index of {shape.n_vectors} vectors of "
            f"{dim} dimensions; {least.info.text} takes {human_bytes(least.peak_bytes)}"
        )
    return smaller


def _fitting(texts: Iterable[str], shape: Shape, settings: BuildSettings) -> list[MemoryPlan]:
    return [plan for text in texts if (plan := plan_memory(text, shape, settings)).fits]


def ladder(shape: Shape, settings: BuildSettings) -> Iterator[MemoryPlan]:
    """Yield the indexes worth building, from the most precise to the smallest."""
    # Recall@10 on 60,000 token vectors of MiniLM: 1.00 for SQfp16, 0.99 for SQ8, 0.98 for SQ6, 0.96 for RaBitQ4, 0.90
    # for RaBitQ2, and 0.82 for RaBitQ (66 bytes), but 0.72 for PQ (64). A refinement finds no more for the same bytes.
    yield plan_memory("Flat", shape, settings)
    lists = list_prefix(shape.n_vectors)
    least = math.inf
    for storage in ("Flat", "SQfp16", "SQ8", "SQ6", "RaBitQ4", "RaBitQ2", "RaBitQ"):
        if lists or storage.startswith("SQ"):
            plan = plan_memory(f"{lists}{storage}", shape, settings)
            # RaBitQ stores some numbers with the bits of each vector, so it takes more where vectors are narrow.
            if plan.info.code_bytes < least:
                yield plan
                least = plan.info.code_bytes


def list_prefix(n_vectors: int) -> str:
    """Return the start of a factory string with a number of lists that suits the vectors; empty if they are too few."""
    # Comparing a query with 4 sqrt(n) lists costs about as much as the vectors of some lists.
    n_lists = 1 << round(math.log2(4 * max(n_vectors, 1) ** 0.5))
    while n_lists * _LEAST_EACH > n_vectors:
        n_lists //= 2
    if n_lists < 8:
        return ""
    # A graph finds lists faster than a comparison with that many.
    return f"IVF{n_lists}," if n_lists <= _MAX_LISTS_COMPARED else f"IVF{n_lists}_HNSW32,"
