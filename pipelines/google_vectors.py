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
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click
import numpy as np

from bertfeat.cli.failures import report_failures
from bertfeat.errors import UserError
from bertfeat.pipelines._options import recipe
from bertfeat.pipelines._vectortable import Sentence, Vectors, Words, write_table

FILE = click.Path(exists=True, dir_okay=False)
SPECIAL, UNKNOWN, CONTINUES = ("[CLS]", "[SEP]"), "[UNK]", "##"


@recipe()
@click.option("--vectors", type=FILE, required=True, help="The .jsonl or .jsonl.gz.")
@click.option("--ids", type=FILE, help="A .conll, .conllu, .txt, .csv, ...")
@click.option("--level", type=click.Choice(["word", "sentence"]), default="word", show_default=True)
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the results.")
def main(vectors: str, ids: str | None, level: str, out: str) -> None:
    """Write the vectors of extract_features.py as a table."""
    write_table(Path(out), "google_vectors", level, _sentences(vectors, level), ids)


def _sentences(path: str, level: str) -> Iterator[Sentence]:
    make, number = _mean if level == "sentence" else _of_words, 0
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
                yield partial(make, [tokens[place] for place in own], vectors)
                number += 1
    except (ValueError, LookupError, TypeError, OSError, EOFError, zlib.error) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}:{number + 1}: cannot be read as a line of extract_features.py ({reason})") from error


def _mean(_tokens: Sequence[str], vectors: Vectors, _said: str, _given: Words) -> tuple[Words, Vectors]:
    # A text without pieces has NaN: it has no vector.
    with np.errstate(invalid="ignore"):
        return None, {name: array.sum(axis=0, keepdims=True) / len(array) for name, array in vectors.items()}


def _of_words(tokens: Sequence[str], vectors: Vectors, said: str, given: Words) -> tuple[Words, Vectors]:
    words, firsts = joined(tokens) if given is None else (given, aligned(said, tokens, given))
    # Row -1 is for words without pieces, which have no vector.
    return words, {
        name: np.pad(array, ((0, 1), (0, 0)), constant_values=np.nan)[firsts] for name, array in vectors.items()
    }


def joined(tokens: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the words that pieces make, and the place of the first piece of each.

    Examples:
        >>> joined(["word", "##piece", "s"])
        (['wordpiece', 's'], [0, 2])
    """
    words, firsts = list[str](), list[int]()
    for place, token in enumerate(tokens):
        if words and token.startswith(CONTINUES):
            words[-1] += token.removeprefix(CONTINUES)
        else:
            words.append(token)
            firsts.append(place)
    return words, firsts


def aligned(said: str, tokens: Sequence[str], words: Sequence[str]) -> list[int]:
    """Return the place of the first piece of each word; -1 for a word without pieces.

    Raises:
        UserError: The pieces do not make the words.
    """
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
    with report_failures(main):
        main(standalone_mode=False)
