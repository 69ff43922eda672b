"""HDF5 with a dataset for each document, as structural-probes and NeuroX read it."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bertfeat.choices import Level
from bertfeat.durable.files import sync_fd
from bertfeat.errors import UserError
from bertfeat.exports.outputs import Output
from bertfeat.exports.selectedrows import Rows
from bertfeat.levels import DOC_ID

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_INDEX = "sentence_to_index"


class StructuralProbesHdf5(Output):
    """Datasets `0`, `1`, ..., float32 (layers, words, values); the attribute `doc_id` names the document.

    A kill may leave an HDF5 file that cannot be opened. So values and documents go to two plain files, of which the
    last step makes the HDF5 file.
    """

    name = "structural-probes-hdf5"
    levels = (Level.WORD, Level.TOKEN)
    endings: ClassVar[tuple[str, ...]] = (".hdf5", ".h5")
    has_layers = True
    library = "h5py"
    has_index = False

    def paths(self) -> list[Path]:
        """Return the files of values and documents."""
        return [self.folder / "values", self.folder / "documents.jsonl"]

    def encoded(self, rows: Rows) -> list[bytes]:
        """Return the values (layers, words, values) of each document, and a line with what its dataset needs."""
        words = self.chosen.words(rows) if self.has_index else []
        values, lines = [], []
        for number, doc_id, own in rows.documents():
            if "\0" in str(doc_id):
                raise UserError(
                    f"doc_id {doc_id!r:.60} has a NUL, which a text of HDF5 must not; use other ids, or npy"
                )
            found = rows.vectors[:, own]
            values.append(found.tobytes())
            lines.append(json.dumps([number, doc_id, found.shape, found.dtype.str, " ".join(words[own])]) + "\n")
        return [b"".join(values), "".join(lines).encode()]

    def finish(self) -> None:
        """Write the HDF5 file."""
        import h5py

        index: dict[str, str] = {}
        times: dict[str, int] = {}
        # After a kill the name may still belong to the file that was published.
        self.result.unlink(missing_ok=True)
        values_path, documents_path = self.paths()
        with values_path.open("rb") as values, documents_path.open("rb") as documents, _Kept(self.result, "w+b") as new:
            with h5py.File(new, "w") as target:
                for number, doc_id, shape, dtype, sentence in map(json.loads, documents):
                    count = math.prod(shape)
                    found = np.frombuffer(values.read(count * np.dtype(dtype).itemsize), dtype).reshape(shape)
                    # Both programs compute in float32.
                    data = found.astype(np.float32, copy=False)
                    target.create_dataset(str(number), data=data).attrs[DOC_ID.name] = doc_id
                    new.check()
                    if self.has_index:
                        index[_unique(sentence, index, times)] = str(number)
                if self.has_index:
                    target.create_dataset(_INDEX, (1,), dtype=h5py.string_dtype())[0] = json.dumps(index)
            new.check()
            sync_fd(new.fileno())


class NeuroxHdf5(StructuralProbesHdf5):
    """The same with `sentence_to_index`: a JSON object that maps each sentence to its dataset."""

    name = "neurox-hdf5"
    # NeuroX goes by this ending.
    endings = (".hdf5",)
    has_index = True


class _Kept(io.FileIO):
    """A file that keeps the error of a write until `check`: h5py cannot close its file after a failed write."""

    error: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all bytes, or keep the error."""
        rest = view = memoryview(data).cast("B")
        with self._keeping():
            while rest:
                rest = rest[super().write(rest) :]
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the size, or keep the error."""
        with self._keeping():
            super().truncate(size)
        return size or 0

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = error

    def check(self) -> None:
        """Raise the error of an earlier write."""
        if self.error is not None:
            raise self.error


def _unique(sentence: str, known: Mapping[str, str], times: dict[str, int]) -> str:
    """Return a sentence, with a number if it is known already, as NeuroX' own writer does.

    `times` keeps the last number of each sentence, so that the next one is found at once.

    Examples:
        >>> _unique("Yes .", {"Yes .": "0", "Yes . (Occurrence 2)": "3"}, {})
        'Yes . (Occurrence 3)'
    """
    found = sentence
    while found in known:
        times[sentence] = times.get(sentence, 1) + 1
        found = f"{sentence} (Occurrence {times[sentence]})"
    return found
