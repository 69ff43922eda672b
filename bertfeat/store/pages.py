"""The pages of a column of vectors that stands in a file as it is: where the values of which rows lie.

Uncompressed, in PLAIN encoding and without nulls, the values of a page are the bytes of an array. What their place
depends on is checked against the footer and the levels; a column that is anything else, or damaged, is pyarrow's to
read or to refuse. https://parquet.apache.org/docs/file-format/data-pages/
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.config import VectorEncoding
from bertfeat.records import IntArray
from bertfeat.store.footer import Group, read_footer
from bertfeat.store.pagelevels import are_all, are_rows
from bertfeat.store.schema import VectorLayout
from bertfeat.store.thrift import CompactReader, Struct, ThriftError

_DATA_PAGE, _DATA_PAGE_V2 = 0, 3
_PLAIN, _RLE = 0, 3
_UNCOMPRESSED = 0
_FLOAT, _FIXED_LEN_BYTE_ARRAY = 4, 7
# Holds a header and the levels of a page of a megabyte; a header with long statistics is read again.
_WINDOW_BYTES = 16 << 10
_MAX_HEADER_BYTES = 1 << 20


class NotPlain(Exception):
    """A column is not laid out as it would have to be to be copied as it is."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Where the values of a column of a row group lie in its file.

    Attributes:
        row_bytes: Bytes of a vector.
        starts: int64 (n_runs,), ascending from 0: the first byte of each run, counted over the values alone.
        offsets: int64 (n_runs,): where in the file this byte stands.
        n_bytes: Bytes of all values.
    """

    row_bytes: int
    starts: IntArray
    offsets: IntArray
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """A column of a row group, as the footer of its file has it.

    Attributes:
        start: Where its first page begins in the file.
        n_bytes: Bytes of its pages, headers included.
        n_values: Its values, each with its levels: rows, or elements of lists.
        value_bytes: Bytes of a value.
        dim: Values of a row.
        max_repetition: The highest repetition level: 1 of lists, else 0.
        max_definition: The highest definition level, which values have that are not null.
    """

    start: int
    n_bytes: int
    n_values: int
    value_bytes: int
    dim: int
    max_repetition: int
    max_definition: int


def find_chunks(fd: int, file: pq.ParquetFile, name: str, vectors: VectorLayout) -> list[ColumnChunk | None]:
    """Find a vector column in the footer of a part.

    Args:
        fd: The part, open for reading.
        file: The same part.
        name: The column.
        vectors: How the vectors are laid.

    Returns:
        Its place in each row group; None where it is compressed or encoded, holds nulls, or is of another type.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        groups = read_footer(fd)
        field = file.schema_arrow.field(name)
        dim, value_bytes = _width(field.type, vectors)
    except (ThriftError, KeyError, NotPlain):
        return [None] * file.num_row_groups
    chunks = [chunk for group in groups for chunk in group.chunks]
    # Each begins where the one before it has ended: none can stand in the place of another.
    is_ordered = all(a.start >= 0 and 0 <= a.n_bytes <= b.start - a.start for a, b in pairwise(chunks))
    if not is_ordered or len(groups) != file.num_row_groups or sys.byteorder != "little":
        return [None] * file.num_row_groups
    return [_plain_chunk(file, group, name, dim, value_bytes, vectors) for group in groups]


def _plain_chunk(
    file: pq.ParquetFile, group: Group, name: str, dim: int, value_bytes: int, vectors: VectorLayout
) -> ColumnChunk | None:
    leaves = [n for n, chunk in enumerate(group.chunks) if chunk.path[:1] == (name,)]
    if len(leaves) != 1 or len(group.chunks) != len(file.schema):
        return None
    chunk, leaf = group.chunks[leaves[0]], file.schema.column(leaves[0])
    is_list = vectors.encoding is VectorEncoding.ARRAY
    kind = (_FLOAT, 0) if is_list and vectors.numpy == np.float32 else (_FIXED_LEN_BYTE_ARRAY, value_bytes)
    is_plain = (
        not chunk.is_elsewhere
        and chunk.codec == _UNCOMPRESSED
        and chunk.encodings <= {_PLAIN, _RLE}
        and chunk.start == chunk.data_start
        and (chunk.kind, max(0, leaf.length)) == kind
        and chunk.n_values == group.n_rows * dim
        and leaf.path.partition(".")[0] == name
        and leaf.max_repetition_level == is_list
        and leaf.max_definition_level < 8
    )
    if not is_plain:
        return None
    return ColumnChunk(
        chunk.start,
        chunk.n_bytes,
        chunk.n_values,
        value_bytes,
        dim,
        leaf.max_repetition_level,
        leaf.max_definition_level,
    )


def _width(kind: pa.DataType, vectors: VectorLayout) -> tuple[int, int]:
    """Return the values of a vector and the bytes of a value."""
    if vectors.encoding is VectorEncoding.BINARY and pa.types.is_fixed_size_binary(kind):
        return 1, kind.byte_width
    element = pa.from_numpy_dtype(vectors.numpy)
    if vectors.encoding is VectorEncoding.ARRAY and pa.types.is_fixed_size_list(kind) and kind.value_type == element:
        return kind.list_size, vectors.numpy.itemsize
    raise NotPlain


