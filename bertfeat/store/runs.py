"""Runs of vector values inside a part: found once when the part is written, and checked by every reader.

Vectors are stored uncompressed and PLAIN, with one page for each column chunk, so the values of a chunk are its last
`rows x width` bytes. https://parquet.apache.org/docs/file-format/data-pages/
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from bertfeat.durable import files
from bertfeat.records import FeatureColumn, LevelTable, VectorRuns
from bertfeat.store.vectorlayout import VectorLayout

if TYPE_CHECKING:
    import pyarrow.parquet as pq


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
    import pyarrow.parquet as pq

    with open(sink.descriptor, "rb", closefd=False) as file:
        runs = runs_in(pq.read_metadata(file), features, vectors)
        return runs if _digest_with(file, sink.n_bytes, runs, table.vectors) == sink.digest else None


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


def _digest_with(file: BinaryIO, n_bytes: int, runs: VectorRuns, arrays: Mapping[str, npt.NDArray[Any]]) -> str | None:
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
        file.seek(place)
        content.update(file.read(offset - place))
        values = np.ascontiguousarray(arrays[name][first:stop])
        content.update(values.reshape(-1).view(np.uint8).data)
        place = offset + values.nbytes
    file.seek(place)
    content.update(file.read(n_bytes - place))
    return content.hexdigest()
