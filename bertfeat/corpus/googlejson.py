"""Reader of the JSON lines of google-research/bert's extract_features.py: vectors of word pieces."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertfeat.choices import Level, Pooling, VectorFormat
from bertfeat.corpus.rowsources import Words
from bertfeat.corpus.rowtables import json_lines_at
from bertfeat.corpus.vectorfiles import Block, Stored, Unit, VectorOptions, VectorReader
from bertfeat.errors import ConfigError
from bertfeat.records import FileSlice, InputFile

_CLS, _SEP, _UNKNOWN, _CONTINUES = "[CLS]", "[SEP]", "[UNK]", "##"
_SPECIAL = (_CLS, _SEP)

_REDUCE: dict[str, Callable[[npt.NDArray[Any]], npt.NDArray[Any]]] = {
    "first": lambda vectors: vectors[0],
    "last": lambda vectors: vectors[-1],
    "mean": lambda vectors: vectors.mean(axis=0, dtype=np.float64),
    "max": lambda vectors: vectors.max(axis=0),
}


class _Line(NamedTuple):
    """A document: its number, its line, its pieces, and float64 (n_pieces, n_layers, dim)."""

    number: int
    row: int
    offset: int
    pieces: tuple[str, ...]
    vectors: npt.NDArray[np.float64]


class GoogleReader(VectorReader):
    """Reads .jsonl: `{"linex_index": 0, "features": [{"token", "layers": [{"index", "values"}]}]}`."""

    format = VectorFormat.GOOGLE_JSONL
    endings = (".jsonl", ".json")
    holds_documents = True
    has_pieces = True
    is_compressible = True

    def __init__(self, file: InputFile, options: VectorOptions) -> None:
        super().__init__(file, options)
        if options.pooling not in (Pooling.MEAN, Pooling.MAX, Pooling.CLS):
            raise ConfigError(f"`pooling='{options.pooling}'` does not go with word pieces; use mean, max or cls")
        _, _, first = next(json_lines_at(file, 0, 1), (0, 0, None))
        if first is None:
            raise self.wrong("has no lines; there is nothing to import")
        layers = self._layers(self._pieces(first, 1)[0], 1)
        # In the order of the model's layers, whatever the order in the file.
        self._indices = sorted(index for index, _ in layers)
        self._dim = len(layers[0][1])
        if self._indices[0] < 0 and options.layers is None:
            there, example = ", ".join(map(str, self._indices)), f"{13 - len(layers)}..12"
            raise ConfigError(
                f"{file.path} counts layers from the end ({there}); pass their numbers in the model, the lowest first: "
                f"`layers='{example}'` for one of 12 blocks"
            )
        if options.layers is None:
            # The list of that script begins with the output of the first block.
            self.options = dataclasses.replace(options, layers=tuple(index + 1 for index in self._indices))
        self.features = self.layer_features(len(layers), self._dim)

    def _pieces(self, record: dict[str, Any], row: int) -> list[dict[str, Any]]:
        found = record.get("features")
        if not isinstance(found, list) or not found or not all(isinstance(piece, dict) for piece in found):
            raise self.wrong("is not a line of extract_features.py: its 'features' are not a list of objects", row)
        for place, piece in enumerate(found):
            if not isinstance(piece.get("token"), str):
                raise self.wrong(f"feature {place} has no text 'token'", row)
        return found

    def _layers(self, piece: dict[str, Any], row: int) -> list[tuple[int, list[Any]]]:
        try:
            found = [(layer["index"], layer["values"]) for layer in piece["layers"]]
        except (KeyError, TypeError):
            found = []
        is_right = all(type(index) is int and isinstance(values, list) and values for index, values in found)
        if not found or not is_right or len({index for index, _ in found}) < len(found):
            raise self.wrong(
                f"token {piece['token']!r:.40} has no list 'layers' of different 'index' with 'values'", row
            )
        return found

    def _lines(self, offset: int = 0, row: int = 1) -> Iterator[_Line]:
        for number, at, record in json_lines_at(self.file, offset, row):
            index = record.get("linex_index")
            if type(index) is not int or index != number - 1:
                reason = (
                    f"has linex_index {index!r:.40} where {number - 1} must be; sort the lines, and keep all of them"
                )
                raise self.wrong(reason, number)
            pieces = self._pieces(record, number)
            vectors = np.stack([self._matrix(piece, number) for piece in pieces])
            yield _Line(index, number, at, tuple(piece["token"] for piece in pieces), vectors)

    def _matrix(self, piece: dict[str, Any], row: int) -> npt.NDArray[np.float64]:
        """Return the vectors of a piece, float64 (n_layers, dim)."""
        layers = self._layers(piece, row)
        if sorted(index for index, _ in layers) != self._indices or {len(v) for _, v in layers} != {self._dim}:
            wanted = f"layers {', '.join(map(str, self._indices))} of {self._dim} values, as the first one"
            raise self.wrong(f"token {piece['token']!r:.40} does not have {wanted}", row)
        flat = [value for _, values in sorted(layers, key=lambda layer: layer[0]) for value in values]
        if not all(type(value) in (float, int) for value in flat):
            raise self.wrong(f"token {piece['token']!r:.40} has values that are not numbers", row)
        try:
            return np.array(flat, np.float64).reshape(len(layers), self._dim)
        except OverflowError:
            raise self.wrong(f"token {piece['token']!r:.40} has a number beyond float64", row) from None

    def scan(self) -> Iterator[Unit]:
        """Check all values, and yield the documents with their pieces."""
        for line in self._lines():
            self._stored(line, line.vectors)
            n_rows = 1 if self.options.level is Level.SENTENCE else len(_joined(line.pieces)[0])
            yield Unit(n_rows, line.offset, line.row, line.pieces)

    def _stored(self, line: _Line, values: npt.NDArray[Any]) -> Stored:
        columns = {feature.name: values[:, layer] for layer, feature in enumerate(self.features)}
        return self.stored(columns, lambda row: (f"vector {row}: ", line.row))

    def words_of(self, unit: Unit, given: Words | None, number: int) -> Words | None:
        """Return the words that the pieces make, or the given ones, if the pieces make these."""
        pieces = unit.words or ()
        if self.options.level is Level.SENTENCE:
            return None
        return _joined(pieces)[0] if given is None else self._aligned(pieces, given, number)[0]

    def _aligned(self, pieces: Sequence[str], given: Words, number: int) -> tuple[Words, list[list[int]]]:
        """Return the given words, and the pieces of each by their places.

        Pieces may be in lower case and without accents. An unknown piece stands for the rest of its word.
        """
        places = [place for place, piece in enumerate(pieces) if piece not in _SPECIAL]
        found: list[list[int]] = []
        at = 0
        for word in given:
            rest, mine = _plain(word), []
            while rest:
                if at == len(places):
                    reason = f"has {len(given):,} words, the vectors have {len(found):,}; were the vectors cut off?"
                    raise self.differs(number, given, reason)
                piece = pieces[places[at]]
                text = rest if piece == _UNKNOWN else _plain(piece.removeprefix(_CONTINUES))
                if not text or not rest.startswith(text):
                    raise self.differs(
                        number, given, f"has the word {word!r}, and the vectors have the piece {piece!r}"
                    )
                rest = rest[len(text) :]
                mine.append(places[at])
                at += 1
            found.append(mine)
        if at < len(places):
            reason = f"has {len(given):,} words, and the vectors continue with {pieces[places[at]]!r}"
            raise self.differs(number, given, reason)
        return given, found

    def read(self, piece: FileSlice, given: Sequence[Words | None]) -> Block:
        """Return the vectors of some documents."""
        parts: list[Stored] = []
        words: list[Words | None] = []
        for place, line in enumerate(islice(self._lines(piece.offset, piece.row), piece.n_rows)):
            known = given[place] if given else None
            if self.options.level is Level.SENTENCE:
                parts.append(self._stored(line, self._document(line)[None]))
                words.append(None)
                continue
            found, groups = _joined(line.pieces) if known is None else self._aligned(line.pieces, known, line.number)
            parts.append(self._stored(line, self._pooled(line.vectors, groups)))
            words.append(found)
        return Block.of(parts, words)

    def _pooled(self, vectors: npt.NDArray[Any], groups: Sequence[Sequence[int]]) -> npt.NDArray[Any]:
        """Return one vector per group of pieces, (n_groups, n_layers, dim); NaN for a group without pieces."""
        found = np.full((len(groups), *vectors.shape[1:]), np.nan)
        reduce = _REDUCE[str(self.options.word_pooling)]
        for place, group in enumerate(groups):
            if group:
                found[place] = reduce(vectors[list(group)])
        return found

    def _document(self, line: _Line) -> npt.NDArray[Any]:
        """Return the vector of a document, (n_layers, dim); NaN if it has no pieces to pool."""
        if self.options.pooling is Pooling.CLS:
            if line.pieces[0] != _CLS:
                raise self.wrong(
                    f"begins with {line.pieces[0]!r:.40}, not with {_CLS}; use another `pooling`", line.row
                )
            cls: npt.NDArray[Any] = line.vectors[0]
            return cls
        places = [place for place, piece in enumerate(line.pieces) if piece not in _SPECIAL]
        if not places:
            return np.full(line.vectors.shape[1:], np.nan)
        found: npt.NDArray[Any] = _REDUCE[str(self.options.pooling)](line.vectors[places])
        return found

    def close(self) -> None:
        """Close the file, which is open only while it is read."""


def _joined(pieces: Sequence[str]) -> tuple[Words, list[list[int]]]:
    """Return the words that pieces make, without special ones, and the places of the pieces of each.

    Examples:
        >>> _joined(["[CLS]", "word", "##piece", "s", "[SEP]"])
        (('wordpiece', 's'), [[1, 2], [3]])
    """
    words: list[str] = []
    groups: list[list[int]] = []
    for place, piece in enumerate(pieces):
        if piece in _SPECIAL:
            continue
        if groups and piece.startswith(_CONTINUES) and pieces[place - 1] not in _SPECIAL:
            words[-1] += piece.removeprefix(_CONTINUES)
            groups[-1].append(place)
        else:
            words.append(piece)
            groups.append([place])
    return tuple(words), groups


def _plain(text: str) -> str:
    """Return a text as an uncased tokenizer sees it: in lower case, without accents, spaces and control characters."""
    parts = unicodedata.normalize("NFD", text.lower())
    return "".join(c for c in parts if unicodedata.category(c) not in ("Mn", "Cc", "Cf") and not c.isspace())
