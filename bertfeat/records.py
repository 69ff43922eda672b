"""The typed things that travel through the flow.

Bulk data travels as flat NumPy arrays (one array a column, one entry a token, window, ...), not as one object a
token: a shard holds tens of thousands of tokens, and Python objects would cost more than the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.config import Level

IntArray = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

DocId = int | str


@dataclass(frozen=True, slots=True)
class Document:
    """One input row, as the corpus gives it.

    `index` is the 0-based row number in the whole corpus (rows that cannot be read count too, so that it always
    leads back to the input). `path` and `row` say where it stands: the 1-based line (text formats: the first line of
    the row) or row (Parquet) of that file. `text` is always there; where words were given it is the words joined by
    one blank. `group` names the document that a sentence belongs to, for document context.
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
class BadRow:
    """A row that cannot be read, with its raw bytes (None where the format has none) and the reason."""

    index: int
    path: str
    row: int
    reason: str
    raw: bytes | None


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of the corpus: its digest (xxh3-128, hex) is over the bytes as they lie on disk."""

    path: str
    format: str
    compression: str | None
    n_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Consecutive rows of one file.

    `offset` says where reading starts: a byte of the decompressed stream (text formats) or a row (Parquet). `row` is
    the 1-based line or row number there, for messages; `n_rows` counts bad rows too. `state` is what a reader needs
    beside the offset (CoNLL: the group that is open there).
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
    """One column of a level's table: its name and its type, an Arrow type's name (`int64`, `string`, `bool`, ...)."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class FeatureColumn:
    """One vector column: its name, the layers it is made of (absolute, ascending), how, and its width in values."""

    name: str
    layers: tuple[int, ...]
    combine: str
    dim: int


@dataclass(frozen=True, slots=True)
class LevelSchema:
    """The columns of one level: what stands before the vectors, then the vectors."""

    level: Level
    columns: tuple[Column, ...]
    features: tuple[FeatureColumn, ...]


@dataclass(frozen=True, slots=True)
class LevelTable:
    """The rows of one shard at one level, in corpus order.

    `columns` follow the level's schema. `vectors` maps a feature's name to an array (n_rows, dim) of the stored type.
    `valid` is False where a row has no vector (null in the part; its array content is ignored); None means all have.
    """

    level: Level
    n_rows: int
    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]
    vectors: Mapping[str, npt.NDArray[Any]]
    valid: BoolArray | None = None


def _nothing() -> Mapping[str, float]:
    """Wait for nothing."""
    return {}


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What a shard task hands to the store: the tables, the rows that were set aside, counts and seconds by stage.

    `notes` count what befell this run alone, such as packs that were halved for want of memory. The vectors hold their
    values after `wait`, since a GPU may still be copying them; it returns the seconds that are only then known:
    `encode` of a GPU has all that it did, pooling included, while `pool` is the host's.
    """

    tables: Mapping[Level, LevelTable]
    bad_rows: Sequence[BadRow]
    counts: Mapping[str, int]
    seconds: Mapping[str, float]
    notes: Mapping[str, int] = field(default_factory=dict)
    wait: Callable[[], Mapping[str, float]] = _nothing


@dataclass(frozen=True, slots=True)
class VectorRuns:
    """Where the vectors of a part lie as they are: the rows of each row group, and where the values of each start.

    `offsets` maps each vector column to bytes of the file, one for each entry of `rows`. The values of a row group are
    `rows * width` bytes from there on.
    """

    rows: tuple[int, ...]
    offsets: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PartInfo:
    """One committed part file, as its receipt and the manifest list it. `digest` is xxh3-128 of the file, hex.

    `runs` follow from the file's bytes, and are None where its vectors have to be decoded: where one is null, or in
    stores that were written without them.
    """

    level: Level
    path: str
    n_rows: int
    n_bytes: int
    digest: str
    runs: VectorRuns | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof that a shard is done. Counts are reproducible; seconds and notes are not."""

    shard: int
    plan_hash: str
    parts: tuple[PartInfo, ...]
    n_bad_rows: int
    counts: Mapping[str, int]
    seconds: Mapping[str, float]
    created_at: str
    notes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The encoder that a plan names: what it is, what it can take, and the digests of what it was loaded from."""

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
    """What a store is made from, decided before any weight is loaded.

    `fields` holds everything that decides the bytes of the parts as flat JSON values, one comparable entry each
    (`input.0.digest`, `layers`, `model.weights_sha256`, ...); `plan_hash` is the sha256 of their canonical JSON.
    """

    plan_hash: str
    fields: Mapping[str, Any]
    inputs: tuple[InputFile, ...]
    model: ModelInfo
    schemas: Mapping[Level, LevelSchema]
    shards: tuple[ShardSpec, ...]
    metadata: Mapping[str, Any]
    kept_schema: str | None = None

    @property
    def n_rows(self) -> int:
        """Rows of the corpus, bad rows included."""
        return sum(shard.n_rows for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Pack:
    """Windows laid end to end for one forward pass, all arrays flat.

    `input_ids`, `position_ids` (restarting at 0 in each window) and `type_ids` are (n_tokens,); `lengths` is
    (n_windows,), descending, and sums to n_tokens; `windows` (n_windows,) are the windows' numbers in their shard.
    `copies` (n_copies,) are further windows of the shard with the very same tokens as some of these, and `copy_of`
    (n_copies,) says which: an index into `windows`. Their states are those of the window that they repeat.
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
        """Tokens in the pack, special tokens included."""
        return len(self.input_ids)

    @property
    def served(self) -> tuple[IntArray, IntArray]:
        """The windows whose states the pack gives, copies last, and for each its place in `lengths`."""
        own = np.arange(len(self.windows), dtype=np.int64)
        return np.concatenate([self.windows, self.copies]), np.concatenate([own, self.copy_of])
