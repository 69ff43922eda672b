"""The typed records that pass through the flow.

Bulk data is in flat NumPy arrays (one array per column, one entry per token or window), not in one object per token:
a shard has tens of thousands of tokens, and Python objects for them would take more time than the encoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.choices import Level

IntArray = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

DocId = int | str

#: The version of the format of stores; see docs/store-format.md.
FORMAT_VERSION = 1

# The most characters of a document: a tokenizer takes 150 to 900 bytes of memory for each.
MAX_DOCUMENT_CHARS = 4_000_000


@dataclass(frozen=True, slots=True)
class Document:
    """One row of the corpus.

    `index` is the 0-based row number in the whole corpus; rows that cannot be read count too. `path` and `row` are the
    file and the 1-based line (text formats: the first line of the row) or row (Parquet) in it. If words are given,
    `text` is the words joined by spaces. `group` names the document that a sentence belongs to, for document context.
    """

    index: int
    doc_id: DocId
    text: str
    text_pair: str | None = None
    words: tuple[str, ...] | None = None
    group: DocId | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    path: str = ""
    row: int = 0


@dataclass(frozen=True, slots=True)
class SpanRows:
    """The rows of the span level, in the order of their documents: arrays (n_rows,).

    `char_start` and `char_end` bound a span in the text of its document (half-open). `columns` are further columns.
    `second` has the other span of each row, if rows are of two.
    """

    document: IntArray
    char_start: Int32Array
    char_end: Int32Array
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    second: SpanRows | None = None

    def texts(self, documents: Sequence[Document]) -> list[str]:
        """Return the characters of each span."""
        bounds = zip(self.document.tolist(), self.char_start.tolist(), self.char_end.tolist(), strict=True)
        return [documents[number].text[start:end] for number, start, end in bounds]


def excess_of(text: str, text_pair: str | None = None) -> str | None:
    """Return the reason why a document is too long to be read; None if it is not."""
    n_chars = len(text) if text_pair is None else len(text) + len(text_pair)
    if n_chars <= MAX_DOCUMENT_CHARS:
        return None
    return f"has {n_chars:,} characters, {MAX_DOCUMENT_CHARS:,} are the most that are read; cut the document up"


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read, with the reason and its raw bytes (None if the format has no raw bytes)."""

    index: int
    path: str
    row: int
    reason: str
    raw: bytes | None


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of the corpus; its digest (xxh3-128, hex) is that of the bytes on disk."""

    path: str
    format: str
    compression: str | None
    n_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Consecutive rows of one file.

    Reading starts at `offset`: a byte of the decompressed stream (text formats) or a row (Parquet). `row` is the
    1-based line or row number there, for messages; `n_rows` includes bad rows. `state` is what a reader needs in
    addition to the offset (CoNLL: the current group).
    """

    file: int
    offset: int
    row: int
    n_rows: int
    state: str | None = None


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """A planned slice of the corpus: rows `first_row` to `first_row + n_rows - 1`, in corpus order."""

    index: int
    first_row: int
    n_rows: int
    slices: tuple[FileSlice, ...]

    @property
    def name(self) -> str:
        """The zero-padded number that names the shard's part files."""
        return f"{self.index:05d}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a level's table: its name and its Arrow type (`int64`, `string`, `bool`, ...)."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class FeatureColumn:
    """One vector column: its name, its layers (absolute, ascending), how they are combined, and its width in values."""

    name: str
    layers: tuple[int, ...]
    combine: str
    dim: int


@dataclass(frozen=True, slots=True)
class LevelSchema:
    """The columns of one level: first those without vectors, then the vector columns."""

    level: Level
    columns: tuple[Column, ...]
    features: tuple[FeatureColumn, ...]


def by_level(found: Mapping[Level, LevelSchema]) -> dict[Level, LevelSchema]:
    """Return schemas in the order of the levels; JSON objects are written with sorted keys."""
    return {level: found[level] for level in Level if level in found}


@dataclass(frozen=True, slots=True)
class LevelTable:
    """The rows of one shard at one level, in corpus order.

    `columns` are in the order of the schema. `vectors` maps the name of a feature to an array (n_rows, dim) of the
    stored type. `valid` is False for rows without a vector (null in the part; their values are ignored); None means
    that every row has a vector.
    """

    level: Level
    n_rows: int
    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]
    vectors: Mapping[str, npt.NDArray[Any]]
    valid: BoolArray | None = None


