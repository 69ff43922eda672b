"""Reader of labelled documents, for the recipes that train: the rows that an extraction would read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertfeat.choices import Level
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, cut_shards, resolve_inputs
from bertfeat.corpus.formats import check_text_column
from bertfeat.records import Document


def read_documents(path: str | Path, **settings: Any) -> list[Document]:
    """Return the documents of a file, in order, with their kept columns and the annotations of their words.

    Args:
        path: The file.
        settings: Those of an extraction that say how files are read: `text_column`, `keep_columns`, `format`, ...

    Raises:
        InputError: The file or a row cannot be read, or a column is missing.
    """
    # At all levels, no setting that says how files are read is ignored.
    config = ExtractConfig.from_dict({"levels": tuple(Level), **settings})
    files = resolve_inputs([str(path)], config.format)
    check_text_column(files, config)
    corpus = Corpus(files, config)
    everything = cut_shards(corpus.scan(), lambda _: 0, 1, keep_groups=False)
    documents = [document for shard in everything for document in corpus.read(shard)]
    corpus.close()
    return [document for document in documents if isinstance(document, Document)]
