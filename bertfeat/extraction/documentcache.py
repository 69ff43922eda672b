"""The vectors of documents in a cache across runs: which are known, and which must be encoded and are then kept.

The key of a value says all that decides it: the model and the settings, and what the encoder and the pooling are given
of a document, which are the tokens of its windows and the positions of its rows in them. Columns, ids and offsets are
made of the text in every run.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.choices import Level, StoreDtype
from bertfeat.extraction.leveltables import ShardText
from bertfeat.extraction.vectorcache import Value, VectorCache, has_cache
from bertfeat.ragged import run_of, starts_of
from bertfeat.records import BoolArray, IntArray, LevelSchema, LevelTable
from bertfeat.text.alignment import Units

# An array, and the start of each piece in it.
Sliced = tuple[npt.NDArray[Any], IntArray]

_KEY_BYTES = 16


class Pieces:
    """The documents of a shard in pieces that share no window: usually one document, with document context several.

    Args:
        text: The documents, with at least the windows that their rows are pooled from.
        schemas: The vectors of each level.
        dtype: The stored type of the vectors.
        digest: A digest of all that decides vectors, but for the documents.

    Attributes:
        documents, windows: Where the documents and the windows of each piece start, int64 (n_pieces + 1,).
        rows: The same of the rows, by level.
        keys: The key of each piece.
        n_bytes: The size of each piece's value: the rows of its levels, column after column.
    """

    def __init__(self, text: ShardText, schemas: Mapping[Level, LevelSchema], dtype: StoreDtype, digest: str) -> None:
        windows = text.windows
        # Windows are in the order of their documents. A document without one is of no piece, or of the one before.
        owners, firsts = np.unique(windows.spans.document, return_index=True)
        self._schemas = schemas
        self.documents = np.append(owners, len(text.documents))
        self.windows = np.append(firsts, len(windows))
        self.rows = {level: self._row_starts(level, text) for level in schemas}
        columns: list[Sliced] = [(windows.lengths, self.windows)]
        tokens = windows.starts[self.windows]
        columns += [(windows.input_ids, tokens), (windows.type_ids, tokens)]
        for level, units in text.units.items():
            for unit in units:
                columns += self._positions(unit, self.rows[level])
        self.keys = _keys(columns, list(self.rows.values()), digest)
        widths = {level: dtype.width * sum(f.dim for f in schema.features) for level, schema in schemas.items()}
        n_bytes = np.sum([widths[level] * np.diff(rows) for level, rows in self.rows.items()], axis=0)
        self.n_bytes: list[int] = n_bytes.tolist()

    def __len__(self) -> int:
        return len(self.keys)

    def _row_starts(self, level: Level, text: ShardText) -> IntArray:
        if level is Level.TOKEN:
            kept = starts_of(text.windows.kept.astype(np.int64))
            starts: IntArray = kept[text.windows.starts[self.windows]]
            return starts
        if level is Level.WORD:
            assert text.words is not None
            return np.searchsorted(text.words.document, self.documents)
        return self.documents

    def _positions(self, units: Units, rows: IntArray) -> list[Sliced]:
        """Return what the rows of a level are pooled from, as arrays with the start of each piece in them."""
        n_segments, n_positions = np.diff(units.window_starts), np.diff(units.starts)
        segments = units.window_starts[self.windows]
        positions = units.starts[segments]
        piece = run_of(np.diff(segments))
        # Otherwise a key would not say all that decides a row.
        if not ((units.row >= rows[:-1][piece]) & (units.row < rows[1:][piece])).all():
            raise AssertionError("a row is pooled from windows of two pieces")
        weights = units.weights
        return [
            (n_segments, self.windows),
            (units.row - rows[:-1][piece], segments),
            (n_positions, segments),
            (units.positions, positions),
            *([] if weights is None else [(weights, positions)]),
        ]

    def values(self, tables: Mapping[Level, LevelTable], chosen: Sequence[int]) -> Iterator[tuple[bytes, Value]]:
        """Yield the keys and the values of some pieces, from the tables of the shard."""
        arrays = self._arrays(tables)
        for number in chosen:
            columns = [array[rows[number] : rows[number + 1]].reshape(-1).view(np.uint8).data for array, rows in arrays]
            # A part of the only column is not copied.
            yield self.keys[number], columns[0] if len(columns) == 1 else b"".join(columns)

    def place(self, tables: Mapping[Level, LevelTable], values: Iterable[tuple[int, bytes]]) -> None:
        """Put the values of pieces, each with its number, into the tables of the shard."""
        arrays = self._arrays(tables)
        for number, value in values:
            at = 0
            for array, rows in arrays:
                place = array[rows[number] : rows[number + 1]]
                place[...] = np.frombuffer(value, place.dtype, place.size, at).reshape(place.shape)
                at += place.nbytes

    def _arrays(self, tables: Mapping[Level, LevelTable]) -> list[tuple[npt.NDArray[Any], list[int]]]:
        """Return the vectors of each column, with the row where each piece starts."""
        return [
            (tables[level].vectors[feature.name], rows.tolist())
            for level, rows in self.rows.items()
            for feature in self._schemas[level].features
        ]


def _keys(columns: Sequence[Sliced], rows: Sequence[IntArray], digest: str) -> list[bytes]:
    """Return the digest of each piece's part of some arrays."""
    start = hashlib.sha256(digest.encode())
    # With the lengths, no two lists of arrays give the same bytes.
    lengths = np.stack([np.diff(starts) for starts in (*(starts for _, starts in columns), *rows)], axis=1)
    parts = [(array.tobytes(), (starts * array.itemsize).tolist()) for array, starts in columns]
    keys = []
    for number in range(len(lengths)):
        found = start.copy()
        found.update(lengths[number].tobytes())
        for data, starts in parts:
            found.update(data[starts[number] : starts[number + 1]])
        keys.append(found.digest()[:_KEY_BYTES])
    return keys


