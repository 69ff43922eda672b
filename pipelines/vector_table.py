"""Vectors that other programs wrote for each word, to a table for `bertfeat import`: ELMo in HDF5, BERT in JSON lines.

    python -m bertfeat.pipelines.vector_table --vectors train.hdf5 --ids train.conllu -o elmo
    python -m bertfeat.pipelines.vector_table --vectors features.jsonl --ids train.conll -o bert
    bertfeat import bert/vectors.parquet -o store --level word

HDF5 is of allennlp or structural-probes. JSON lines, of google-research's extract_features.py, have word pieces: a word
has the vector of its first one, and a text (--level sentence) the mean without [CLS] and [SEP].
"""

from __future__ import annotations

import gzip
import json
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from bertfeat.errors import UserError, require
from bertfeat.pipelines._recipe import FILE, Result, recipe
from bertfeat.pipelines._vectortable import Sentence, Words, write_table

SPECIAL, UNKNOWN, CONTINUES = ("[CLS]", "[SEP]"), "[UNK]", "##"
_INDEX = "sentence_to_index"


@recipe(extraction="")
@click.option("--vectors", type=FILE, required=True, help="The .hdf5 or .h5, .jsonl or .jsonl.gz.")
@click.option("--ids", type=FILE, help="A .conll, .conllu, .txt, .csv, ...")
@click.option("--level", type=click.Choice(["word", "sentence"]), default="word", show_default=True)
def main(vectors: str, ids: str | None, level: str, output: Path) -> Result:
    """Write the vectors of words in an HDF5 file, or of word pieces in JSON lines, as a table."""
    if vectors.endswith((".jsonl", ".jsonl.gz")):
        sentences, match = _from_json(vectors), _mean if level == "sentence" else _of_pieces
    elif level == "sentence":
        raise click.UsageError("--level sentence is for .jsonl; an HDF5 file has words")
    else:
        require("h5py", what="this recipe needs")
        sentences, match = _from_hdf5(vectors), _of_words
    values = write_table(output, level, sentences, match, ids)
    return Result(values, f"{values['vectors']}: {values['n_rows']:,} rows; columns {', '.join(values['columns'])}")


def _from_hdf5(path: str) -> Iterator[Sentence]:
    import h5py

    try:
        with h5py.File(path) as file:
            text = file[_INDEX][()].reshape(-1)[0] if _INDEX in file else b"{}"
            words = {number: sentence.split() for sentence, number in json.loads(text).items()}
            for number in range(max(1, len(file) - (_INDEX in file))):
                array = file[str(number)][()]
                layers = enumerate(array) if array.ndim == 3 else ()
                vectors = {f"layer_{layer:02d}": values for layer, values in layers}
                yield words.get(str(number)), vectors or {"embedding": array}
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as sentences 0, 1, ... in HDF5 ({error!s:.120})") from error


def _of_words(said: str, given: Words, sentence: Sentence) -> Sentence:
    own, vectors = sentence
    words = own or given or ()
    for place, (mine, theirs) in enumerate(zip(given or words, words, strict=False)):
        if mine != theirs:
            raise UserError(f"{said} has the word {mine!r} at {place}, the vectors have {theirs!r}")
    n_rows = len(next(iter(vectors.values())))
    if own is not None and len(own) != n_rows:
        raise UserError(f"{said} has {len(own)} words in {_INDEX}, the vectors have {n_rows}")
    return words, vectors


def _from_json(path: str) -> Iterator[Sentence]:
    number = 0
    try:
        with gzip.open(path) if path.endswith(".gz") else Path(path).open("rb") as file:
            for text in file:
                line = json.loads(text)
                if line["linex_index"] != number:
                    raise ValueError(f"linex_index is {line['linex_index']} where {number} must be; keep all lines")
                tokens = [piece["token"] for piece in line["features"]]
                layers = [{one["index"]: one["values"] for one in piece["layers"]} for piece in line["features"]]
                indices = sorted(layers[0])
                lowest = min(indices[0], 0)
                if lowest < 0 <= indices[-1]:
                    raise ValueError(f"layers {indices} are numbered from both ends of the model; number all from 0 on")
                own = [place for place, token in enumerate(tokens) if token not in SPECIAL]
                vectors = {
                    f"layer_{index - lowest:02d}": np.array([piece[index] for piece in layers], np.float64)[own]
                    for index in indices
                }
                yield [tokens[place] for place in own], vectors
                number += 1
    except (ValueError, LookupError, TypeError, OSError, EOFError, zlib.error) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}:{number + 1}: cannot be read as a line of extract_features.py ({reason})") from error


def _mean(_said: str, _given: Words, sentence: Sentence) -> Sentence:
    # A text without pieces has NaN: it has no vector.
    with np.errstate(invalid="ignore"):
        return None, {name: array.sum(axis=0, keepdims=True) / len(array) for name, array in sentence[1].items()}


def _of_pieces(said: str, given: Words, sentence: Sentence) -> Sentence:
    tokens, vectors = sentence
    assert tokens is not None, "a line of JSON has pieces"
    words, firsts = joined(tokens) if given is None else (given, aligned(said, tokens, given))
    # Row -1 is for words without pieces, which have no vector.
    return words, {
        name: np.pad(array, ((0, 1), (0, 0)), constant_values=np.nan)[firsts] for name, array in vectors.items()
    }


def joined(tokens: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the words that pieces make, and the place of the first piece of each."""
    words, firsts = list[str](), list[int]()
    for place, token in enumerate(tokens):
        if words and token.startswith(CONTINUES):
            words[-1] += token.removeprefix(CONTINUES)
        else:
            words.append(token)
            firsts.append(place)
    return words, firsts


def aligned(said: str, tokens: Sequence[str], words: Sequence[str]) -> list[int]:
    """Return the place of the first piece of each word, -1 for a word without pieces; others are a UserError."""
    firsts, place = list[int](), 0
    for word in words:
        rest = _plain(word)
        firsts.append(place if rest else -1)
        while rest:
            token = tokens[place] if place < len(tokens) else ""
            text = rest if token == UNKNOWN else _plain(token.removeprefix(CONTINUES))
            if not text or not rest.startswith(text):
                found = f"the piece {token!r}" if token else "no more pieces"
                raise UserError(f"{said} has the word {word!r}, and the vectors have {found}")
            rest, place = rest[len(text) :], place + 1
    if place < len(tokens):
        raise UserError(f"{said} has {len(words):,} words, and the vectors continue with {tokens[place]!r}")
    return firsts


def _plain(text: str) -> str:
    """Return a text as an uncased tokenizer sees it: in lower case, without accents, spaces and control characters."""
    parts = unicodedata.normalize("NFD", text.lower())
    return "".join(c for c in parts if unicodedata.category(c) not in ("Mn", "Cc", "Cf") and not c.isspace())


if __name__ == "__main__":
    main()
