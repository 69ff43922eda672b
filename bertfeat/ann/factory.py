"""Reader of faiss factory strings: the index that a string makes, or why it cannot be built here."""
# faiss itself checks little: `PQ8x0` divides by zero, and `HNSW1` writes out of bounds, which ends the process.

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from bertfeat.ann.library import faiss
from bertfeat.ann.search_parameters import codes_of, leaves
from bertfeat.errors import UserError
from bertfeat.vectors.nearest import Metric

_UNKNOWN = (
    "it is not known here; use Flat, SQ8, SQ6, SQ4, SQfp16, SQbf16, PQ16, RaBitQ4; IVF256 or IVF65536_HNSW32 before "
    "one of these or PQ32x4fs; HNSW32 alone or before Flat, SQ or PQ; OPQ16 or OPQ16_64 in front; RFlat or "
    "Refine(SQ8) at the end"
)

_MAX_LENGTH = 200
_MAX_LISTS = 1 << 20
_MAX_LINKS = 256
# Vectors to train each list on; faiss takes 256 by default. For queries of another text, a million vectors in 4,096
# lists (384 dimensions, 2 cores) took 122 s to build with 128, and 152 s with 192. These answer 20 % more queries at a
# recall of 0.95, as many as faiss, which took 162 s. With 64, they take 5 to 11 % more time than with 128.
_TRAINED_EACH = 192
_GRAMMAR = re.compile(
    r"(?:OPQ(?P<opq>\d{1,6})(?:_(?P<opq_dim>\d{1,6}))?,)?"
    r"(?:IVF(?P<lists>\d{1,9})(?:_HNSW(?P<list_links>\d{1,6}))?,|HNSW(?P<links>\d{1,6})(?:,(?!$)|$))?"
    r"(?P<storage>Flat|SQ(?:8|6|4|fp16|bf16)|RaBitQ[1-8]?|PQ(?P<parts>\d{1,6})(?:x(?P<bits>\d{1,6}))?(?P<fast>fs)?)?"
    r"(?P<refine>,RFlat|,Refine\((?:Flat|SQ(?:8|6|4|fp16|bf16))\))?",
    re.ASCII,
)
_NUMBERS = ("opq", "opq_dim", "lists", "list_links", "links", "parts", "bits")
_TRANSFORM = re.compile(r"(?:^|,)((?:PCA|RR|Pad|L2norm)\w*)")
# The fewest and the wanted number of vectors to train scalars on: a sample must show their range.
_TRAINING = dict.fromkeys(("SQ8", "SQ6", "SQ4", "RaBitQ", *(f"RaBitQ{n}" for n in range(1, 9))), (1, 65536))
# faiss makes no longer table (precomputed_table_max_bytes).
_MAX_TABLE_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class FactoryInfo:
    """What a factory string makes of vectors of a given width."""

    text: str
    metric: Metric
    dim: int
    index_dim: int  # after OPQ
    storage: str
    has_opq: bool
    n_lists: int | None
    n_links: int | None  # of a vector in the graph
    code_bytes: int  # of a vector, without its id and links
    scan_bytes: int  # of these, the codes of 4 bits, which are interleaved in blocks of 32 vectors
    fixed_bytes: int  # of an empty index: matrices, code books, centroids
    table_bytes: int  # of tables that faiss computes when it loads the index; no file holds them
    n_training_min: int  # 0 if it needs no training
    n_training_wanted: int

    def make(self) -> Any:
        """Return the index, untrained and empty."""
        return _make(self.text, self.dim, self.metric)

    def estimate_bytes(self, n_vectors: int) -> int:
        """Return the bytes of the index with this many vectors: as a file and, without `table_bytes`, in memory."""
        bytes_each = self.code_bytes + 8 * bool(self.n_lists) + _link_bytes(self.n_links)
        # The last block of a list is half full on average.
        return int(self.fixed_bytes + bytes_each * n_vectors + self.scan_bytes * 16 * (self.n_lists or 1))

    def lists_bytes(self, n_vectors: int) -> int:
        """Return the most bytes that the codes in blocks of this many vectors take in memory, with their padding."""
        # faiss reserves a power of two of bytes for the blocks of a list.
        return 2 * self.scan_bytes * (n_vectors + 32 * (self.n_lists or 1))


def describe(text: str, dim: int, metric: Metric = Metric.COSINE) -> FactoryInfo:
    """Read a factory string for vectors of a width; raise a UserError if its index cannot be built from parts."""
    try:
        return _read(text, dim, metric)
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split("Error: ")[-1].split())  # without the source line that faiss puts in front
        raise UserError(f"index {text[:_MAX_LENGTH]!r} of {dim} dimensions: {reason}") from None


