"""Reader of faiss factory strings: the index that a string makes, or why it cannot be built here.

The parser of faiss checks little: `PQ8x0` divides by zero, `HNSW1` and `OPQ8_64` of 32 dimensions write out of bounds,
and `RaBitQ9` is read as another number of bits. Each of these ends the process or spoils the index. So strings are read
here first, by a grammar of what can be built from vectors in parts, and their numbers are checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import faiss

from bertfeat.ann.structure import codes_of, leaves
from bertfeat.errors import UserError
from bertfeat.vectors.nearest import Metric

SUPPORTED = (
    "Flat, SQ8, SQ6, SQ4, SQfp16, SQbf16, PQ16, PQ32x4fs, RaBitQ4; IVF256 or IVF65536_HNSW32 before one of these; "
    "HNSW32 alone or before Flat, SQ or PQ; L2norm, PCA64, PCAR64, PCAW64, OPQ16, OPQ16_64, RR64, Pad64 in front; "
    "RFlat or Refine(SQ8) at the end"
)

_MAX_LENGTH = 200
_MAX_LISTS = 1 << 20
_MAX_LINKS = 256
_MAX_PQ_BITS = 16
# Vectors to train each list on; faiss takes 256 by default. For queries of another text, a million vectors in 4,096
# lists (384 dimensions, 2 cores) took 122 s to build with 128, and 152 s with 192. These answer 20 % more queries at a
# recall of 0.95, as many as faiss, which took 162 s. With 64, they take 5 to 11 % more time than with 128.
_TRAINED_EACH = 192
_REASONS = (
    (re.compile(r"IDMap2?"), "positions are the ids, so leave IDMap out"),
    (re.compile(r"NSG.*|NNDescent.*|CAGRA.*"), "its graph cannot take vectors part by part; use HNSW32"),
)
_PREFIX = re.compile(r"(L2norm)|(PCA|PCAR|PCAW|PCAWR|RR|Pad)(\d{1,6})|(OPQ)(\d{1,6})(?:_(\d{1,6}))?", re.ASCII)
_LISTS = re.compile(r"IVF(\d{1,9})(?:_HNSW(\d{1,6})|\(HNSW(\d{1,6})\))?", re.ASCII)
_GRAPH = re.compile(r"HNSW(\d{1,6})(?:_(.+))?", re.ASCII)
_REFINE = re.compile(r"R(Flat)|Refine\((Flat|SQ8|SQ6|SQ4|SQfp16|SQbf16)\)", re.ASCII)
_SCALAR = re.compile(r"SQ(?:8|6|4|fp16|bf16)")
_PRODUCT = re.compile(r"PQ(\d{1,6})(?:x(\d{1,6}))?(?:np)?", re.ASCII)
_FAST = re.compile(r"PQ(\d{1,6})x4fs(r?)(?:_(\d{1,6}))?", re.ASCII)
_BITS = re.compile(r"RaBitQ([1-8]?)")
# faiss makes no longer table (precomputed_table_max_bytes).
_MAX_TABLE_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class FactoryInfo:
    """What a factory string makes of vectors of a given width.

    Attributes:
        text: The string.
        metric: How vectors are compared.
        dim: The width of the vectors that the index takes.
        index_dim: Their width after PCA, OPQ and the like.
        storage: How vectors are stored: `Flat`, `SQ8`, ...
        prefix: The transforms in front, as written.
        refine: How vectors are stored a second time, to reorder the hits; None if only once.
        n_lists: The number of inverted lists, or None.
        n_links: The links of a vector in the graph, or None.
        code_bytes: The bytes of a vector, without its id and links.
        scan_bytes: Those of them that are in blocks of 32 vectors, in interleaved codes of 4 bits.
        fixed_bytes: The bytes of an empty index: matrices, code books, centroids.
        table_bytes: The bytes of tables that faiss computes when it loads the index; no file holds them.
        n_training_min: The fewest vectors that it can be trained on; 0 if it needs no training.
        n_training_wanted: The number of vectors that it is trained on best.
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
    scan_bytes: int = 0
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
        """Whether vectors are in inverted lists, of which a search reads some."""
        return self.n_lists is not None

    @property
    def is_graph(self) -> bool:
        """Whether a search follows the links of a graph of vectors."""
        return self.n_links is not None

    @property
    def is_fast_scan(self) -> bool:
        """Whether codes are stored in interleaved blocks of 32."""
        return "x4fs" in self.storage

    @property
    def is_mergeable(self) -> bool:
        """Whether pieces that are filled one by one can be merged into the index that adding all at once gives."""
        # faiss takes blocks of 32 codes in lists apart, and no others.
        is_divisible = self.is_ivf and self.storage.endswith(("x4fs", "x4fsr"))
        return is_divisible if self.is_fast_scan else not self.is_graph

    def make(self) -> Any:
        """Return the index, untrained and empty."""
        index = faiss.index_factory(self.dim, self.text, metric_type(self.metric))
        for part in leaves(index):
            codes = codes_of(part)
            if hasattr(codes, "do_polysemous_training"):
                # It renumbers code words for searches by Hamming distance, which are not used here, and takes longer
                # than the rest of the training.
                codes.do_polysemous_training = False
        return index

    def estimate_bytes(self, n_vectors: int) -> int:
        """Return the bytes of the index with this many vectors: as a file and, without `table_bytes`, in memory."""
        bytes_each = self.code_bytes + 8 * self.is_ivf + (_link_bytes(self.n_links) if self.n_links else 0)
        # The last block of a list is half full on average.
        return int(self.fixed_bytes + bytes_each * n_vectors + self.scan_bytes * 16 * (self.n_lists or 1))

    def lists_bytes(self, n_vectors: int) -> int:
        """Return the most bytes that the codes in blocks of this many vectors take in memory, with their padding."""
        # faiss reserves a power of two of bytes for the blocks of a list.
        return 2 * self.scan_bytes * (n_vectors + 32 * (self.n_lists or 1))


