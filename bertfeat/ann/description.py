"""Description of an index, the content of `index.json`: what it holds, and the settings that it was built with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bertfeat.ann.transforms import TransformSpec
from bertfeat.devices import n_cpus
from bertfeat.durable.records import FileDigest
from bertfeat.errors import UserError
from bertfeat.vectors.nearest import Metric

FORMAT_VERSION = 1

DESCRIPTION = "index.json"
INDEX = "index.faiss"
ROWS = "rows.parquet"  # the row of the store that each vector comes from
TRANSFORM = "transform.safetensors"  # if there is one
QUERIES = "queries.safetensors"  # those that it was tuned by, if some were given
# With `rerank`:
CODES = "tokens.codes"  # a code for each token of the documents
TOKENS = "tokens.safetensors"  # the mean of their vectors, and the tokens and rows of each document
FREQUENCIES = "tokens.parquet"  # in how many documents each token is
FILES = (INDEX, ROWS, TRANSFORM, QUERIES, CODES, TOKENS, FREQUENCIES)

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """How an index is built and tuned; the same settings and vectors give the same bytes on one machine."""

    factory: str = AUTO
    metric: Metric = Metric.COSINE
    transform: str = "none"
    max_memory: int = 4_000_000_000  # of the build, and of the finished index, without the program itself
    recall: float = 0.95  # the part of the ten nearest vectors that a search must find
    seed: int = 0
    n_threads: int | None = None  # None for all; another number rounds differently, which may change the bytes
    n_queries: int = 2000  # vectors of the index to measure recall with: one half to tune by, the other to report
    n_piece_rows: int | None = None  # vectors between two points from which a build can resume; None for about 64 MB

    def __post_init__(self) -> None:
        """Raise a UserError if a value is out of range, or the transform is unknown."""
        TransformSpec.parse(self.transform)
        if not 0 < self.recall <= 1:
            raise UserError(f"recall is {self.recall}: give a number above 0 and up to 1, as 0.95")
        if self.n_queries < 2:
            raise UserError(f"n_queries is {self.n_queries}: give 2 or more, half of them to tune by")
        for name, least in (("max_memory", 1), ("n_threads", 1), ("n_piece_rows", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} is {value}: give {least} or more")

    @property
    def threads(self) -> int:
        """How many threads to compute on."""
        return self.n_threads or n_cpus()

    @property
    def transform_spec(self) -> TransformSpec:
        """The transform."""
        return TransformSpec.parse(self.transform)


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """What an index holds and how it was made."""

    n_vectors: int
    dim: int  # of the raw vectors, before the transform
    metric: Metric
    transform: str
    factory: str
    parameters: Mapping[str, float | int] = field(default_factory=dict)  # of faiss: `nprobe`, `efSearch`, ...
    settings: BuildSettings = field(default_factory=BuildSettings)
    source: Mapping[str, Any] = field(default_factory=dict)  # where the vectors come from; nothing in `ann` reads it
    measured: Mapping[str, Any] = field(default_factory=dict)  # those of `tune`, for each index that was built
    seconds: Mapping[str, float] = field(default_factory=dict)  # of each stage of the build
    files: Mapping[str, FileDigest] = field(default_factory=dict)  # all files of the folder except `index.json`
    format_version: int = FORMAT_VERSION

    @property
    def index_dim(self) -> int:
        """The width of the vectors in the index, after the transform."""
        return TransformSpec.parse(self.transform).out_dim(self.dim)
