"""Reader of labelled documents, for the recipes that train: the rows that an extraction would read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from bertfeat.choices import Level
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, cut_shards, resolve_inputs
from bertfeat.corpus.formats import check_text_column
from bertfeat.records import Document


def read_documents(path: str | Path, **settings: Any) -> list[Document]:
    """Return the documents of a file in order, with kept columns and annotations; `settings` are of `ExtractConfig`."""
    # At all levels, no setting that says how files are read is ignored.
    config = ExtractConfig.from_dict({"levels": tuple(Level), **settings})
    files = resolve_inputs([str(path)], config.format)
    check_text_column(files, config)
    with closing(Corpus(files, config)) as corpus:
        everything = cut_shards(corpus.scan(), lambda _: 0, 1, keep_groups=False)
        return [row for shard in everything for row in corpus.read(shard) if isinstance(row, Document)]
