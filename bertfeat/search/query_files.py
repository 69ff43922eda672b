"""Reader of queries: a text file with one per line, or a table with texts and ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bertfeat.choices import BadRows, CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, ScannedRow, cut_shards, resolve_inputs
from bertfeat.corpus.formats import READERS, check_text_column
from bertfeat.corpus.tables import columns_of
from bertfeat.errors import InputError
from bertfeat.records import DocId, Document

_ID_COLUMNS = ("id", "_id", "query_id")
_TABLES = {reader.format for reader in READERS if reader.has_columns}


@dataclass(frozen=True, slots=True)
class Query:
    """A query: its id (the row number where the file has no ids), its text, and its name for messages."""

    query_id: DocId
    text: str
    name: str


class QueryFile:
    """The queries of a file, checked before the first is used: .txt, .jsonl, .json, .csv, .tsv, .parquet; some packed.

    Args:
        path: The file.
        text_column: The column with the text.
        id_column: The column with the id; by default `id`, `_id` or `query_id`, else row numbers.
        batch_size: Queries per batch.

    Attributes:
        n_queries: The number of queries.

    Raises:
        InputError: The file cannot be read, has no columns for `text_column`, no queries, or a bad row, which the
            message names.
    """

    def __init__(
        self, path: str | Path, *, text_column: str = "text", id_column: str | None = None, batch_size: int = 1024
    ) -> None:
        files = resolve_inputs([str(path)])
        kind = CorpusFormat(files[0].format)
        if kind not in _TABLES and kind is not CorpusFormat.TXT:
            known = ".txt, .jsonl, .json, .csv, .tsv or .parquet"
            raise InputError(f"{kind} holds no queries; give {known}", path=str(path))
        if kind in _TABLES and id_column is None:
            id_column = next((name for name in _ID_COLUMNS if name in columns_of(files[0])), None)
        # Bad rows are reported below: the advice of the corpus is for extraction.
        config = ExtractConfig(text_column=text_column, id_column=id_column, bad_rows=BadRows.QUARANTINE)
        check_text_column(files, config)
        self._corpus, self._batch_size = Corpus(files, config), batch_size
        shards = cut_shards(self._good_rows(), lambda _: 0, 1, keep_groups=False)
        if not shards:
            raise InputError("holds no queries", path=str(path))
        self._shard = shards[0]
        self.n_queries = self._shard.n_rows

    def batches(self) -> Iterator[list[Query]]:
        """Yield the queries in order, in batches."""
        with closing(self._corpus):
            rows = (row for row in self._corpus.read(self._shard) if isinstance(row, Document))
            queries = (Query(row.doc_id, row.text, f"{row.path}:{row.row}: query") for row in rows)
            while batch := list(islice(queries, self._batch_size)):
                yield batch

    def _good_rows(self) -> Iterator[ScannedRow]:
        for row in self._corpus.scan():
            if row.bad is not None:
                raise InputError(row.bad.reason, path=row.path, row=row.row)
            yield row