def _read(text: str, dim: int, metric: Metric) -> FactoryInfo:
    found = _GRAMMAR.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if found is None or not (found["storage"] or found["links"]):
        linear = _TRANSFORM.search(text)
        raise ValueError(f"{linear[1]} is a linear step; use `transform`, such as pca:64" if linear else _UNKNOWN)
    numbers = {name: int(number) if number else None for name, number in found.groupdict().items() if name in _NUMBERS}
    storage, refine = found["storage"] or "Flat", (found["refine"] or "").removeprefix(",Refine(").rstrip(")")
    n_lists, n_links, is_fast = numbers["lists"], numbers["links"], found["fast"] is not None
    # Only lists take codes of 4 bits in blocks: they can be merged.
    if (n_links and storage.startswith("RaBitQ")) or (is_fast and not (n_lists and numbers["bits"] == 4)):
        raise ValueError(_UNKNOWN)
    index_dim = dim if numbers["opq_dim"] is None else numbers["opq_dim"]
    fixed_bytes, table_bytes = 8 * dim * bool(refine), 0
    training = [_TRAINING.get(storage, (0, 0)), _TRAINING.get(refine, (0, 0))]
    for name in ("links", "list_links"):
        _check("the links of HNSW", numbers[name], 2, _MAX_LINKS)
    _check("the lists of IVF", n_lists, 1, _MAX_LISTS)
    _check("the dimensions that OPQ leaves", index_dim, 1, dim)
    _check_parts("OPQ", numbers["opq"], index_dim)
    _check_parts("PQ", numbers["parts"], index_dim)
    n_bits = 8 if numbers["bits"] is None else numbers["bits"]
    # With fewer bits, faiss raises an error in some searches.
    _check("the bits of PQ", n_bits, 3, 16)
    if numbers["opq"]:
        fixed_bytes += 4 * dim * index_dim
        training.append((256, 65536))
    if n_lists:
        fixed_bytes += n_lists * (4 * index_dim + 8) + int(n_lists * _link_bytes(numbers["list_links"]))
        training.append((n_lists, _TRAINED_EACH * n_lists))
    if numbers["parts"]:
        fixed_bytes += 4 * index_dim << n_bits
        training.append((1 << n_bits, 256 << n_bits))
        n_bytes = 4 * (n_lists or 0) * numbers["parts"] << n_bits
        if metric is Metric.L2 and not is_fast and n_bytes <= _MAX_TABLE_BYTES:
            table_bytes = n_bytes
    else:
        fixed_bytes += {"SQ": 8, "Ra": 4}.get(storage[:2], 0) * index_dim
    index = _make(text, dim, metric)
    sizes = [int(codes_of(part).code_size) for part in leaves(index)]
    return FactoryInfo(
        text,
        metric,
        dim,
        index_dim,
        storage,
        has_opq=numbers["opq"] is not None,
        n_lists=n_lists,
        n_links=n_links,
        code_bytes=sum(sizes),
        scan_bytes=sizes[0] if is_fast else 0,
        fixed_bytes=fixed_bytes,
        table_bytes=table_bytes,
        n_training_min=max(least for least, _ in training),
        n_training_wanted=max(wanted for _, wanted in training),
    )


def _make(text: str, dim: int, metric: Metric) -> Any:
    # Cosines are inner products of unit vectors.
    index = faiss.index_factory(dim, text, faiss.METRIC_L2 if metric is Metric.L2 else faiss.METRIC_INNER_PRODUCT)
    for part in leaves(index):
        codes = codes_of(part)
        if hasattr(codes, "do_polysemous_training"):
            # It renumbers code words for searches by Hamming distance, which are not used here, and takes longer
            # than the rest of the training.
            codes.do_polysemous_training = False
    return index


def _link_bytes(n_links: int | None) -> float:
    """Return the expected bytes of a vector's links, with its level and offset; 0 without a graph."""
    # A vector has 2 M links in the lowest level and M in each higher one, which it reaches with probability 1/M each.
    return 4 * (2 * n_links + n_links / (n_links - 1)) + 12 if n_links else 0


def _check(what: str, number: int | None, low: int, high: int) -> None:
    if number is not None and not low <= number <= high:
        raise ValueError(f"{what} are {number}; give {low} to {high}")


def _check_parts(what: str, n_parts: int | None, dim: int) -> None:
    _check(f"the parts of {what}", n_parts, 1, dim)
    if n_parts and dim % n_parts:
        divisors = ", ".join(str(n) for n in range(1, dim + 1) if dim % n == 0)
        raise ValueError(
            f"{what} cuts {dim} dimensions into {n_parts} parts; give a number that divides {dim}: {divisors}"
        )
