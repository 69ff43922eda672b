"""HDF5 with a dataset for each document, as structural-probes and NeuroX read it."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bertfeat.choices import Level
from bertfeat.durable.files import sync_fd
from bertfeat.errors import UserError
from bertfeat.exports.outputs import Output
from bertfeat.exports.selectedrows import Rows
from bertfeat.levels import DOC_ID

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_INDEX = "sentence_to_index"
_PIECES = "n_pieces"


class _NewFile(io.FileIO):
    """A new file for h5py, which makes no clean end after a failed write: `check` raises the error instead."""

    def __init__(self, path: Path) -> None:
        import h5py

        # After a kill the name may still belong to the file that was published.
        path.unlink(missing_ok=True)
        super().__init__(path, "w+b")
        self.error: OSError | None = None
        self.hdf5 = h5py.File(self, "w")

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all bytes, or keep the error."""
        rest = view = memoryview(data).cast("B")
        try:
            while rest and self.error is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = error
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the size, or keep the error."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = error
        return size or 0

    def check(self) -> None:
        """Raise the error of an earlier write."""
        if self.error is not None:
            raise self.error

    def complete(self) -> None:
        """Close the file when all of it is on the disk."""
        self.hdf5.close()
        self.check()
        sync_fd(self.fileno())
        self.close()


class StructuralProbesHdf5(Output):
    """Datasets `0`, `1`, ..., float32 (layers, words, values); the attribute `doc_id` names the document.

    A kill may leave an HDF5 file that cannot be opened. So each shard goes to a file of its own; the last step copies
    their datasets into one.
    """

    name = "structural-probes-hdf5"
    levels = (Level.WORD, Level.TOKEN)
    endings: ClassVar[tuple[str, ...]] = (".hdf5", ".h5")
    has_layers = True
    library = "h5py"
    has_index = False

    _new: _NewFile | None = None

    def open(self, saved: Mapping[str, int] | None) -> None:
        """Begin, or continue with the next piece."""
        self._n_pieces = saved[_PIECES] if saved else 0
        if any(not self._piece(number).is_file() for number in range(self._n_pieces)):
            raise FileNotFoundError(str(self.folder))
        self._sentences: list[str] = []

    def _piece(self, number: int) -> Path:
        return self.folder / f"piece-{number:05d}.hdf5"

    def write(self, rows: Rows) -> None:
        """Write a dataset for each document."""
        new = self._new = self._new or _NewFile(self._piece(self._n_pieces))
        words = self.chosen.words(rows) if self.has_index else []
        for number, doc_id, own in rows.documents():
            if "\0" in str(doc_id):
                raise UserError(
                    f"doc_id {doc_id!r:.60} has a NUL, which a text of HDF5 must not; use other ids, or npy"
                )
            # Both programs compute in float32.
            values = rows.vectors[:, own].astype("float32")
            new.hdf5.create_dataset(str(number), data=values).attrs[DOC_ID.name] = doc_id
            new.check()
            if self.has_index:
                self._sentences.append(" ".join(words[own]))

    def save(self) -> dict[str, int]:
        """Complete the piece."""
        if self._new is not None:
            if self.has_index:
                _write_text(self._new, json.dumps(self._sentences))
            self._new.complete()
            self._new, self._sentences, self._n_pieces = None, [], self._n_pieces + 1
        return {_PIECES: self._n_pieces}

    def finish(self) -> None:
        """Copy the datasets of all pieces into one file, and write the index of the sentences."""
        import h5py

        index: dict[str, str] = {}
        times: dict[str, int] = {}
        new = self._new = _NewFile(self.result)
        for piece in map(self._piece, range(self._n_pieces)):
            with h5py.File(piece, "r") as source:
                numbers = sorted(int(name) for name in source if name != _INDEX)
                for number in numbers:
                    source.copy(str(number), new.hdf5)
                    new.check()
                sentences = json.loads(source[_INDEX][0]) if self.has_index else []
            for sentence, number in zip(sentences, numbers, strict=False):
                index[_unique(sentence, index, times)] = str(number)
        if self.has_index:
            _write_text(new, json.dumps(index))
        new.complete()

    def close(self) -> None:
        """Close what was not completed."""
        if self._new is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._new.hdf5.close()
            self._new.close()


class NeuroxHdf5(StructuralProbesHdf5):
    """The same with `sentence_to_index`: a JSON object that maps each sentence to its dataset."""

    name = "neurox-hdf5"
    # NeuroX goes by this ending.
    endings = (".hdf5",)
    has_index = True


def _write_text(new: _NewFile, text: str) -> None:
    import h5py

    new.hdf5.create_dataset(_INDEX, (1,), dtype=h5py.string_dtype())[0] = text


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