def find_runs(fd: int, chunk: ColumnChunk) -> Runs:
    """Find the values of a column of a row group by the headers of its pages.

    Args:
        fd: The part, open for reading.
        chunk: The column.

    Raises:
        NotPlain: A page is not plain, or does not fit the footer.
        OSError: The file cannot be read.
    """
    pages = _Pages(fd, chunk)
    n_values, offset, end = 0, chunk.start, chunk.start + chunk.n_bytes
    counts, offsets = [], []
    while n_values < chunk.n_values:
        page = pages.at(offset, n_values)
        counts.append(page.n_values)
        offsets.append(offset + page.n_prefix)
        n_values += page.n_values
        offset += page.n_prefix + page.n_values * chunk.value_bytes
    if n_values != chunk.n_values or offset != end or end > os.fstat(fd).st_size:
        raise NotPlain
    starts = [0, *accumulate(counts)][: len(counts)]
    return Runs(
        chunk.dim * chunk.value_bytes,
        np.array(starts, np.int64) * chunk.value_bytes,
        np.array(offsets, np.int64),
        n_values * chunk.value_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Page:
    """A data page: its values, and the bytes of header and levels before them."""

    n_values: int
    n_prefix: int


class _Pages:
    """The pages of a column.

    Pages of one size begin with the same bytes, header and levels: what was found in one is known of the next.
    """

    def __init__(self, fd: int, chunk: ColumnChunk) -> None:
        self._fd = fd
        self._chunk = chunk
        self._last: tuple[bytes, int, _Page] | None = None

    def at(self, offset: int, first: int) -> _Page:
        """Return the page at an offset of the file, whose first value is number `first` of the column."""
        phase = first % self._chunk.dim
        window = os.pread(self._fd, _WINDOW_BYTES, offset)
        if self._last is not None:
            prefix, place, page = self._last
            n_left = self._chunk.n_values - first
            if place == phase and page.n_values <= n_left and window.startswith(prefix):
                return page
        header, n_header = self._header(window, offset)
        if n_header > len(window):
            window = os.pread(self._fd, n_header + _WINDOW_BYTES, offset)
        page = self._checked(header, n_header, window, offset, first)
        if page.n_prefix <= len(window):
            self._last = (window[: page.n_prefix], phase, page)
        return page

    def _header(self, window: bytes, offset: int) -> tuple[Struct, int]:
        for data in (window, None):
            reader = CompactReader(os.pread(self._fd, _MAX_HEADER_BYTES, offset) if data is None else data)
            try:
                return reader.struct(), reader.position
            except ThriftError:
                pass
        raise NotPlain

    def _checked(self, header: Struct, n_header: int, window: bytes, offset: int, first: int) -> _Page:
        chunk, kind, n_bytes = self._chunk, header.ints.get(1), header.ints.get(3, -1)
        if kind not in (_DATA_PAGE, _DATA_PAGE_V2) or header.ints.get(2) != n_bytes:
            raise NotPlain
        body = header.structs.get(5 if kind == _DATA_PAGE else 8, Struct()).ints
        n_values = body.get(1, -1)
        if not 0 < n_values <= chunk.n_values - first:
            raise NotPlain
        n_levels = n_bytes - n_values * chunk.value_bytes
        # Levels take some bits each, never more than a value of eight bytes and a count before each.
        if not 0 <= n_levels <= 8 * n_values + 64:
            raise NotPlain
        if n_header + n_levels > len(window):
            window = os.pread(self._fd, n_header + n_levels, offset)
        levels = window[n_header : n_header + n_levels]
        repetition, definition = self._split_v1(body, levels) if kind == _DATA_PAGE else self._split_v2(body, levels)
        if chunk.max_repetition and not are_rows(repetition, n_values, first, chunk.dim):
            raise NotPlain
        if chunk.max_definition and not are_all(definition, n_values, chunk.max_definition):
            raise NotPlain
        return _Page(n_values, n_header + n_levels)

    def _split_v1(self, body: dict[int, int], levels: bytes) -> tuple[bytes, bytes]:
        """Split the levels of a page of version 1, each with its length before it."""
        if (body.get(2), body.get(3), body.get(4)) != (_PLAIN, _RLE, _RLE):
            raise NotPlain
        parts = []
        for highest in (self._chunk.max_repetition, self._chunk.max_definition):
            length = int.from_bytes(levels[:4], "little") if highest else 0
            start = 4 if highest else 0
            parts.append(levels[start : start + length])
            levels = levels[start + length :]
            if len(parts[-1]) != length:
                raise NotPlain
        if levels:
            raise NotPlain
        return parts[0], parts[1]

    def _split_v2(self, body: dict[int, int], levels: bytes) -> tuple[bytes, bytes]:
        """Split the levels of a page of version 2, whose lengths stand in its header."""
        n_definition, n_repetition = body.get(5, -1), body.get(6, -1)
        # A page of this version begins with a row: its rows are whole.
        is_plain = body.get(4) == _PLAIN and body.get(2) == 0 and body.get(3, -1) * self._chunk.dim == body[1]
        if not is_plain or min(n_definition, n_repetition) < 0 or n_repetition + n_definition != len(levels):
            raise NotPlain
        if (n_repetition and not self._chunk.max_repetition) or (n_definition and not self._chunk.max_definition):
            raise NotPlain
        return levels[:n_repetition], levels[n_repetition:]
