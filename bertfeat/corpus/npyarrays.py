"""Reader of NumPy's .npy: rows of vectors, mapped into memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.config import ExtractConfig
from bertfeat.corpus.rowsources import Words
from bertfeat.corpus.vectorfiles import Block, Stored, Unit, VectorReader
from bertfeat.records import FileSlice, InputFile

_CHECKED_BYTES = 16 << 20


class NpyReader(VectorReader):
    """Reads .npy: (n_rows, dim), or (n_rows, n_layers, dim)."""

    format = "npy"
    endings = (".npy",)

    def __init__(self, file: InputFile, config: ExtractConfig, vector_columns: Sequence[str] = ()) -> None:
        super().__init__(file, config, vector_columns)
        found = self._opened()
        if found.ndim not in (2, 3):
            raise self.wrong(f"has shape {found.shape}, not (rows, values) or (rows, layers, values)")
        self.check_float(found.dtype, "its values")
        if not len(found):
            raise self.wrong("has no rows; there is nothing to import")
        self._n_rows, self._row_bytes = len(found), found[0].nbytes
        self.features = (
            self.single_feature(found.shape[1])
            if found.ndim == 2
            else self.layer_features(range(found.shape[1]), found.shape[2])
        )

    def _opened(self) -> npt.NDArray[Any]:
        """Map the file; pages that were read leave the memory with the last reference to the array."""
        try:
            found = np.load(self.file.path, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # a damaged header is Python that NumPy parses, with any of Python's errors
            reason = f"cannot be read as .npy ({' '.join(str(error).split())[:120]}); write it with numpy.save"
            raise self.wrong(reason) from error
        if not isinstance(found, np.ndarray):
            found.close()
            raise self.wrong("is an archive of arrays (.npz); save one array with numpy.save")
        return found

    def scan(self) -> Iterator[Unit]:
        """Check all values, and yield some rows at a time."""
        step = max(1, _CHECKED_BYTES // self._row_bytes)
        for start in range(0, self._n_rows, step):
            stop = min(start + step, self._n_rows)
            self._rows(start, stop)
            yield Unit(stop - start)

    def read(self, piece: FileSlice, given: Sequence[Words | None]) -> Block:  # noqa: ARG002
        """Return some rows."""
        return Block(*self._rows(piece.offset, piece.offset + piece.n_rows))

    def _rows(self, start: int, stop: int) -> Stored:
        rows = self._opened()[start:stop]
        arrays = [rows] if rows.ndim == 2 else [rows[:, layer] for layer in range(rows.shape[1])]
        values: Mapping[str, npt.NDArray[Any]] = {f.name: a for f, a in zip(self.features, arrays, strict=True)}
        return self.stored(values, lambda row: (f"row {start + row}, counted from 0: ", None))

    def close(self) -> None:
        """Close the file, which is open only while it is read."""
