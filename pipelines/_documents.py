"""Reader of labelled documents, the rows that an extraction would read, and their splits, for recipes that train."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from bertfeat.choices import Level
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, cut_shards, resolve_inputs
from bertfeat.corpus.formats import check_text_column
from bertfeat.errors import InputError
from bertfeat.records import Document

#: The documents of train, dev and test.
Splits = dict[str, list[Document]]


def read_documents(path: str | Path, **settings: Any) -> list[Document]:
    """Return the documents of a file in order, with kept columns and annotations; `settings` are of `ExtractConfig`."""
    # At all levels, no setting that says how files are read is ignored.
    given = {name: value for name, value in settings.items() if value is not None}
    config = ExtractConfig.from_dict({"levels": tuple(Level), **given})
    files = resolve_inputs([str(path)], config.format)
    check_text_column(files, config)
    with closing(Corpus(files, config)) as corpus:
        everything = cut_shards(corpus.scan(), lambda _: 0, 1, keep_groups=False)
        return [row for shard in everything for row in corpus.read(shard) if isinstance(row, Document)]


def read_splits(files: Mapping[str, str], *, seed: int, n_drawn: int | None = None, **settings: Any) -> Splits:
    """Return the documents of each file, or `n_drawn` of them; dev and test are held out of train if they have none."""
    splits = {}
    for name, path in files.items():
        documents = read_documents(path, **settings)
        splits[name] = [documents[row] for row in draw_rows(len(documents), n_drawn)]
    train = splits["train"]
    held = hold_out(len(train), seed, {"test", "dev"} - splits.keys())
    return splits | {name: [train[row] for row in rows] for name, rows in held.items()}


def draw_rows(n_rows: int, limit: int | None) -> list[int]:
    """Return the numbers of the rows to use, in order: all, or `limit` of them, drawn at random."""
    rows = pl.int_range(n_rows, eager=True)
    return (rows if limit is None else rows.sample(min(limit, n_rows), seed=0, shuffle=True)).to_list()


def hold_out(n_rows: int, seed: int, names: Collection[str] = ("test", "dev")) -> dict[str, list[int]]:
    """Return the rows of train and of each of `names`: a fifth for test, and a tenth of the rest for dev."""
    rows = pl.int_range(n_rows, eager=True).sample(fraction=1.0, shuffle=True, seed=seed).to_list()
    held = {}
    for name, share in {"test": 5, "dev": 10}.items():
        if name in names:
            cut = max(1, len(rows) // share)
            held[name], rows = rows[:cut], rows[cut:]
    if held and not rows:
        raise InputError(f"{n_rows} rows are too few to train on and to hold out {' and '.join(held)}; bring more")
    return {"train": rows, **held}
