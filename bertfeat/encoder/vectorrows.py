"""Rows of files of word vectors, and their numbers: text or bytes to float32."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertfeat.errors import CheckpointError
from bertfeat.records import Float32Array

EXPECTED = "expected a word and its numbers in each line, with one space between them"


class Layout(NamedTuple):
    """How the rows of a file are laid out; `n_rows` is the number in the header, None without a header."""

    title: str
    dim: int
    n_rows: int | None
    is_binary: bool


class Row(NamedTuple):
    """A row: its number for messages (the line of a text file), its word, and its numbers as they are in the file."""

    number: int
    word: bytes
    numbers: bytes


def values_in(path: Path, layout: Layout, block: list[Row]) -> Float32Array:
    """Return the numbers of some rows, float32 (n_rows, dim)."""
    numbers = [row.numbers for row in block]
    values = np.frombuffer(b"".join(numbers), "<f4") if layout.is_binary else _parsed(numbers)
    if values is None or len(values) != len(block) * layout.dim or not np.isfinite(values).all():
        return np.stack([values_of(path, layout, row) for row in block])
    return values.reshape(len(block), layout.dim)


def _parsed(numbers: list[bytes]) -> Float32Array | None:
    """Return the numbers of lines, float32 (n,), rounded by way of float64 as gensim does; None if one is not plain."""
    # polars reads a number in a tenth of the time that NumPy takes.
    import polars as pl

    column, schema = b" ".join(numbers), {"number": pl.Float64}
    try:
        table = pl.read_csv(column, has_header=False, schema=schema, eol_char=" ", quote_char=None)
    except pl.exceptions.PolarsError:
        return None
    with np.errstate(over="ignore"):
        found: Float32Array = table["number"].to_numpy().astype(np.float32)
    return found


def values_of(path: Path, layout: Layout, row: Row) -> Float32Array:
    """Return the numbers of one row, float32 (dim,), or name the one at fault."""
    word = row.word.decode(errors="replace")
    where = f"{path}: row {row.number}" if layout.is_binary else f"{path}:{row.number}"
    if layout.is_binary:
        values = np.frombuffer(row.numbers, "<f4")
        fields = list(map(str, values.tolist()))
    else:
        fields = row.numbers.decode(errors="replace").split(" ")
        with np.errstate(over="ignore"):
            values = np.array([_number(where, text) for text in fields], dtype=np.float64).astype(np.float32)
    if not np.isfinite(values).all():
        wrong = fields[int(np.argmin(np.isfinite(values)))]
        raise CheckpointError(f"{where}: the vector of {word!r:.60} holds {wrong:.40}; correct or remove the row")
    return values


def _number(where: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CheckpointError(f"{where}: {text!r:.40} is not a number; {EXPECTED}") from None
