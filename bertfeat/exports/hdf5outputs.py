"""HDF5 with a dataset for each document, as structural-probes and NeuroX read it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from bertfeat.choices import Level
from bertfeat.durable.files import sync_file
from bertfeat.errors import UserError
from bertfeat.exports.outputs import Output, documents
from bertfeat.exports.selectedrows import Rows
from bertfeat.levels import DOC_ID, LEVELS

_INDEX = "sentence_to_index"
_PIECES = "n_pieces"


class StructuralProbesHdf5(Output):
    """Datasets `0`, `1`, ..., float32 (layers, words, values); the attribute `doc_id` names the document.

    A kill may leave an HDF5 file that cannot be opened. So each shard goes to a file of its own; the last step copies
    their datasets into one.
    """

    name = "structural-probes-hdf5"
    levels = (Level.WORD, Level.TOKEN)
    endings: ClassVar[tuple[str, ...]] = (".hdf5", ".h5")
    has_layers = True
    has_index = False

    _file: Any = None

    @classmethod
    def check(cls) -> None:
        """Refuse to run without h5py."""
        if find_spec("h5py") is None:
            raise UserError(f"{cls.name} needs h5py: pip install 'bertfeat[hdf5]'")

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
        import h5py

        if self._file is None:
            self._file = h5py.File(self._piece(self._n_pieces), "w")
        words = rows.columns[LEVELS[self.job.chosen.level].surface].to_list() if self.has_index else []
        for number, (doc_id, first, last) in enumerate(documents(rows), rows.first_document):
            # Both programs compute in float32.
            values = rows.vectors[:, first:last].astype("float32")
            self._file.create_dataset(str(number), data=values).attrs[DOC_ID.name] = doc_id
            if self.has_index:
                self._sentences.append(" ".join(words[first:last]))

    def save(self) -> dict[str, int]:
        """Close and sync the piece."""
        if self._file is not None:
            if self.has_index:
                _write_text(self._file, json.dumps(self._sentences))
            self._file.close()
            sync_file(self._piece(self._n_pieces))
            self._file, self._sentences, self._n_pieces = None, [], self._n_pieces + 1
        return {_PIECES: self._n_pieces}

    def finish(self) -> None:
        """Copy the datasets of all pieces into one file, and write the index of the sentences."""
        import h5py

        index: dict[str, str] = {}
        with h5py.File(self.result, "w") as target:
            for piece in map(self._piece, range(self._n_pieces)):
                with h5py.File(piece, "r") as source:
                    numbers = sorted(int(name) for name in source if name != _INDEX)
                    for number in numbers:
                        source.copy(str(number), target)
                    if self.has_index:
                        for sentence, number in zip(json.loads(source[_INDEX][0]), numbers, strict=True):
                            index[_unique(sentence, index)] = str(number)
            if self.has_index:
                _write_text(target, json.dumps(index))
        sync_file(self.result)

    def close(self) -> None:
        """Close the piece."""
        if self._file is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._file.close()


class NeuroxHdf5(StructuralProbesHdf5):
    """The same with `sentence_to_index`: a JSON object that maps each sentence to its dataset."""

    name = "neurox-hdf5"
    # NeuroX goes by this ending.
    endings = (".hdf5",)
    has_index = True


def _write_text(file: Any, text: str) -> None:
    import h5py

    file.create_dataset(_INDEX, (1,), dtype=h5py.string_dtype())[0] = text


def _unique(sentence: str, known: Mapping[str, str]) -> str:
    """Return a sentence, with a number if it occurred before, as NeuroX' own writer does.

    Examples:
        >>> _unique("Yes .", {"Yes .": "0", "Yes . (Occurrence 2)": "3"})
        'Yes . (Occurrence 3)'
    """
    found, n_times = sentence, 1
    while found in known:
        n_times += 1
        found = f"{sentence} (Occurrence {n_times})"
    return found
