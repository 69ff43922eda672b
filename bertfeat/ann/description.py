"""Description of an index: the content of `index.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bertfeat.ann.buildsettings import BuildSettings
from bertfeat.ann.transforms import TransformSpec
from bertfeat.durable.records import FileDigest
from bertfeat.vectors.nearest import Metric

FORMAT_VERSION = 1

DESCRIPTION = "index.json"
INDEX = "index.faiss"
ROWS = "rows.parquet"
TRANSFORM = "transform.safetensors"
QUERIES = "queries.safetensors"
FILES = (INDEX, ROWS, TRANSFORM, QUERIES)


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """What an index holds and how it was made.

    Attributes:
        n_vectors: The number of vectors.
        dim: The width of the raw vectors that it takes, before its transform.
        metric: How vectors are compared.
        transform: What is done to them first, as `TransformSpec.parse` reads it.
        factory: The faiss factory string.
        parameters: How faiss searches it: `nprobe`, `efSearch`, ...
        settings: The settings that it was built with.
        source: Where the vectors come from: JSON values, which nothing in `ann` reads.
        measured: Recall and other measurements: JSON values.
        seconds: The seconds of each stage of the build.
        files: The size and digest of each file of the folder except `index.json`.
        format_version: The version of the format.
    """

    n_vectors: int
    dim: int
    metric: Metric
    transform: str
    factory: str
    parameters: Mapping[str, float | int] = field(default_factory=dict)
    settings: BuildSettings = field(default_factory=BuildSettings)
    source: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, FileDigest] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def index_dim(self) -> int:
        """The width of the vectors in the index, after the transform."""
        return TransformSpec.parse(self.transform).out_dim(self.dim)
