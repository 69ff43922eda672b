"""Writer of the table of vectors that `bertfeat import` reads, with what its rows stand for beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from bertfeat.choices import Level
from bertfeat.corpus.inputs import local_file
from bertfeat.corpus.vectorfiles import read_rows
from bertfeat.durable.files import make_parents
from bertfeat.durable.publication import publish_file
from bertfeat.errors import UserError
from bertfeat.exports.framefiles import frame_writer
from bertfeat.pipelines._outputs import write

Words = Sequence[str]
# Words or None, and their vectors, (n_layers, n_rows, dim), from the words that a file of ids gives, or None.
Sentence = Callable[[Words | None], tuple[Words | None, npt.NDArray[Any]]]

_TYPES = {"int64": pl.Int64, "int32": pl.Int32, "double": pl.Float64, "bool": pl.Boolean}
_BATCH_ROWS = 4096


def write_table(
    out: Path, name: str, level: str, layers: Sequence[int], found: Iterable[Sentence], ids: str | None
) -> None:
    """Write OUT/vectors.parquet and OUT/result.json.

    Args:
        out: The folder.
        name: The recipe.
        level: What a row stands for.
        layers: The number of each layer, which names its column; empty for one column, `embedding`.
        found: The sentences or texts, in order.
        ids: A file that says what they are; see `import_vectors`. A line of a .txt is the id of a sentence.

    Raises:
        UserError: The words or the numbers of words or sentences differ.
    """
    file = None if ids is None else local_file(ids)
    is_lines = file is not None and file.format == "txt"
    rows = None if file is None else read_rows(file, Level.SENTENCE if is_lines else Level(level))
    n_given = None if rows is None else len(rows.starts)
    kinds = {} if rows is None else {name: str(rows.table.field(name).type) for name in rows.given}
    names = [f"layer_{layer:02d}" for layer in layers] or ["embedding"]
    path, n_rows, batch = out / "vectors.parquet", 0, list[pl.DataFrame]()
    make_parents(path)
    with publish_file(path) as sink, frame_writer(path, sink) as add:
        for number, sentence in enumerate(found):
            if number == n_given:
                raise UserError(f"{ids}: has {number:,} sentences, the vectors have more")
            given = None if rows is None else rows.table.slice(rows.starts[number], rows.lengths[number])
            known = None if given is None else _words(given)
            words, vectors = sentence(known)
            if given is not None and not is_lines:
                words = _compared(number, known, given.num_rows, words, vectors.shape[1])
            batch.append(_frame(number, level, given, words, kinds, dict(zip(names, vectors, strict=True))))
            n_rows += vectors.shape[1]
            if sum(map(len, batch)) >= _BATCH_ROWS:
                add(pl.concat(batch))
                batch = []
        if n_given is not None and n_given > number + 1:
            raise UserError(f"{ids}: has more sentences than the vectors, which have {number + 1:,}")
        if not n_rows:
            raise UserError("there are no vectors in the file")
        if batch:
            add(pl.concat(batch))
    write(out / "result.json", {"pipeline": name, "vectors": str(path), "n_rows": n_rows, "columns": names})


def _words(given: pa.Table) -> Words | None:
    """Return the words of a sentence if the file of ids gives all of them."""
    if "word" not in given.column_names or given["word"].null_count:
        return None
    words: list[str] = given["word"].to_pylist()
    return words


def _compared(number: int, given: Words | None, n_words: int, words: Words | None, n_rows: int) -> Words | None:
    said = "" if given is None else f" ({' '.join(given):.40})"
    if n_words != n_rows:
        raise UserError(f"sentence {number}{said} has {n_words:,} words, the vectors have {n_rows:,}")
    for place, (mine, theirs) in enumerate(zip(given or (), words or given or (), strict=True)):
        if mine != theirs:
            raise UserError(f"sentence {number}{said} has the word {mine!r} at {place}, the vectors have {theirs!r}")
    return given or words


def _frame(
    number: int,
    level: str,
    given: pa.Table | None,
    words: Words | None,
    kinds: dict[str, str],
    vectors: dict[str, npt.NDArray[Any]],
) -> pl.DataFrame:
    n_rows = len(next(iter(vectors.values())))
    columns: dict[str, Any] = {"doc_id": [number if given is None else given["doc_id"][0].as_py()] * n_rows}
    if level == Level.WORD:
        columns |= {"word_index": pl.Series(range(n_rows), dtype=pl.Int32)}
        columns |= {"word": pl.Series(words or [None] * n_rows, dtype=pl.String)}
    for name, kind in kinds.items():
        values = [] if given is None else given[name].to_pylist()
        texts = values if kind in _TYPES else [None if value is None else str(value) for value in values]
        columns[name] = pl.Series(texts, dtype=_TYPES.get(kind, pl.String))
    for name, array in vectors.items():
        columns[name] = pl.Series(np.ascontiguousarray(array, np.float32), dtype=pl.Array(pl.Float32, array.shape[1]))
    return pl.DataFrame(columns)
