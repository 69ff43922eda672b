"""Corpus formats: the reader of each, found by name or by file ending."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.conll import ConllReader, ConlluReader
from bertfeat.corpus.content import Reader
from bertfeat.corpus.delimited import CsvReader, TsvReader
from bertfeat.corpus.jsonfiles import JsonlReader, JsonReader
from bertfeat.corpus.lines import LineReader
from bertfeat.corpus.linestreams import open_stream
from bertfeat.corpus.parquet import ParquetReader
from bertfeat.errors import InputError
from bertfeat.records import InputFile

READERS: tuple[type[Reader], ...] = (
    LineReader,
    JsonlReader,
    JsonReader,
    CsvReader,
    TsvReader,
    ParquetReader,
    ConllReader,
    ConlluReader,
)
READER_OF = {reader.format: reader for reader in READERS}
READER_OF_ENDING = {ending: reader for reader in READERS for ending in reader.endings}
WORD_FORMATS = frozenset(reader.format for reader in READERS if reader.has_words)
# The attribute of a reader that a setting needs.
_NEEDS = dict.fromkeys(("text_pair_column", "id_column", "keep_columns", "document_column"), "has_columns")
_OPTIONS = ("no_header", "delimiter")
_NEEDS |= dict.fromkeys(_OPTIONS, "has_delimiter")
_NEEDS |= {"text_pairs": "has_pairs", "is_split_into_words": "has_lists", "label_column": "has_lists"}
# What looks like CoNLL under another name: the tag of a span, in this share of the lines of the first bytes.
_SPAN_TAG = re.compile(rb"O|[BIESLU]-\S+")
_LEAST_LINES, _LEAST_SHARE, _SNIFFED_BYTES = 3, 0.8, 1 << 16
_INSTEAD = {
    "text_pairs": "; pass `text_pair_column` for columns",
    "label_column": "; a document's label is a kept column: `keep_columns`",
}


def open_reader(file: InputFile, config: ExtractConfig) -> Reader:
    """Open a file of the corpus.

    Raises:
        InputError: The file cannot be opened, lacks a column, or a setting does not go with its format.
    """
    corpus_format = CorpusFormat(file.format)
    reader = READER_OF[corpus_format]
    for name, need in _NEEDS.items():
        value, own_ids = getattr(config, name), reader.own_columns[:1] if name == "id_column" else ()
        # Without this error, the reader would ignore the setting.
        if value and not getattr(reader, need) and value not in own_ids:
            takers = ", ".join(other.format for other in READERS if getattr(other, need))
            hint = f"; in {corpus_format} it may be {own_ids[0]}" if own_ids else _INSTEAD.get(name, "")
            raise InputError(f"`{name}` does not go with {corpus_format}; it goes with {takers}{hint}", path=file.path)
    if reader.has_columns and config.label_column and not config.is_split_into_words:
        raise InputError(
            f"`label_column` {config.label_column!r} labels the words of `is_split_into_words`; keep a "
            "document's label with `keep_columns`",
            path=file.path,
        )
    if config.document_context and not config.document_column and not reader.has_documents:
        raise InputError(
            "does not say which rows are one document, as `document_context` must know; pass `document_column`",
            path=file.path,
        )
    is_guessed = config.format is CorpusFormat.AUTO
    if is_guessed and corpus_format is CorpusFormat.TXT:
        _refuse_conll(file)
    opened = open_file(file, **{name: getattr(config, name) for name in _OPTIONS if reader.has_delimiter})
    try:
        opened.use(config)
    except InputError:
        opened.close()
        if is_guessed and reader.has_delimiter:
            _refuse_conll(file)
        raise
    return opened


def open_file(file: InputFile, **options: Any) -> Reader:
    """Open a file with all its columns; the options are those of its reader.

    Raises:
        InputError: The file cannot be opened.
    """
    return READER_OF[CorpusFormat(file.format)](file, **options)


def check_text_column(files: Sequence[InputFile], config: ExtractConfig) -> None:
    """Refuse a column of texts where no file has columns: the readers would ignore it.

    Raises:
        InputError: The message names the first file.
    """
    have_columns = any(READER_OF[CorpusFormat(file.format)].has_columns for file in files)
    if config.text_column != ExtractConfig.text_column and not have_columns:
        raise InputError(f"has no columns for `text_column` {config.text_column!r}; leave it out", path=files[0].path)


def own_columns(files: Iterable[InputFile]) -> list[str]:
    """Return the columns that the formats of the files give a corpus without a setting, each once."""
    return list(dict.fromkeys(name for file in files for name in READER_OF[CorpusFormat(file.format)].own_columns))


def _refuse_conll(file: InputFile) -> None:
    """Refuse a file whose ending names another format, but whose lines look like CoNLL."""
    with closing(open_stream(file)) as stream:
        found = conll_format(stream.read(_SNIFFED_BYTES))
    if found is not None:
        raise InputError(
            f"looks like CoNLL; pass `format='{found}'` (or `format='{file.format}'` if it is not)", path=file.path
        )


def conll_format(head: bytes) -> CorpusFormat | None:
    """Return the CoNLL format of the first bytes of a file, or None if they are something else.

    CoNLL has empty lines between sentences, and most other lines hold a word and the tag of a span, or ten columns.
    """
    lines = head.splitlines() if len(head) < _SNIFFED_BYTES else head.splitlines()[:-1]
    words = [line for line in lines if line.strip() and not line.startswith((b"#", b"-DOCSTART-"))]
    if len(words) < _LEAST_LINES or all(line.strip() for line in lines):
        return None
    if sum(line.count(b"\t") == 9 for line in words) >= _LEAST_SHARE * len(words):
        return CorpusFormat.CONLLU
    tags = [next(filter(_SPAN_TAG.fullmatch, line.split()[:0:-1]), None) for line in words]
    is_tagged = len(tags) - tags.count(None) >= _LEAST_SHARE * len(tags)
    return CorpusFormat.CONLL if is_tagged and {*tags} - {b"O", None} else None
