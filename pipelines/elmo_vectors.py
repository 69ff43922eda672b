"""Vectors of words in HDF5, as allennlp's ELMo and structural-probes write them, to a table for `bertfeat import`.

    python -m bertfeat.pipelines.elmo_vectors --vectors train.hdf5 --ids train.conllu --out elmo
    bertfeat import elmo/vectors.parquet -o store --level word

The file has a dataset for each sentence, `0`, `1`, ..., of shape (layers, words, values) or (words, values).
allennlp's `sentence_to_index` gives the words. With --ids, words and numbers of words are compared sentence by
sentence. Writes vectors.parquet and result.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from bertfeat.cli.failures import report_failures
from bertfeat.errors import UserError
from bertfeat.pipelines._options import recipe
from bertfeat.pipelines._vectortable import Sentence, Vectors, Words, write_table

FILE = click.Path(exists=True, dir_okay=False)
_INDEX = "sentence_to_index"


@recipe("h5py")
@click.option("--vectors", type=FILE, required=True, help="The .hdf5 file.")
@click.option("--ids", type=FILE, help="A .conll, .conllu, .txt, .csv, ...")
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the results.")
def main(vectors: str, ids: str | None, out: str) -> None:
    """Write the vectors of words in an HDF5 file as a table."""
    write_table(Path(out), "elmo_vectors", "word", _sentences(vectors), ids)


def _sentences(path: str) -> Iterator[Sentence]:
    import h5py

    try:
        with h5py.File(path) as file:
            text = file[_INDEX][()].reshape(-1)[0] if _INDEX in file else b"{}"
            words = {number: sentence.split() for sentence, number in json.loads(text).items()}
            for number in range(max(1, len(file) - (_INDEX in file))):
                array = file[str(number)][()]
                layers = enumerate(array) if array.ndim == 3 else ()
                vectors = {f"layer_{layer:02d}": values for layer, values in layers} or {"embedding": array}
                yield partial(_compared, words.get(str(number)), vectors)
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as sentences 0, 1, ... in HDF5 ({error!s:.120})") from error


def _compared(own: Words, vectors: Vectors, said: str, given: Words) -> tuple[Words, Vectors]:
    """Return the words of a sentence with its vectors."""
    words = own or given or ()
    for place, (mine, theirs) in enumerate(zip(given or words, words, strict=False)):
        if mine != theirs:
            raise UserError(f"{said} has the word {mine!r} at {place}, the vectors have {theirs!r}")
    n_rows = len(next(iter(vectors.values())))
    if own is not None and len(own) != n_rows:
        raise UserError(f"{said} has {len(own)} words in {_INDEX}, the vectors have {n_rows}")
    return words, vectors


if __name__ == "__main__":
    with report_failures(main):
        main(standalone_mode=False)
