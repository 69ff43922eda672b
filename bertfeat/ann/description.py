"""Description of an index: the content of `index.json`, every field of it checked when it is read."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from bertfeat.ann.buildsettings import BuildSettings
from bertfeat.ann.transforms import TransformKind, TransformSpec
from bertfeat.durable.decoding import check_version, decode
from bertfeat.errors import UserError
from bertfeat.vectors.nearest import Metric

FORMAT_VERSION = 1

DESCRIPTION = "index.json"
INDEX = "index.faiss"
ROWS = "rows.parquet"
TRANSFORM = "transform.safetensors"
QUERIES = "queries.safetensors"
FILES = (INDEX, ROWS, TRANSFORM, QUERIES)

# No real index comes near these; they keep sums of numbers from a file within 64 bits.
_MAX_DIM = 1 << 20
_MAX_NUMBER = 1 << 40
_MAX_TEXT = 1000
_DIGEST = re.compile(r"[0-9a-f]{32}")

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size of a file and its xxh3-128, hex."""

    n_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """What an index holds and how it was made.

    Attributes:
        n_vectors: The number of vectors.
        dim: The width of the raw vectors that it takes, before its transform.
        metric: How vectors are compared.
        transform: What is done to them first.
        factory: The faiss factory string.
        parameters: How faiss searches it: `nprobe`, `efSearch`, ...
        settings: The settings that it was built with: JSON values.
        source: Where the vectors come from: JSON values, which nothing in `ann` reads.
        measured: Recall and other measurements: JSON values.
        seconds: The seconds of each stage of the build.
        files: The size and digest of each file of the folder except `index.json`.
    """

    n_vectors: int
    dim: int
    metric: Metric
    transform: TransformSpec
    factory: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, FileDigest] = field(default_factory=dict)

    @property
    def index_dim(self) -> int:
        """The width of the vectors in the index, after the transform."""
        return self.transform.out_dim(self.dim)

    @property
    def has_transform(self) -> bool:
        """Whether the folder has a file with a fitted transform."""
        return self.transform.kind is not TransformKind.NONE

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON values, for `from_json`."""
        values = {"metric": str(self.metric), "transform": str(self.transform)}
        return {"format_version": FORMAT_VERSION, **dataclasses.asdict(self), **values}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read a description from JSON values.

        Raises:
            UserError: The format is newer.
            ValueError: The format version is missing; or a field is missing, unknown, or has a wrong value.
        """
        check_version(DESCRIPTION, content, FORMAT_VERSION)
        found = _decoded(cls, {name: value for name, value in content.items() if name != "format_version"})
        found._check_numbers()
        found._check_files()
        name = "settings"
        try:
            _decoded(BuildSettings, found.settings)
            name = "measured"
            decode(_Measured, {key: found.measured[key] for key in found.measured.keys() & _names(_Measured)})
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        return found

    def _check_numbers(self) -> None:
        numbers = [("n_vectors", self.n_vectors), ("dim", self.dim)]
        for name, number in itertools.chain(numbers, self.parameters.items(), self.seconds.items()):
            if not 0 <= number <= _MAX_NUMBER:
                raise ValueError(f"{name!r:.40} is {number!r:.40}")
        for text in (self.factory, *self.parameters, *self.seconds):
            if not 0 < len(text) <= _MAX_TEXT or not text.isprintable():
                raise ValueError(f"{text!r:.40} is not a name")
        if not (self.transform.dim or 1) <= self.dim <= _MAX_DIM:
            raise ValueError(f"transform {self.transform} of vectors of {self.dim} dimensions")

    def _check_files(self) -> None:
        wanted = {INDEX, TRANSFORM} if self.has_transform else {INDEX}
        if self.files.keys() - {ROWS, QUERIES} != wanted:
            raise ValueError(f"files are {sorted(self.files)!r:.200}")
        for name, found in self.files.items():
            if not _DIGEST.fullmatch(found.digest):
                raise ValueError(f"files.{name}.digest is {found.digest!r:.40}")


@dataclass(frozen=True)
class _OnGiven:
    """The measurements with given queries."""

    recall_at_10: float
    n_queries: int
    queries_per_s: float


@dataclass(frozen=True)
class _Measured:
    """The measurements of an index that are shown; the others are notes."""

    recall_at_10: float | None = None
    target_met: bool | None = None
    n_queries: int | None = None
    queries_per_s: float | None = None
    given: _OnGiven | None = None


def _names(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _decoded(kind: type[_Record], values: Mapping[str, Any]) -> _Record:
    """Decode a record that has all its fields, and its transform as a text."""
    if odd := sorted(_names(kind) ^ values.keys()):
        raise ValueError(f"missing or unknown fields: {', '.join(odd)}")
    if not isinstance(values["transform"], str):
        raise ValueError(f"transform is {values['transform']!r:.40}")
    try:
        spec = TransformSpec.parse(values["transform"])
        return decode(kind, {**values, "transform": dataclasses.asdict(spec)})
    except UserError as error:
        raise ValueError(str(error)) from None