def metric_type(metric: Metric) -> int:
    """Return the number that faiss has for a metric; cosines are inner products of unit vectors."""
    return int(faiss.METRIC_L2 if metric is Metric.L2 else faiss.METRIC_INNER_PRODUCT)


def describe(text: str, dim: int, metric: Metric = Metric.COSINE) -> FactoryInfo:
    """Read a factory string.

    Args:
        text: As faiss writes it: `Flat`, `HNSW32`, `IVF1024,SQ8`, `OPQ16_64,IVF1024,PQ16`, ...
        dim: The width of the vectors.
        metric: How vectors are compared.

    Raises:
        UserError: The string is not valid, or its index cannot be built from vectors in parts.
    """
    info = FactoryInfo(text, metric, dim, dim, "")
    try:
        if not text or len(text) > _MAX_LENGTH:
            raise ValueError(f"{len(text)} characters; use one of {SUPPORTED}")
        if dim < 1:
            raise ValueError(f"the vectors have {dim} dimensions")
        info = _read_storage(_read_prefixes(info, text.split(",")))
        index = info.make()
        sizes = [int(codes_of(part).code_size) for part in leaves(index)]
    except (ValueError, RuntimeError, MemoryError) as error:
        raise UserError(f"index {text[:_MAX_LENGTH]!r} of {dim} dimensions: {_reason(error)}") from None
    return replace(info, code_bytes=sum(sizes), scan_bytes=sizes[0] if info.is_fast_scan else 0)


def _reason(error: Exception) -> str:
    """Return an error as one line, without the source line that faiss puts in front."""
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    return " ".join(str(error).split("Error: ")[-1].split())


def _read_prefixes(info: FactoryInfo, parts: list[str]) -> FactoryInfo:
    """Read the transforms in front and the refinement at the end; the rest is the storage."""
    refine = _REFINE.fullmatch(parts[-1]) if len(parts) > 1 else None
    if refine:
        parts = parts[:-1]
        kind = refine[1] or refine[2]
        info = replace(info, refine=kind)
        info = _train(info, *_training_of_scalars(kind), fixed_bytes=8 * info.dim)
    while len(parts) > 1 and (found := _PREFIX.fullmatch(parts[0])):
        info, parts = _read_transform(replace(info, prefix=f"{info.prefix}{found[0]},"), found), parts[1:]
    return replace(info, storage=",".join(parts))


def _read_transform(info: FactoryInfo, found: re.Match[str]) -> FactoryInfo:
    dim = info.index_dim
    if found[1]:
        return info
    name, n_parts = found[2] or found[4], int(found[5] or 1)
    out = int(found[3] or found[6] or dim)
    if name == "Pad":
        _check("Pad", out, dim, 4 * dim)
        return replace(info, index_dim=out)
    _check(f"the dimensions that {name} leaves", out, 1, dim)
    _check("the parts of OPQ", n_parts, 1, out)
    if out % n_parts:
        raise ValueError(f"{found[0]} cuts {out} dimensions into {n_parts} parts; give a number that divides {out}")
    info = replace(info, index_dim=out, fixed_bytes=info.fixed_bytes + 4 * dim * out)
    if name == "OPQ":
        return _train(info, 256, 65536)
    if name == "RR":
        return _train(info, 1, 1)
    # faiss stores all axes, the variances and the mean as well as the matrix.
    return _train(info, out, max(64 * dim, 10_000), fixed_bytes=4 * (dim * dim + 2 * dim + out))