class MadeRoom(Exception):
    """Vectors that a shard needs have made room for others, in a cache that is small for the runs that use it."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """The pieces of a shard, and which of them are in a cache: bool (n_pieces,)."""

    cache: DocumentCache
    pieces: Pieces
    is_known: BoolArray

    @property
    def missing(self) -> BoolArray:
        """The windows that must be encoded: bool (n_windows,)."""
        return np.repeat(~self.is_known, np.diff(self.pieces.windows))

    @property
    def n_documents(self) -> int:
        """The number of documents that are known."""
        return int(np.diff(self.pieces.documents)[self.is_known].sum())

    def read(self, tables: Mapping[Level, LevelTable]) -> None:
        """Put the vectors of the documents that are known into the tables.

        Raises:
            MadeRoom: Some are no longer there.
            UserError: The cache is damaged.
            RunError: The system refused.
        """
        numbers: dict[bytes, list[int]] = {}
        for number in np.flatnonzero(self.is_known).tolist():
            numbers.setdefault(self.pieces.keys[number], []).append(number)
        n_bytes = {key: self.pieces.n_bytes[same[0]] for key, same in numbers.items()}
        is_read = np.zeros_like(self.is_known)

        def found(cache: VectorCache) -> Iterator[tuple[int, bytes]]:
            for key, value in cache.get(n_bytes, cache.before(self.cache.token)):
                for number in numbers[key]:
                    is_read[number] = True
                    yield number, value

        with self.cache.opened() as cache:
            self.pieces.place(tables, found(cache))
        if not np.array_equal(is_read, self.is_known):
            raise MadeRoom

    def keep(self, tables: Mapping[Level, LevelTable]) -> None:
        """Add the vectors of the documents that were encoded to the cache.

        Raises:
            UserError: The cache is damaged.
            RunError: The system refused.
        """
        with self.cache.opened() as cache:
            cache.put(self.pieces.values(tables, np.flatnonzero(~self.is_known).tolist()))


@dataclass(frozen=True, slots=True)
class DocumentCache:
    """The cache of a run.

    Attributes:
        folder: The folder of the cache.
        max_bytes: Its largest size.
        digest: A digest of all that decides vectors, but for the documents.
        dtype: The stored type of the vectors.
        token: The token of the run, which sees what was there when it began; empty for an estimate, which sees all.
    """

    folder: str
    max_bytes: int
    digest: str
    dtype: StoreDtype
    token: str = ""

    def opened(self) -> contextlib.closing[VectorCache]:
        """Open the folder; to be closed in the same thread."""
        return contextlib.closing(VectorCache(self.folder, self.max_bytes))

    def look_up(self, text: ShardText, schemas: Mapping[Level, LevelSchema]) -> Recalled:
        """Find which documents are known.

        Raises:
            UserError: The cache is damaged.
            RunError: The system refused.
        """
        pieces = Pieces(text, schemas, self.dtype, self.digest)
        found: set[bytes] = set()
        if self.token:
            with self.opened() as cache:
                found = cache.known(pieces.keys, cache.before(self.token), use=True)
        elif has_cache(self.folder):
            # An estimate makes no cache and changes none.
            with self.opened() as cache:
                found = cache.known(pieces.keys)
        return Recalled(self, pieces, np.array([key in found for key in pieces.keys], dtype=np.bool_))
