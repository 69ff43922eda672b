"""Vectors of word pieces from google-research/bert's extract_features.py, to a table for `bertfeat import`.

    python -m bertfeat.pipelines.google_vectors --vectors features.jsonl --ids train.conll --out bert
    bertfeat import bert/vectors.parquet -o store --level word

A word has the vector of its first piece, as in the paper of BERT; with --level sentence, a text has the mean of its
pieces without [CLS] and [SEP]. With --ids, the pieces are compared with the words, which may differ in case and
accents; [UNK] stands for the rest of its word. Layers are numbered as in the file, the lowest of negative numbers
from 0. Writes vectors.parquet and result.json.
"""

from __future__ import annotations

import gzip
import json
import unicodedata
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import bertfeat
from bertfeat.errors import UserError
from bertfeat.pipelines._options import recipe
from bertfeat.pipelines._vectortable import Sentence, Words, write_table

# The text of a piece, and its values by the index of their layer.
Piece = tuple[str, Mapping[int, Sequence[float]]]

_SPECIAL, _UNKNOWN, _CONTINUES = ("[CLS]", "[SEP]"), "[UNK]", "##"


@recipe()
@click.option(
    "--vectors", type=click.Path(exists=True, dir_okay=False), required=True, help="The .jsonl, or .gz of it."
)
@click.option("--ids", type=click.Path(exists=True, dir_okay=False), help="A .conll, .conllu, .txt, .csv, ...")
@click.option("--level", type=click.Choice(["word", "sentence"]), default="word", show_default=True)
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the results.")
def main(vectors: str, ids: str | None, level: str, out: str) -> None:
    """Write the vectors of extract_features.py as a table."""
    first = next(_lines(vectors), None)
    if first is None:
        raise UserError(f"{vectors}: has no lines; there is nothing to import")
    layers = first[0][1]
    indices = sorted(layers)
    width = len(layers[indices[0]])
    lowest = min(indices[0], 0)
    if lowest < 0 <= indices[-1]:
        raise UserError(f"{vectors}: has layers {indices}, numbered from both ends of the model; number all from 0 on")
    found = (
        _sentence(f"{vectors}:{number + 1}", number, pieces, indices, width, level)
        for number, pieces in enumerate(_lines(vectors))
    )
    write_table(Path(out), "google_vectors", level, [n - lowest for n in indices], found, ids)


def _lines(path: str) -> Iterator[list[Piece]]:
    """Yield the pieces of each line, in the order of the lines."""
    number = 0
    try:
        with gzip.open(path) if path.endswith(".gz") else Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    found = json.loads(line)
                    index, pieces = found["linex_index"], [*map(_piece, found["features"])]
                    if index != number - 1:
                        raise ValueError(f"has linex_index {index} where {number - 1} must be; keep all lines")
                    if not pieces:
                        raise ValueError("has no features")
                except (ValueError, KeyError, TypeError) as error:
                    reason = f"no key {error}" if isinstance(error, KeyError) else error
                    raise UserError(f"{path}:{number}: not a line of extract_features.py: {reason}") from None
                yield pieces
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}:{number + 1}: cannot be read ({error}); fetch or write the file again") from error


def _piece(found: Mapping[str, Any]) -> Piece:
    token, layers = found["token"], {layer["index"]: layer["values"] for layer in found["layers"]}
    if not (isinstance(token, str) and layers and all(isinstance(index, int) for index in layers)):
        raise ValueError(f"the piece {token!r:.40} has layers {[*layers]}")
    if not all(isinstance(values, list) for values in layers.values()):
        raise ValueError(f"the piece {token!r:.40} has values that are not lists")
    return token, layers


def _sentence(
    where: str, number: int, pieces: Sequence[Piece], indices: Sequence[int], width: int, level: str
) -> Sentence:
    tokens = [token for token, _ in pieces]
    try:
        vectors = np.array([[layers[index] for _, layers in pieces] for index in indices], np.float64)
        if vectors.shape[2:] != (width,):
            raise ValueError(f"the first line has {width} values")
    except (KeyError, ValueError, TypeError) as error:
        reason = f"{where}: a piece does not have layers {indices} of one width, as the first has"
        raise UserError(reason) from error
    if level == "sentence":
        own = [place for place, token in enumerate(tokens) if token not in _SPECIAL]
        mean = (
            vectors[:, own].mean(axis=1, keepdims=True) if own else np.full((len(indices), 1, vectors.shape[2]), np.nan)
        )
        return lambda _: (None, mean)
    return lambda given: _of_words(number, tokens, vectors, given)


def _of_words(
    number: int, tokens: Sequence[str], vectors: npt.NDArray[Any], given: Words | None
) -> tuple[Words, npt.NDArray[Any]]:
    words, firsts = joined(tokens) if given is None else aligned(number, tokens, given)
    # A word without pieces has no vector.
    return words, np.where((np.array(firsts) >= 0)[:, None], vectors[:, firsts], np.nan)


def joined(tokens: Sequence[str]) -> tuple[Words, list[int]]:
    """Return the words that pieces make, without special ones, and the place of the first piece of each.

    Examples:
        >>> joined(["[CLS]", "word", "##piece", "s", "[SEP]"])
        (['wordpiece', 's'], [1, 3])
    """
    words, firsts = list[str](), list[int]()
    for place, token in enumerate(tokens):
        if token in _SPECIAL:
            continue
        if words and token.startswith(_CONTINUES) and tokens[place - 1] not in _SPECIAL:
            words[-1] += token.removeprefix(_CONTINUES)
        else:
            words.append(token)
            firsts.append(place)
    return words, firsts


def aligned(number: int, tokens: Sequence[str], given: Words) -> tuple[Words, list[int]]:
    """Return the given words, and the place of the first piece of each; -1 for a word without pieces.

    Raises:
        UserError: The pieces do not make the words.
    """
    said = f"sentence {number} ({' '.join(given):.40})"
    places = [place for place, token in enumerate(tokens) if token not in _SPECIAL]
    firsts = list[int]()
    at = 0
    for word in given:
        rest = _plain(word)
        firsts.append(places[at] if rest and at < len(places) else -1)
        while rest:
            if at == len(places):
                raise UserError(
                    f"{said} has {len(given):,} words, the vectors have {len(firsts) - 1:,}; were they cut?"
                )
            token = tokens[places[at]]
            text = rest if token == _UNKNOWN else _plain(token.removeprefix(_CONTINUES))
            if not text or not rest.startswith(text):
                raise UserError(f"{said} has the word {word!r}, and the vectors have the piece {token!r}")
            rest, at = rest[len(text) :], at + 1
    if at < len(places):
        raise UserError(f"{said} has {len(given):,} words, and the vectors continue with {tokens[places[at]]!r}")
    return given, firsts


def _plain(text: str) -> str:
    """Return a text as an uncased tokenizer sees it: in lower case, without accents, spaces and control characters."""
    parts = unicodedata.normalize("NFD", text.lower())
    return "".join(c for c in parts if unicodedata.category(c) not in ("Mn", "Cc", "Cf") and not c.isspace())


if __name__ == "__main__":
    with bertfeat.report_failures(main):
        main(standalone_mode=False)
