"""What an index says of itself: the content of `index.json`, every field of it checked when it is read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from bertfeat.ann.buildsettings import BuildSettings
from bertfeat.ann.transforms import TransformKind, TransformSpec
from bertfeat.durable.decoding import check_version, decode
from bertfeat.errors import UserError
from bertfeat.nearest import Metric, parse_metric

FORMAT_VERSION = 1

DESCRIPTION = "index.json"
INDEX = "index.faiss"
ROWS = "rows.parquet"
TRANSFORM = "transform.safetensors"
FILES = (INDEX, ROWS, TRANSFORM)

# What no real index comes near, and what keeps sums of numbers from a file within 64 bits.
_MAX_VECTORS = 1 << 40
_MAX_DIM = 1 << 20
_MAX_NUMBER = 1 << 40
_MAX_TEXT = 1000
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size of a file and its xxh3-128, hex."""

    n_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """What an index holds and how it was made.

    Attributes:
        n_vectors: How many vectors it holds.
        dim: The width of the raw vectors that it takes, before its transform.
        metric: How vectors are compared.
        transform: What is done to them first.
        factory: The faiss factory string.
        parameters: How faiss searches it: `nprobe`, `efSearch`, ...
        settings: What was asked for when it was built: JSON values.
        source: Where the vectors come from: JSON values; `search` does not look into them.
        measured: Recall and other measurements: JSON values.
        seconds: How long each stage of building took.
        files: The size and digest of each file of the folder but `index.json` itself.
    """

    n_vectors: int
    dim: int
    metric: Metric
    transform: TransformSpec
    factory: str
    parameters: Mapping[str, int | float] = field(default_factory=dict)
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
        """Return the description as plain JSON values; `from_json` of them is equal to it."""
        plain = {name: getattr(self, name) for name in _FIELDS if name not in ("metric", "transform", "files")}
        digests = {name: dataclasses.asdict(found) for name, found in self.files.items()}
        return {
            "format_version": FORMAT_VERSION,
            **{name: dict(value) if isinstance(value, Mapping) else value for name, value in plain.items()},
            "metric": str(self.metric),
            "transform": str(self.transform),
            "files": digests,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read a description from JSON values.

        Raises:
            UserError: It is of a newer format.
            ValueError: It has no format version, a field is missing, unknown, or has a value that it cannot have.
        """
        check_version(DESCRIPTION, content, FORMAT_VERSION)
        values = {name: value for name, value in content.items() if name != "format_version"}
        if odd := sorted(_FIELDS.keys() ^ values.keys()):
            raise ValueError(f"missing or unknown fields: {', '.join(odd)}")
        found = cls(**{name: read(name, values[name]) for name, read in _FIELDS.items()})
        found._check()
        return found

    def _check(self) -> None:
        if self.transform.dim is not None and self.transform.dim > self.dim:
            raise ValueError(f"transform {self.transform} of vectors of {self.dim} dimensions")
        wanted = {INDEX, TRANSFORM} if self.has_transform else {INDEX}
        if self.files.keys() - {ROWS} != wanted:
            raise ValueError(f"files are {', '.join(sorted(self.files)) or 'none'}")


def _whole(low: int, high: int) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{name} is {value!r:.40}")
        return value

    return read


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT or not value.isprintable():
        raise ValueError(f"{name} is {value!r:.40}")
    return value


def _metric(name: str, value: Any) -> Metric:
    try:
        return parse_metric(_text(name, value))
    except UserError as error:
        raise ValueError(str(error)) from error


def _transform(name: str, value: Any) -> TransformSpec:
    try:
        return TransformSpec.parse(_text(name, value))
    except UserError as error:
        raise ValueError(str(error)) from error


def _mapping(name: str, value: Any) -> dict[str, Any]:
    # Keys of JSON are texts.
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {value!r:.40}")
    return value


def _numbers(name: str, value: Any) -> dict[str, int | float]:
    found = {}
    for key, number in _mapping(name, value).items():
        if type(number) not in (int, float) or not 0 <= number <= _MAX_NUMBER:
            raise ValueError(f"{name}.{key:.40} is {number!r:.40}")
        found[_text(name, key)] = number
    return found


def _settings(name: str, value: Any) -> dict[str, Any]:
    found = _mapping(name, value)
    if odd := sorted({field.name for field in dataclasses.fields(BuildSettings)} ^ found.keys()):
        raise ValueError(f"{name}: missing or unknown fields: {', '.join(odd)}")
    transform = _transform(f"{name}.transform", found["transform"])
    try:
        decode(BuildSettings, {**found, "transform": dataclasses.asdict(transform)})
    except (ValueError, UserError) as error:
        raise ValueError(f"{name}: {error}") from None
    return found


def _measured(name: str, value: Any) -> dict[str, Any]:
    found = _mapping(name, value)
    try:
        decode(_Measured, {key: found[key] for key in found.keys() & _Measured.__annotations__.keys()})
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return found


@dataclass(frozen=True)
class _Measured:
    """What is shown of the measurements of an index; the others are notes."""

    recall_at_10: float | None = None
    target_met: bool | None = None
    n_queries: int | None = None
    queries_per_s: float | None = None


def _files(name: str, value: Any) -> dict[str, FileDigest]:
    found = {}
    for key, entry in _mapping(name, value).items():
        digest = _mapping(f"{name}.{key}", entry).get("digest")
        if key not in FILES or entry.keys() != {"n_bytes", "digest"}:
            raise ValueError(f"{name} names {key!r:.40}, or says of it something else than its size and digest")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ValueError(f"{name}.{key}.digest is {digest!r:.40}")
        found[key] = FileDigest(_whole(0, 1 << 60)(f"{name}.{key}.n_bytes", entry["n_bytes"]), digest)
    return found


_FIELDS: dict[str, Callable[[str, Any], Any]] = {
    "n_vectors": _whole(0, _MAX_VECTORS),
    "dim": _whole(1, _MAX_DIM),
    "metric": _metric,
    "transform": _transform,
    "factory": _text,
    "parameters": _numbers,
    "settings": _settings,
    "source": _mapping,
    "measured": _measured,
    "seconds": _numbers,
    "files": _files,
}
