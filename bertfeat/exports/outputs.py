"""Files of an export: the base class of the formats, and the formats that are written from front to back."""

from __future__ import annotations

import contextlib
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from bertfeat.choices import Combine, Level
from bertfeat.durable.files import sync_fd
from bertfeat.errors import UserError
from bertfeat.exports.selectedrows import Rows, Selection
from bertfeat.levels import DOC_ID, LEVELS
from bertfeat.store.wordtypes import joined_values, vector_lines

# Whatever a reader may take for the end of a line or of a column.
_BREAKS = re.compile(r"[\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class Job:
    """What an output needs to know: the rows and vectors, their numbers and the type that is stored."""

    chosen: Selection
    n_rows: int
    n_vectors: int
    dtype: np.dtype[Any]

    @property
    def n_layers(self) -> int:
        """The blocks of the model."""
        return int(self.chosen.store.manifest["model"]["n_layers"])


class Output(ABC):
    """A format of an export: its facts, and the writer of one export, whose result is the path `result`.

    Attributes:
        name: Its name.
        levels: The levels that it holds; the first that a store has is the default.
        endings: The endings of its file; empty if it is a folder.
        files: The files of its folder; the first identifies it.
        has_layers: It holds several vectors for each row.
    """

    name: ClassVar[str]
    levels: ClassVar[tuple[Level, ...]] = (Level.SENTENCE, Level.WORD, Level.TOKEN)
    endings: ClassVar[tuple[str, ...]] = ()
    files: ClassVar[tuple[str, ...]] = ()
    has_layers: ClassVar[bool] = False

    def __init__(self, folder: Path, job: Job) -> None:
        self.folder, self.job = folder, job
        self.result = folder / "result"

    @classmethod  # noqa: B027
    def check(cls) -> None:
        """Refuse a format whose library is not installed.

        Raises:
            UserError: The library is missing.
        """

    @abstractmethod
    def open(self, saved: Mapping[str, int] | None) -> None:
        """Begin, or go back to what `save` returned last."""

    @abstractmethod
    def write(self, rows: Rows) -> None:
        """Write whole documents.

        Raises:
            UserError: The format cannot hold a row.
        """

    @abstractmethod
    def save(self) -> dict[str, int]:
        """Wait until all that was written is on the disk; return what `open` needs to continue from here."""

    def finish(self) -> None:  # noqa: B027
        """Complete the result, whose parts are saved."""

    @abstractmethod
    def close(self) -> None:
        """Close the files."""


class Appended(Output):
    """An output whose files only grow: what was written after the last `save` is cut off."""

    def __init__(self, folder: Path, job: Job) -> None:
        super().__init__(folder, job)
        self._opened: list[io.BufferedRandom] = []

    def open(self, saved: Mapping[str, int] | None) -> None:
        """Begin, or cut the files to their saved sizes."""
        if self.files:
            self.result.mkdir(exist_ok=True)
        self._opened = []
        for place, path in enumerate(self._paths()):
            file = path.open("w+b" if saved is None else "r+b")
            self._opened.append(file)
            if saved is None:
                file.write(self.header(place))
            else:
                file.truncate(saved[path.name])
                file.seek(saved[path.name])

    def _paths(self) -> list[Path]:
        return [self.result / name for name in self.files] or [self.result]

    def header(self, place: int) -> bytes:  # noqa: ARG002
        """Return how the file at a place begins."""
        return b""

    def write(self, rows: Rows) -> None:
        """Append whole documents to each file."""
        for file, data in zip(self._opened, self.encoded(rows), strict=True):
            file.write(data)

    @abstractmethod
    def encoded(self, rows: Rows) -> Sequence[bytes | memoryview]:
        """Return what whole documents add to each file."""

    def save(self) -> dict[str, int]:
        """Sync the files, and return their sizes."""
        for file in self._opened:
            file.flush()
            sync_fd(file.fileno())
        return {path.name: file.tell() for path, file in zip(self._paths(), self._opened, strict=True)}

    def close(self) -> None:
        """Close the files."""
        for file in self._opened:
            # Bytes that cannot be written any more are cut off by the next run.
            with contextlib.suppress(OSError):
                file.close()


class GoogleJson(Appended):
    """Lines of google-research/bert's extract_features.py: the tokens of a document with their layers."""

    name = "google-jsonl"
    levels = (Level.TOKEN, Level.WORD)
    endings = (".jsonl", ".json")
    has_layers = True

    def encoded(self, rows: Rows) -> list[bytes]:
        """Return a line per document."""
        level, features = self.job.chosen.level, self.job.chosen.features
        numbers = [
            feature.layers[0] - self.job.n_layers - 1 if feature.combine == Combine.NONE else 0 for feature in features
        ]
        values = [joined_values(layer, ", ") for layer in rows.vectors]
        tokens = rows.columns[LEVELS[level].surface].to_list()
        if not rows.has_vector.all():
            row = int(np.argmin(rows.has_vector))
            reason = "has no vector, and JSON has no NaN; export to npy or HDF5"
            raise UserError(f"doc_id {rows.columns[DOC_ID.name][row]!r}: the {level} {tokens[row]!r:.60} {reason}")
        pieces = []
        for row, token in enumerate(tokens):
            layers = ", ".join(
                f'{{"index": {number}, "values": [{layer[row]}]}}'
                for number, layer in zip(numbers, values, strict=True)
            )
            pieces.append(f'{{"token": {json.dumps(token)}, "layers": [{layers}]}}')
        lines = []
        for place, (doc_id, first, last) in enumerate(documents(rows)):
            head = f'{{"linex_index": {rows.first_document + place}, "doc_id": {json.dumps(doc_id)}'
            lines.append(f'{head}, "features": [{", ".join(pieces[first:last])}]}}\n')
        return ["".join(lines).encode()]


class Npy(Appended):
    """NumPy's .npy with the columns of its rows beside it."""

    name = "npy"
    files = ("vectors.npy", "rows.jsonl")
    has_layers = True

    def header(self, place: int) -> bytes:
        """Return the header of the array, whose length is known."""
        head = io.BytesIO()
        if place == 0:
            features = self.job.chosen.features
            layers = () if len(features) == 1 else (len(features),)
            shape = (self.job.n_rows, *layers, features[0].dim)
            kind = np.lib.format.dtype_to_descr(self.job.dtype)
            np.lib.format.write_array_header_1_0(head, {"descr": kind, "fortran_order": False, "shape": shape})
        return head.getvalue()

    def encoded(self, rows: Rows) -> list[bytes | memoryview]:
        """Return values and columns of whole documents."""
        try:
            lines = rows.columns.write_ndjson().encode()
        except pl.exceptions.PolarsError as error:
            raise UserError(f"rows.jsonl cannot hold a column: {error}; leave it out of `keep_columns`") from None
        return [np.ascontiguousarray(rows.vectors.transpose(1, 0, 2)).data, lines]


class Word2vec(Appended):
    """word2vec's text: a unique key and its values per line, the number of lines and of values before."""

    name = "word2vec"
    endings = (".txt", ".vec")

    def header(self, place: int) -> bytes:  # noqa: ARG002
        """Return the number of lines and of values."""
        return f"{self.job.n_vectors} {self.job.chosen.features[0].dim}\n".encode()

    def encoded(self, rows: Rows) -> list[bytes]:
        """Return a line per row with a vector."""
        entry = LEVELS[self.job.chosen.level]
        has_vector = rows.has_vector
        shown = rows.columns.filter(pl.Series(has_vector))
        keys = [str(key) for key in shown[entry.keys[0]].to_list()]
        for key in keys:
            if key.split() != [key]:
                raise UserError(
                    f"doc_id {key!r:.60}: a key of word2vec's text has no whitespace; use other ids, or npy"
                )
        if entry.surface:
            named = zip(shown[entry.surface].to_list(), keys, shown[entry.keys[1]].to_list(), strict=True)
            keys = [f"{'_'.join(word.split()) or '_'}/{key}/{index}" for word, key, index in named]
        return [vector_lines(keys, rows.vectors[0, has_vector])] if keys else [b""]


class Projector(Appended):
    """Tables of TensorFlow's Embedding Projector: values, and the columns of their rows."""

    name = "projector"
    files = ("vectors.tsv", "metadata.tsv")

    def header(self, place: int) -> bytes:
        """Return the names of the columns; the table of values has none."""
        names = [column.name for column in self.job.chosen.store.schema(self.job.chosen.level).columns]
        return ("\t".join(map(_cell, names)) + "\n").encode() if place else b""

    def encoded(self, rows: Rows) -> list[bytes]:
        """Return a line per row with a vector for both tables."""
        has_vector = rows.has_vector
        values = joined_values(rows.vectors[0, has_vector], "\t") if has_vector.any() else []
        shown = rows.columns.filter(pl.Series(has_vector)).rows()
        lines = ["\t".join(map(_cell, row)) for row in shown]
        return ["".join(f"{line}\n" for line in table).encode() for table in (values, lines)]


def _cell(value: object) -> str:
    """Return a value as text without tabs and line breaks."""
    return "" if value is None else _BREAKS.sub(" ", str(value))


def documents(rows: Rows) -> Iterator[tuple[Any, int, int]]:
    """Yield id, first row and row behind the last of each document."""
    ids = rows.columns[DOC_ID.name]
    for first, last in zip(rows.bounds.tolist(), rows.bounds[1:].tolist(), strict=False):
        yield ids[first], first, last
