"""Files of an export: the base class of the formats, and the formats that are written from front to back."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl

from bertfeat.choices import Combine, Level
from bertfeat.durable.files import sync_fd
from bertfeat.errors import UserError
from bertfeat.exports.selectedrows import Rows, Selection
from bertfeat.exports.wordtypes import joined_values, vector_lines
from bertfeat.levels import LEVELS

# Whatever a reader may take for the end of a line or of a column.
_BREAKS = re.compile(r"[\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


class Output(ABC):
    """A format of an export: its facts, and the writer of one export, whose result is the path `result`.

    Its files only grow: what was written after the last `save` is cut off.

    Attributes:
        name: Its name.
        levels: The levels that it holds.
        endings: The endings of its file; empty if it is a folder.
        files: The files of its folder; the first identifies it.
        has_layers: It holds several vectors for each row.
        needs_vectors: It can neither hold nor leave out a row without a vector.
        min_dim: The least values of a vector that its readers take.
        library: What it needs beyond the libraries that bertfeat needs.
    """

    name: ClassVar[str]
    levels: ClassVar[tuple[Level, ...]] = (Level.SENTENCE, Level.WORD, Level.TOKEN)
    endings: ClassVar[tuple[str, ...]] = ()
    files: ClassVar[tuple[str, ...]] = ()
    has_layers: ClassVar[bool] = False
    needs_vectors: ClassVar[bool] = False
    min_dim: ClassVar[int] = 1
    library: ClassVar[str] = ""

    def __init__(self, folder: Path, chosen: Selection) -> None:
        self.folder, self.chosen, self.result = folder, chosen, folder / "result"
        self._opened: list[io.BufferedRandom] = []

    def open(self, saved: Mapping[str, int] | None) -> None:
        """Begin, or cut the files to the sizes that `save` returned."""
        if self.files:
            self.result.mkdir(exist_ok=True)
        self._opened = [path.open("w+b" if saved is None else "r+b") for path in self.paths()]
        for place, (file, path) in enumerate(zip(self._opened, self.paths(), strict=True)):
            if saved is None:
                file.write(self.header(place))
            elif os.fstat(file.fileno()).st_nlink > 1 or file.seek(0, io.SEEK_END) < saved[path.name]:
                # A kill between publishing and cleaning up leaves two names of one file.
                raise ValueError(f"{path} is shorter than it was, or published")
            else:
                file.truncate(file.seek(saved[path.name]))

    def paths(self) -> list[Path]:
        """Return the files that grow."""
        return [self.result / name for name in self.files] or [self.result]

    def header(self, place: int) -> bytes:  # noqa: ARG002
        """Return how the file at a place begins."""
        return b""

    def write(self, rows: Rows) -> None:
        """Append whole documents to each file; see `encoded`."""
        for file, data in zip(self._opened, self.encoded(rows), strict=True):
            file.write(data)

    @abstractmethod
    def encoded(self, rows: Rows) -> Sequence[bytes | memoryview]:
        """Return what whole documents add to each file.

        Raises:
            UserError: The format cannot hold a row.
        """

    def save(self) -> dict[str, int]:
        """Wait until the files are on the disk, and return their sizes."""
        for file in self._opened:
            file.flush()
            sync_fd(file.fileno())
        return {path.name: file.tell() for path, file in zip(self.paths(), self._opened, strict=True)}

    def finish(self) -> None:  # noqa: B027
        """Complete the result, whose files are saved."""

    def close(self) -> None:
        """Close the files."""
        for file in self._opened:
            # Bytes that cannot be written any more are cut off by the next run.
            with contextlib.suppress(OSError):
                file.close()


class GoogleJson(Output):
    """Lines of google-research/bert's extract_features.py: the tokens of a document with their layers."""

    name = "google-jsonl"
    levels = (Level.TOKEN, Level.WORD)
    endings = (".jsonl", ".json")
    has_layers = True
    needs_vectors = True

    def encoded(self, rows: Rows) -> list[bytes]:
        """Return a line per document."""
        n_layers = self.chosen.store.manifest.model.n_layers
        heads = [
            f'{{"index": {feature.layers[0] - n_layers - 1 if feature.combine == Combine.NONE else 0}, "values": ['
            for feature in self.chosen.features
        ]
        values = [joined_values(layer, ", ") for layer in rows.vectors]
        pieces = []
        for row, token in enumerate(self.chosen.words(rows)):
            layers = ", ".join(f"{head}{layer[row]}]}}" for head, layer in zip(heads, values, strict=True))
            pieces.append(f'{{"token": {json.dumps(token)}, "layers": [{layers}]}}')
        return [
            "".join(
                f'{{"linex_index": {number}, "doc_id": {json.dumps(doc_id)}, "features": [{", ".join(pieces[own])}]}}\n'
                for number, doc_id, own in rows.documents()
            ).encode()
        ]


