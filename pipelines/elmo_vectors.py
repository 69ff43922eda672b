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
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

import bertfeat
from bertfeat.errors import UserError
from bertfeat.pipelines._options import recipe
from bertfeat.pipelines._vectortable import Sentence, Words, write_table

_INDEX = "sentence_to_index"


@recipe()
@click.option("--vectors", type=click.Path(exists=True, dir_okay=False), required=True, help="The .hdf5 file.")
@click.option(
    "--ids", type=click.Path(exists=True, dir_okay=False), help="A .conll, .conllu, .txt, .csv, ... of words."
)
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the results.")
def main(vectors: str, ids: str | None, out: str) -> None:
    """Write the vectors of words in an HDF5 file as a table."""
    if find_spec("h5py") is None:
        raise UserError("this recipe needs h5py: pip install 'bertfeat[hdf5]'")
    import h5py

    with _readable(vectors):
        file = h5py.File(vectors)
    with file:
        with _readable(vectors):
            shape = file["0"].shape
        layers = range(shape[0]) if len(shape) == 3 else ()
        write_table(Path(out), "elmo_vectors", "word", layers, _sentences(vectors, file), ids)


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as sentences 0, 1, ... in HDF5 ({error!s:.120})") from error


def _sentences(path: str, file: Any) -> Iterator[Sentence]:
    with _readable(path):
        text = file[_INDEX][()].reshape(-1)[0] if _INDEX in file else b"{}"
        words = {number: sentence.split() for sentence, number in json.loads(text).items()}
        n_sentences = len(file) - (_INDEX in file)
        first = file["0"].shape
    for number in range(n_sentences):
        with _readable(path):
            array = file[str(number)][()]
        if (*array.shape[:-2], array.shape[-1]) != (*first[:-2], first[-1]):
            raise UserError(f"sentence {number} has shape {array.shape}, the first one {first}")
        own: Words | None = words.get(str(number))
        if own is not None and len(own) != array.shape[-2]:
            raise UserError(f"sentence {number} has {len(own)} words in {_INDEX}, the vectors have {array.shape[-2]}")
        found: tuple[Words | None, Any] = own, array if array.ndim == 3 else array[None]
        yield partial(_same, found)


def _same(found: tuple[Words | None, Any], _: Words | None) -> tuple[Words | None, Any]:
    return found


if __name__ == "__main__":
    with bertfeat.report_failures(main):
        main(standalone_mode=False)
