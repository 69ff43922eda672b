"""Reader of the JSON lines of google-research/bert's extract_features.py: vectors of word pieces."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertfeat.choices import Level
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import clean
from bertfeat.corpus.rowsources import Words
from bertfeat.corpus.rowtables import json_lines_at
from bertfeat.corpus.vectorfiles import Block, Stored, Unit, VectorReader
from bertfeat.records import FileSlice, InputFile

_CLS, _SEP, _UNKNOWN, _CONTINUES = "[CLS]", "[SEP]", "[UNK]", "##"
_SPECIAL = (_CLS, _SEP)
# Layers are numbered below this.
_LAYERS = 1000


class _Line(NamedTuple):
    """A document: its number, its line, its pieces, and float64 (n_pieces, n_layers, dim)."""

    number: int
    row: int
    offset: int
    pieces: tuple[str, ...]
    vectors: npt.NDArray[np.float64]


class GoogleReader(VectorReader):
    """Reads .jsonl: `{"linex_index": 0, "features": [{"token", "layers": [{"index", "values"}]}]}`."""

    format = "google-jsonl"
    endings = (".jsonl", ".json")
    holds_documents = True
    pooling = {Level.WORD: "first", Level.SENTENCE: "mean"}  # noqa: RUF012
    is_compressible = True

    def __init__(self, file: InputFile, config: ExtractConfig, vector_columns: Sequence[str] = ()) -> None:
        super().__init__(file, config, vector_columns)
        _, _, first = next(json_lines_at(file, 0, 1), (0, 0, None))
        if first is None:
            raise self.wrong("has no lines; there is nothing to import")
        layers = self._layers(self._pieces(first, 1)[0], 1)
        # In the order of the model's layers, whatever the order in the file.
        self._indices = sorted(index for index, _ in layers)
        self._dim = len(layers[0][1])
        # Negative numbers count from the end of a model that the file does not name: its lowest layer becomes 0.
        lowest = min(self._indices[0], 0)
        if lowest < 0 <= self._indices[-1]:
            named = ", ".join(map(str, self._indices))
            raise self.wrong(f"has layers {named}, numbered from both ends of the model; number all from 0 on", 1)
        self.features = self.layer_features([index - lowest for index in self._indices], self._dim)

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
        is_right = all(type(i) is int and abs(i) < _LAYERS and isinstance(v, list) and v for i, v in found)
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
            yield _Line(index, number, at, tuple(clean(piece["token"]) for piece in pieces), vectors)

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
            n_rows = 1 if self.level is Level.SENTENCE else len(_joined(line.pieces)[0])
            yield Unit(n_rows, line.offset, line.row, line.pieces)

    def _stored(self, line: _Line, values: npt.NDArray[Any]) -> Stored:
        columns = {feature.name: values[:, layer] for layer, feature in enumerate(self.features)}
        return self.stored(columns, lambda row: (f"vector {row}: ", line.row))

    def words_of(self, unit: Unit, given: Words | None, number: int) -> Words | None:
        """Return the words that the pieces make, or the given ones, if the pieces make these."""
        pieces = unit.words or ()
        if self.level is Level.SENTENCE:
            return None
        return _joined(pieces)[0] if given is None else self._aligned(pieces, given, number)[0]

    def _aligned(self, pieces: Sequence[str], given: Words, number: int) -> tuple[Words, list[int]]:
        """Return the given words, and the place of the first piece of each; -1 for a word without pieces.

        Pieces may be in lower case and without accents. An unknown piece stands for the rest of its word.
        """
        places = [place for place, piece in enumerate(pieces) if piece not in _SPECIAL]
        firsts: list[int] = []
        at = 0
        for word in given:
            rest = _plain(word)
            first = places[at] if rest and at < len(places) else -1
            while rest:
                if at == len(places):
                    reason = f"has {len(given):,} words, the vectors have {len(firsts):,}; were the vectors cut off?"
                    raise self.differs(number, given, reason)
                piece = pieces[places[at]]
                text = rest if piece == _UNKNOWN else _plain(piece.removeprefix(_CONTINUES))
                if not text or not rest.startswith(text):
                    raise self.differs(
                        number, given, f"has the word {word!r}, and the vectors have the piece {piece!r}"
                    )
                rest = rest[len(text) :]
                at += 1
            firsts.append(first)
        if at < len(places):
            reason = f"has {len(given):,} words, and the vectors continue with {pieces[places[at]]!r}"
            raise self.differs(number, given, reason)
        return given, firsts

    def read(self, piece: FileSlice, given: Sequence[Words | None]) -> Block:
        """Return the vectors of some documents."""
        parts: list[Stored] = []
        words: list[Words | None] = []
        for place, line in enumerate(islice(self._lines(piece.offset, piece.row), piece.n_rows)):
            known = given[place] if given else None
            if self.level is Level.SENTENCE:
                parts.append(self._stored(line, self._document(line)[None]))
                words.append(None)
                continue
            found, firsts = _joined(line.pieces) if known is None else self._aligned(line.pieces, known, line.number)
            has_piece = (np.array(firsts, np.intp) >= 0)[:, None, None]
            parts.append(self._stored(line, np.where(has_piece, line.vectors[firsts], np.nan)))
            words.append(found)
        return Block.of(parts, words)

    def _document(self, line: _Line) -> npt.NDArray[Any]:
        """Return the mean of a document's pieces, (n_layers, dim); NaN if it has none."""
        places = [place for place, piece in enumerate(line.pieces) if piece not in _SPECIAL]
        if not places:
            return np.full(line.vectors.shape[1:], np.nan)
        found: npt.NDArray[Any] = line.vectors[places].mean(axis=0)
        return found

    def close(self) -> None:
        """Close the file, which is open only while it is read."""


def _joined(pieces: Sequence[str]) -> tuple[Words, list[int]]:
    """Return the words that pieces make, without special ones, and the place of the first piece of each.

    Examples:
        >>> _joined(["[CLS]", "word", "##piece", "s", "[SEP]"])
        (('wordpiece', 's'), [1, 3])
    """
    words: list[str] = []
    firsts: list[int] = []
    for place, piece in enumerate(pieces):
        if piece in _SPECIAL:
            continue
        if words and piece.startswith(_CONTINUES) and pieces[place - 1] not in _SPECIAL:
            words[-1] += piece.removeprefix(_CONTINUES)
        else:
            words.append(piece)
            firsts.append(place)
    return tuple(words), firsts


def _plain(text: str) -> str:
    """Return a text as an uncased tokenizer sees it: in lower case, without accents, spaces and control characters."""
    parts = unicodedata.normalize("NFD", text.lower())
    return "".join(c for c in parts if unicodedata.category(c) not in ("Mn", "Cc", "Cf") and not c.isspace())