class Npy(Output):
    """NumPy's .npy with the columns of its rows beside it."""

    name = "npy"
    files = ("vectors.npy", "rows.jsonl")
    has_layers = True

    def header(self, place: int) -> bytes:
        """Return the header of the array, whose length is known."""
        head = io.BytesIO()
        if place == 0:
            (first, *others), chosen = self.chosen.features, self.chosen
            shape = (chosen.n_rows, *((len(others) + 1,) if others else ()), first.dim)
            kind = np.lib.format.dtype_to_descr(chosen.store.slice(chosen.level, first.name, 0, 0).dtype)
            np.lib.format.write_array_header_1_0(head, {"descr": kind, "fortran_order": False, "shape": shape})
        return head.getvalue()

    def encoded(self, rows: Rows) -> list[bytes | memoryview]:
        """Return values and columns of whole documents."""
        # polars does not write bytes as JSON: they become text as Python prints them.
        texts = [
            pl.Series(column.name, [None if value is None else str(value) for value in column.to_list()], pl.String)
            for column in rows.columns
            if "Binary" in str(column.dtype)
        ]
        lines = rows.columns.with_columns(texts).write_ndjson().encode()
        return [np.ascontiguousarray(rows.vectors.transpose(1, 0, 2)).data, lines]


class Word2vec(Output):
    """word2vec's text: a unique key and its values per line, the number of lines and of values before."""

    name = "word2vec"
    endings = (".txt", ".vec")

    def header(self, place: int) -> bytes:  # noqa: ARG002
        """Return the number of lines and of values."""
        return f"{self.chosen.n_vectors} {self.chosen.features[0].dim}\n".encode()

    def encoded(self, rows: Rows) -> list[bytes]:
        """Return a line per row with a vector."""
        entry, has_vector = LEVELS[self.chosen.level], rows.has_vector
        keys = list(map(str, rows.columns[entry.keys[0]].to_list()))
        for key in keys:
            if key.split() != [key]:
                reason = "is empty or has whitespace, which a key of word2vec's text must not"
                raise UserError(f"doc_id {key!r:.60} {reason}; use other ids, or npy")
        if entry.surface:
            # A word without a slash: so no two rows have the same key, whatever the ids.
            named = zip(self.chosen.words(rows), keys, rows.columns[entry.keys[1]].to_list(), strict=True)
            keys = [f"{'_'.join(word.replace('/', ' ').split()) or '_'}/{key}/{index}" for word, key, index in named]
        chosen = np.flatnonzero(has_vector)
        return [vector_lines([keys[row] for row in chosen], rows.vectors[0, chosen]) if len(chosen) else b""]


class Projector(Output):
    """Tables of TensorFlow's Embedding Projector: values, and the columns of their rows."""

    name = "projector"
    files = ("vectors.tsv", "metadata.tsv")
    # The projector refuses a single value, and skips empty lines.
    min_dim = 2

    def header(self, place: int) -> bytes:
        """Return the names of the columns; the table of values has none."""
        return _line(column.name for column in self.chosen.store.schema(self.chosen.level).columns) if place else b""

    def encoded(self, rows: Rows) -> list[bytes]:
        """Return a line per row with a vector for both tables."""
        has_vector = rows.has_vector
        if not has_vector.any():
            return [b"", b""]
        values = "\n".join(joined_values(rows.vectors[0, has_vector], "\t")) + "\n"
        return [values.encode(), b"".join(map(_line, rows.columns.filter(pl.Series(has_vector)).iter_rows()))]


def _line(values: Iterable[object]) -> bytes:
    """Return a line of a table, with spaces in place of tabs and line breaks, and `-` instead of an empty line."""
    line = "\t".join("" if value is None else _BREAKS.sub(" ", str(value)) for value in values)
    return f"{line if line.strip() else f'-{line}'}\n".encode()