@dataclass(frozen=True, slots=True)
class ShardResult:
    """The result of a shard task: the tables, the rows that were set aside, counts, and seconds per stage.

    `notes` counts events of this run only, such as packs that were halved because memory ran out. On a GPU, `encode`
    covers all of its work, pooling too, while `pool` is the time of the host.
    """

    tables: Mapping[Level, LevelTable]
    bad_rows: Sequence[BadRow]
    counts: Mapping[str, int]
    seconds: Mapping[str, float]
    notes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VectorRuns:
    """The places of a part's raw vectors: the number of rows of each row group, and where their values start.

    `offsets` maps each vector column to offsets in the file in bytes, one for each entry of `rows`. The values of a
    row group are the `rows * width` bytes from that offset on.
    """

    rows: tuple[int, ...]
    offsets: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PartInfo:
    """One committed part file; `digest` is its xxh3-128 (hex), and `runs` is None if a vector is null."""

    level: Level
    path: str
    n_rows: int
    n_bytes: int
    digest: str
    runs: VectorRuns | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class QuarantineFile:
    """The file of a shard's set-aside rows."""

    path: str
    n_rows: int
    n_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredShard:
    """One finished shard, as the manifest lists it; the same plan and input give the same record."""

    shard: int
    plan_hash: str
    parts: tuple[PartInfo, ...]
    n_bad_rows: int
    counts: Mapping[str, int]
    quarantine: QuarantineFile | None

    @property
    def files(self) -> tuple[PartInfo | QuarantineFile, ...]:
        """All files of the shard."""
        return self.parts if self.quarantine is None else (*self.parts, self.quarantine)


@dataclass(frozen=True, slots=True)
class Receipt(StoredShard):
    """The proof that a shard is done, written after its parts. Seconds, times and notes are those of one run."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    created_at: str = ""
    notes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The encoder of a plan: its family, its sizes, and the digests of its weights and tokenizer."""

    name: str
    revision: str | None
    family: str
    weights_sha256: str
    tokenizer_sha256: str
    n_layers: int
    hidden_size: int
    max_length: int
    n_parameters: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What one version of a store adds, decided before any weight is loaded.

    `fields` holds the settings that decide the bytes of the parts, as flat JSON values that can be compared one by one
    (`layers`, `model.weights_sha256`, ...). `plan_hash` is the sha256 of the fields with the formats and digests of the
    inputs. The shards of a plan that grows a store are numbered after those of the store; `fields` then has the hash
    of the plan that it follows as `base`.
    """

    plan_hash: str
    fields: Mapping[str, Any]
    inputs: tuple[InputFile, ...]
    model: ModelInfo
    schemas: Mapping[Level, LevelSchema]
    shards: tuple[ShardSpec, ...]
    metadata: dict[str, Any]
    kept_schema: str | None = None
    format_version: int = FORMAT_VERSION

    @property
    def n_rows(self) -> int:
        """The number of rows in the inputs, bad rows included."""
        return sum(shard.n_rows for shard in self.shards)

    @property
    def base(self) -> str:
        """The hash of the plan that this one follows; empty for a plan of a whole store."""
        return str(self.fields.get("base", ""))


@dataclass(frozen=True, slots=True)
class Pack:
    """Windows laid end to end for one forward pass, all arrays flat.

    `input_ids`, `position_ids` (starting at 0 in each window) and `type_ids` are (n_tokens,); `lengths` is
    (n_windows,), descending, and sums to n_tokens; `windows` (n_windows,) are the window numbers in the shard.
    `copies` (n_copies,) are further windows of the shard that have exactly the tokens of a window of this pack, and
    so the same states; `copy_of` (n_copies,) is the index of that window in `windows`.
    """

    input_ids: IntArray
    position_ids: IntArray
    type_ids: IntArray
    lengths: IntArray
    windows: IntArray
    copies: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    copy_of: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def n_tokens(self) -> int:
        """The number of tokens in the pack, special tokens included."""
        return len(self.input_ids)

    @property
    def served(self) -> tuple[IntArray, IntArray]:
        """The windows that get their states from this pack, copies last, and the index in `lengths` of each."""
        own = np.arange(len(self.windows), dtype=np.int64)
        return np.concatenate([self.windows, self.copies]), np.concatenate([own, self.copy_of])
