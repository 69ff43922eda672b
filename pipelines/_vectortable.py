"""Writer of the table of vectors that `bertfeat import` reads, with what its rows stand for beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.choices import Level
from bertfeat.corpus.inputs import local_file
from bertfeat.corpus.vectorrows import Group, RowFile
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
    rows = None if file is None else RowFile(file, Level.SENTENCE if is_lines else Level(level))
    groups = None if rows is None else rows.groups()
    kinds = {} if rows is None else {column.name: _TYPES.get(column.type, pl.String) for column in rows.columns}
    names = [f"layer_{layer:02d}" for layer in layers] or ["embedding"]
    path, n_rows, batch = out / "vectors.parquet", 0, list[pl.DataFrame]()
    make_parents(path)
    with (
        closing(rows) if rows is not None else nullcontext(),
        publish_file(path) as sink,
        frame_writer(path, sink) as add,
    ):
        for number, sentence in enumerate(found):
            group = None if groups is None else next(groups, None)
            if groups is not None and group is None:
                raise UserError(f"{ids}: has {number:,} sentences, the vectors have more")
            words, vectors = sentence(None if group is None else group.words)
            if group is not None and not is_lines:
                words = _compared(number, group, words, vectors.shape[1])
            batch.append(_frame(number, level, group, words, kinds, dict(zip(names, vectors, strict=True))))
            n_rows += vectors.shape[1]
            if sum(map(len, batch)) >= _BATCH_ROWS:
                add(pl.concat(batch))
                batch = []
        if groups is not None and next(groups, None) is not None:
            raise UserError(f"{ids}: has more sentences than the vectors, which have {number + 1:,}")
        if not n_rows:
            raise UserError("there are no vectors in the file")
        if batch:
            add(pl.concat(batch))
    write(out / "result.json", {"pipeline": name, "vectors": str(path), "n_rows": n_rows, "columns": names})


def _compared(number: int, group: Group, words: Words | None, n_rows: int) -> Words | None:
    given = group.words
    said = "" if given is None else f" ({' '.join(given):.40})"
    if group.n_rows != n_rows:
        raise UserError(f"sentence {number}{said} has {group.n_rows:,} words, the vectors have {n_rows:,}")
    for place, (mine, theirs) in enumerate(zip(given or (), words or given or (), strict=True)):
        if mine != theirs:
            raise UserError(f"sentence {number}{said} has the word {mine!r} at {place}, the vectors have {theirs!r}")
    return given or words


def _frame(
    number: int,
    level: str,
    group: Group | None,
    words: Words | None,
    kinds: dict[str, Any],
    vectors: dict[str, npt.NDArray[Any]],
) -> pl.DataFrame:
    n_rows = len(next(iter(vectors.values())))
    columns: dict[str, Any] = {"doc_id": [number if group is None else group.doc_id] * n_rows}
    if level == Level.WORD:
        columns |= {"word_index": pl.Series(range(n_rows), dtype=pl.Int32)}
        columns |= {"word": pl.Series(words or [None] * n_rows, dtype=pl.String)}
    for name, kind in kinds.items():
        values = (group.columns if group else {})[name]
        texts = values if kind is not pl.String else [None if value is None else str(value) for value in values]
        columns[name] = pl.Series(texts, dtype=kind)
    for name, array in vectors.items():
        columns[name] = pl.Series(np.ascontiguousarray(array, np.float32), dtype=pl.Array(pl.Float32, array.shape[1]))
    return pl.DataFrame(columns)
