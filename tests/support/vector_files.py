"""Files of vectors as other programs write them, a few rows each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.extraction.importing import import_vectors
from bertfeat.store.reader import Store
from tests.support.pipeline_runs import result_of

RECIPE = "vector_table"
SENTENCES = [["The", "bank", "closed"], ["It", "rained"], ["We", "crossed", "the", "Élan", "unaffably"], ["No"]]
N_WORDS = sum(map(len, SENTENCES))
# The tokens that an uncased WordPiece model makes of them.
PIECES = [
    ["[CLS]", "the", "bank", "closed", "[SEP]"],
    ["[CLS]", "it", "rained", "[SEP]"],
    ["[CLS]", "we", "crossed", "the", "el", "##an", "una", "##ff", "##ably", "[SEP]"],
    ["[CLS]", "[UNK]", "[SEP]"],
]


def numbers(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def write_npy(path: Path, array: npt.ArrayLike) -> Path:
    np.save(path, np.asarray(array))
    return path


def write_conll(path: Path, sentences: Sequence[Sequence[str]] = SENTENCES) -> Path:
    """Write words with two tags: a number, and the length of the word as its label."""
    blocks = ["\n".join(f"{word}\t{n}\tL{len(word)}" for n, word in enumerate(words)) for words in sentences]
    path.write_text("\n\n".join(blocks) + "\n", "utf-8")
    return path


def write_table(path: Path, sentences: Sequence[Sequence[str]] = SENTENCES) -> Path:
    """Write a .csv or .jsonl with a row per word: doc_id, word_index, word, label."""
    rows = [
        {"doc_id": f"d{n}", "word_index": place, "word": word, "label": f"L{len(word)}"}
        for n, words in enumerate(sentences)
        for place, word in enumerate(words)
    ]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]), "utf-8")
    return path


def write_hdf5(
    path: Path, arrays: Mapping[str, npt.ArrayLike], sentences: Sequence[Sequence[str]] | None = None
) -> Path:
    """Write a dataset for each sentence; with `sentences`, also allennlp's index of them."""
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=np.asarray(array))
        if sentences is not None:
            index = {" ".join(words): str(n) for n, words in enumerate(sentences)}
            file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype("utf-8"))[0] = json.dumps(index)
    return path


def sentence_arrays(n_layers: int = 3, dim: int = 4) -> dict[str, npt.NDArray[np.float32]]:
    return {str(n): numbers(n_layers, len(words), dim, seed=n) for n, words in enumerate(SENTENCES)}


def google_line(number: int, pieces: Sequence[str], vectors: npt.NDArray[Any], indices: Sequence[int]) -> str:
    """Return a line of extract_features.py; `vectors` is (n_pieces, n_layers, dim), its layers those of `indices`."""
    features = [
        {
            "token": piece,
            "layers": [{"index": k, "values": [float(v) for v in vectors[p, n]]} for n, k in enumerate(indices)],
        }
        for p, piece in enumerate(pieces)
    ]
    return json.dumps({"linex_index": number, "features": features}) + "\n"


def google_vectors(dim: int = 4, n_layers: int = 2) -> list[npt.NDArray[np.float32]]:
    return [numbers(len(pieces), n_layers, dim, seed=n) for n, pieces in enumerate(PIECES)]


def write_google(path: Path, indices: Sequence[int] = (-1, -2)) -> Path:
    """Write the lines of `PIECES`, the last layer first, as the script does by default."""
    vectors = google_vectors(n_layers=len(indices))
    path.write_text("".join(google_line(n, PIECES[n], vectors[n], indices) for n in range(len(PIECES))), "utf-8")
    return path


def import_by_recipe(path: Path, output: Path, level: str = "word", ids: Path | None = None, **settings: Any) -> Store:
    """Import a file through the recipe that makes a table of it."""
    made = output.with_name(f"{output.name}-table")
    result_of(made, RECIPE, "--vectors", path, "--level", level, *(["--ids", ids] if ids else []))
    return import_vectors(made / "vectors.parquet", output, level=level, **settings)
