"""Runs of vector values inside a part: found once when the part is written, and checked by every reader.

Vectors are stored uncompressed and PLAIN, with one page for each column chunk, so the values of a chunk are its last
`rows x width` bytes. https://parquet.apache.org/docs/file-format/data-pages/
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from bertfeat.durable import files
from bertfeat.records import FeatureColumn, LevelTable, PartInfo, VectorRuns
from bertfeat.store.plain import read_exactly
from bertfeat.store.vectorlayout import VectorLayout

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_MAGIC_BYTES = 4


def find_runs(
    sink: files.Sink, table: LevelTable, features: tuple[FeatureColumn, ...], vectors: VectorLayout
) -> VectorRuns | None:
    """Find the values of a part, all of it written, and compare all of them with the arrays of its table by digest.

    Returns:
        The runs; None if a vector is null, the part has no rows, or its values are stored in another way.

    Raises:
        OSError: The part cannot be read back, or a write failed and its writer continued.
    """
    if sink.error is not None:
        raise sink.error
    has_nulls = table.valid is not None and not table.valid.all()
    if has_nulls or not table.n_rows or sys.byteorder != "little":
        return None
    runs = runs_in(_metadata(sink), features, vectors)
    return runs if _digest_with(sink, runs, table.vectors) == sink.digest else None


def runs_in(metadata: pq.FileMetaData, features: tuple[FeatureColumn, ...], vectors: VectorLayout) -> VectorRuns:
    """Return where the values of vector columns, which come last, must be if each column chunk is one page.

    `metadata` is the footer of a part with a known digest: pyarrow ends the process on some damaged footers.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    offsets = {}
    for leaf, feature in enumerate(features, start=metadata.num_columns - len(features)):
        chunks = [(group.num_rows, group.column(leaf)) for group in groups]
        offsets[feature.name] = tuple(
            chunk.data_page_offset + chunk.total_compressed_size - n_rows * feature.dim * vectors.numpy.itemsize
            for n_rows, chunk in chunks
        )
    return VectorRuns(tuple(group.num_rows for group in groups), offsets)


def check_runs(part: PartInfo, features: tuple[FeatureColumn, ...], vectors: VectorLayout) -> None:
    """Check the runs of a part, if it has any: all rows of all columns, inside the file, without overlap.

    Raises:
        ValueError: The runs are not so.
    """
    runs = part.runs
    if runs is None:
        return
    widths = {feature.name: feature.dim * vectors.numpy.itemsize for feature in features}
    if sum(runs.rows) != part.n_rows or not all(runs.rows):
        raise ValueError(f"{part.path}: runs of {sum(runs.rows)} rows, not {part.n_rows}")
    if runs.offsets.keys() != widths.keys() or any(len(found) != len(runs.rows) for found in runs.offsets.values()):
        raise ValueError(f"{part.path}: its runs are not those of its vector columns")
    spans = sorted(
        (offset, offset + n_rows * widths[name])
        for name, offsets in runs.offsets.items()
        for offset, n_rows in zip(offsets, runs.rows, strict=True)
    )
    places = [(0, _MAGIC_BYTES), *spans, (part.n_bytes - 2 * _MAGIC_BYTES, part.n_bytes)]
    if any(stop > start for (_, stop), (start, _) in pairwise(places)):
        raise ValueError(f"{part.path}: its runs overlap or lie outside the file")


def _metadata(sink: files.Sink) -> pq.FileMetaData:
    """Read the footer of a part that is still open."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    length = int.from_bytes(_read(sink, sink.n_bytes - 8, 4).tobytes(), "little")
    return pq.read_metadata(pa.BufferReader(pa.py_buffer(_read(sink, sink.n_bytes - length - 8, length + 8))))


def _digest_with(sink: files.Sink, runs: VectorRuns, arrays: Mapping[str, npt.NDArray[Any]]) -> str | None:
    """Return the digest that a file would have if its runs were the bytes of arrays; None if they overlap."""
    starts = [0, *accumulate(runs.rows)]
    spans = sorted(
        (offset, name, first, stop)
        for name, offsets in runs.offsets.items()
        for offset, first, stop in zip(offsets, starts, starts[1:], strict=False)
    )
    content = xxhash.xxh3_128()
    place = 0
    for offset, name, first, stop in spans:
        if offset < place:
            return None
        content.update(_read(sink, place, offset - place).data)
        values = np.ascontiguousarray(arrays[name][first:stop])
        content.update(values.reshape(-1).view(np.uint8).data)
        place = offset + values.nbytes
    content.update(_read(sink, place, sink.n_bytes - place).data)
    return content.hexdigest()


def _read(sink: files.Sink, offset: int, n_bytes: int) -> npt.NDArray[np.uint8]:
    out = np.empty(n_bytes, np.uint8)
    read_exactly(sink.descriptor, offset, out)
    return out
