"""Writer of the table of vectors that `bertfeat import` reads, with what its rows stand for beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.choices import Level
from bertfeat.corpus.corpus import local_file
from bertfeat.corpus.vector_files import read_rows
from bertfeat.durable.publication import publish_file
from bertfeat.errors import UserError
from bertfeat.exports.frame_files import frame_writer

Words = Sequence[str] | None
# The vectors of each column: float (n_rows, dim).
Vectors = Mapping[str, npt.NDArray[Any]]
# The words of a sentence, or its word pieces, and their vectors.
Sentence = tuple[Words, Vectors]
# Makes the rows of a sentence from its name in messages, the words that the file of ids gives it, and the sentence.
Match = Callable[[str, Words, Sentence], Sentence]
_BATCH_SENTENCES = 1024


def write_table(output: Path, level: str, sentences: Iterable[Sentence], match: Match, ids: str | None) -> Any:
    """Write vectors.parquet, and return the values of result.json; a line of a .txt `ids` is the id of a sentence."""
    path, n_rows, columns = output / "vectors.parquet", 0, list[str]()
    frames = _frames(level, sentences, match, ids)
    with publish_file(path) as sink, frame_writer(path, sink) as add:
        while batch := [*islice(frames, _BATCH_SENTENCES)]:
            frame = pl.concat(batch)
            add(frame)
            n_rows += len(frame)
            columns = [column for column, kind in frame.schema.items() if isinstance(kind, pl.Array)]
        if not n_rows:
            raise UserError("there are no vectors in the file")
    return {"vectors": str(path), "n_rows": n_rows, "columns": columns}


def _frames(level: str, sentences: Iterable[Sentence], match: Match, ids: str | None) -> Iterator[pl.DataFrame]:
    """Yield the rows of each sentence: what the file of ids says of them, and their vectors."""
    file = None if ids is None else local_file(ids)
    has_rows = file is not None and file.format != "txt"
    given = None if file is None else _given(file, Level(level) if has_rows else Level.SENTENCE)
    number = -1
    for number, sentence in enumerate(sentences):
        if given is not None and number == len(given):
            raise UserError(f"{ids}: has {number:,} sentences, the vectors have more")
        rows = pl.DataFrame({"doc_id": [number]}) if given is None else given[number]
        known = rows["word"].to_list() if "word" in rows and not rows["word"].has_nulls() else None
        said = f"sentence {number}" if known is None else f"sentence {number} ({' '.join(known):.40})"
        words, vectors = match(said, known, sentence)
        n_rows = len(next(iter(vectors.values())))
        if not has_rows:
            rows = rows[[0] * n_rows]
        elif len(rows) != n_rows:
            raise UserError(f"{said} has {len(rows):,} words, the vectors have {n_rows:,}")
        columns: dict[str, Any] = {"doc_id": rows["doc_id"]}
        if level == Level.WORD:
            columns["word_index"] = pl.Series(range(n_rows), dtype=pl.Int32)
            columns["word"] = pl.Series(words or [None] * n_rows, dtype=pl.String)
            rows = rows.drop("word", strict=False)
        columns |= rows.to_dict()
        for name, array in vectors.items():
            values = np.ascontiguousarray(array, np.float32)
            columns[name] = pl.Series(values, dtype=pl.Array(pl.Float32, array.shape[1]))
        yield pl.DataFrame(columns)
    if given is not None and number + 1 < len(given):
        raise UserError(f"{ids}: has more sentences than the vectors, which have {number + 1:,}")


def _given(file: Any, level: Level) -> list[pl.DataFrame]:
    """Return the rows of each sentence in a file of ids, with its words and columns."""
    rows = read_rows(file, level)
    names = dict.fromkeys(["doc_id", *(["word"] if level is Level.WORD else []), *rows.given])
    return pl.DataFrame(rows.table.select([*names])).partition_by("doc_id", maintain_order=True)
