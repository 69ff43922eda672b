"""Corpora: files become documents, and a corpus becomes shards."""

from __future__ import annotations

from bertfeat.corpus.columns import CorpusSchema, Earlier
from bertfeat.corpus.frames import Inputs
from bertfeat.corpus.inputs import resolve_inputs, spool_stdin
from bertfeat.corpus.reading import Corpus, ScannedRow
from bertfeat.corpus.shards import cut_shards

__all__ = [
    "Corpus", "CorpusSchema", "Earlier", "Inputs", "ScannedRow", "columns", "content", "cut_shards", "duplicates",
    "formats", "frames", "inputs", "jsonarray", "linestreams", "resolve_inputs", "spool_stdin",
]  # fmt: skip
