"""Corpus files of every format, and readers of them, for the tests of bertfeat.corpus."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, cut_shards, resolve_inputs
from bertfeat.records import BadRow, Document, ShardSpec


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def open_corpus(*paths: Path | str, **settings: Any) -> Corpus:
    config = ExtractConfig(**settings)
    return Corpus(resolve_inputs([str(path) for path in paths], CorpusFormat(config.format)), config)


def plan(corpus: Corpus, max_cost: int = 1 << 60, *, keep_groups: bool = False) -> tuple[ShardSpec, ...]:
    return cut_shards(corpus.scan(), lambda row: row.n_bytes, max_cost, keep_groups=keep_groups)


def read_all(*paths: Path | str, **settings: Any) -> list[Document | BadRow]:
    corpus = open_corpus(*paths, **settings)
    return [row for shard in plan(corpus) for row in corpus.read(shard)]


def documents(*paths: Path | str, **settings: Any) -> list[Document]:
    rows = read_all(*paths, **settings)
    assert all(isinstance(row, Document) for row in rows), rows
    return [row for row in rows if isinstance(row, Document)]


def bad_rows(*paths: Path | str, **settings: Any) -> list[BadRow]:
    return [row for row in read_all(*paths, bad_rows="quarantine", **settings) if isinstance(row, BadRow)]


def texts(*paths: Path | str, **settings: Any) -> list[str]:
    return [document.text for document in documents(*paths, **settings)]


def compress(data: bytes, ending: str) -> bytes:
    if ending == "gz":
        return gzip.compress(data)
    if ending == "zst":
        return bytes(pa.compress(data, codec="zstd", asbytes=True))
    return data


def _delimited(rows: Sequence[str], delimiter: str) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["n", "text"])
    writer.writerows(enumerate(rows))
    return out.getvalue().encode()


def _parquet(rows: Sequence[str]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array(rows, pa.string())}), out, row_group_size=3)
    return out.getvalue()


WRITERS: dict[str, Callable[[Sequence[str]], bytes]] = {
    "txt": lambda rows: "".join(row + "\n" for row in rows).encode(),
    "jsonl": lambda rows: "".join(json.dumps({"text": row}) + "\n" for row in rows).encode(),
    "json": lambda rows: json.dumps([{"text": row} for row in rows], indent=1).encode(),
    "csv": lambda rows: _delimited(rows, ","),
    "tsv": lambda rows: _delimited(rows, "\t"),
    "parquet": _parquet,
}
