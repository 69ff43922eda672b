"""Corpora: files become documents, and a corpus becomes shards."""

from __future__ import annotations

from bertfeat.corpus.columns import CorpusSchema, Earlier
from bertfeat.corpus.content import Reader
from bertfeat.corpus.corpus import resolve_inputs, spool_stdin
from bertfeat.corpus.data_frames import Inputs, Paths, reader_of, resolve_kind
from bertfeat.corpus.reader import Corpus, ScannedRow
from bertfeat.corpus.shards import cut_shards

__all__ = [
    "Corpus", "CorpusSchema", "Earlier", "Inputs", "Paths", "Reader", "ScannedRow", "columns", "content", "corpus",
    "cut_shards", "data_frames", "formats", "line_streams", "reader_of", "resolve_inputs", "resolve_kind",
    "span_files", "spool_stdin", "tables", "vector_files",
]  # fmt: skip