def _read_storage(info: FactoryInfo) -> FactoryInfo:
    """Read the storage, without transforms and refinement."""
    head, _, tail = info.storage.partition(",")
    if lists := _LISTS.fullmatch(head):
        return _read_lists(info, lists, tail)
    if graph := _GRAPH.fullmatch(head):
        _check("the links of HNSW", int(graph[1]), 2, _MAX_LINKS)
        storage = ",".join(part for part in (graph[2], tail) if part) or "Flat"
        if storage != "Flat" and not _SCALAR.fullmatch(storage) and not _PRODUCT.fullmatch(storage):
            raise _unknown(storage)
        return _read_codes(replace(info, n_links=int(graph[1]), storage=storage))
    return _read_codes(info)


def _read_lists(info: FactoryInfo, found: re.Match[str], storage: str) -> FactoryInfo:
    n_lists, n_links = int(found[1]), found[2] or found[3]
    _check("the lists of IVF", n_lists, 1, _MAX_LISTS)
    fixed_bytes = n_lists * (4 * info.index_dim + 8)
    if n_links is not None:
        _check("the links of HNSW", int(n_links), 2, _MAX_LINKS)
        fixed_bytes += int(n_lists * _link_bytes(int(n_links)))
    n_wanted = _TRAINED_EACH * n_lists
    info = _train(replace(info, n_lists=n_lists, storage=storage), n_lists, n_wanted, fixed_bytes=fixed_bytes)
    return _read_codes(info)


def _read_codes(info: FactoryInfo) -> FactoryInfo:
    """Read how vectors are stored."""
    storage, dim = info.storage, info.index_dim
    if storage == "Flat":
        return info
    if _SCALAR.fullmatch(storage):
        return _train(info, *_training_of_scalars(storage), fixed_bytes=8 * dim)
    if _BITS.fullmatch(storage):
        return _train(info, 1, 65536, fixed_bytes=4 * dim)
    if fast := _FAST.fullmatch(storage):
        if fast[2] and not info.is_ivf:
            raise _unknown(storage)
        if int(fast[3] or 32) not in range(32, 257, 32):
            raise ValueError(f"{storage} packs {fast[3]} vectors at a time; give 32, 64, ... 256, or nothing")
        return _read_product(info, int(fast[1]), 4, is_residual=bool(fast[2]))
    if product := _PRODUCT.fullmatch(storage):
        return _read_product(info, int(product[1]), int(product[2] or 8))
    raise _unknown(storage)


def _read_product(info: FactoryInfo, n_parts: int, n_bits: int, *, is_residual: bool = True) -> FactoryInfo:
    dim, n_centroids = info.index_dim, 1 << n_bits
    _check("the parts of PQ", n_parts, 1, dim)
    if dim % n_parts:
        divisors = ", ".join(str(n) for n in range(1, dim + 1) if dim % n == 0)
        raise ValueError(f"PQ cuts {dim} dimensions into {n_parts} parts; give a number that divides {dim}: {divisors}")
    _check("the bits of PQ", n_bits, 1, _MAX_PQ_BITS)
    if info.is_ivf and info.metric is Metric.L2 and is_residual:
        n_bytes = 4 * (info.n_lists or 0) * n_parts * n_centroids
        info = replace(info, table_bytes=n_bytes if n_bytes <= _MAX_TABLE_BYTES else 0)
    return _train(info, n_centroids, 256 * n_centroids, fixed_bytes=4 * dim * n_centroids)


def _training_of_scalars(kind: str) -> tuple[int, int]:
    """Return the fewest and the wanted number of vectors to train scalars on: a sample must show their range."""
    return (0, 0) if kind in ("Flat", "SQfp16", "SQbf16") else (1, 65536)


def _train(info: FactoryInfo, n_min: int, n_wanted: int, *, fixed_bytes: int = 0) -> FactoryInfo:
    return replace(
        info,
        n_training_min=max(info.n_training_min, n_min),
        n_training_wanted=max(info.n_training_wanted, n_wanted),
        fixed_bytes=info.fixed_bytes + fixed_bytes,
    )


def _link_bytes(n_links: int) -> float:
    """Return the expected bytes of a vector's links, with its level and offset.

    A vector has 2 M links in the lowest level and M in each higher one, which it reaches with probability 1/M each.
    """
    return 4 * (2 * n_links + n_links / (n_links - 1)) + 12


def _check(what: str, number: int, low: int, high: int) -> None:
    if not low <= number <= high:
        raise ValueError(f"{what} are {number}; give {low} to {high}")


def _unknown(part: str) -> ValueError:
    for pattern, reason in _REASONS:
        if any(pattern.fullmatch(word) for word in part.split(",")):
            return ValueError(reason)
    what = f"{part!r} is not known here" if part else "it does not say how vectors are stored"
    return ValueError(f"{what}; use {SUPPORTED}")
