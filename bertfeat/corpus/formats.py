"""Corpus formats: the reader of each, found by name or by file ending."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bertfeat import extensions
from bertfeat.config import ExtractConfig
from bertfeat.corpus.conll import ConllReader, ConlluReader
from bertfeat.corpus.content import Reader
from bertfeat.corpus.delimited import CsvReader, LineReader, TsvReader
from bertfeat.corpus.fasta import FastaReader
from bertfeat.corpus.json_files import JsonlReader, JsonReader
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
    FastaReader,
)
_READER_OF = {str(reader.format): reader for reader in READERS}
_SETTINGS = dict.fromkeys(name for reader in READERS for name in reader.settings)
_OPTIONS = ("no_header", "delimiter")


def reader_named(name: str) -> type[Reader]:
    """Return the reader of a format, which an installed package may add."""
    found: type[Reader] = _READER_OF.get(name) or extensions.load("formats", name)
    return found


def has_words(name: str) -> bool:
    """Return whether a format always gives documents as words; vectors that are imported are in formats without."""
    if name not in _READER_OF and name not in extensions.names("formats"):
        return False
    return reader_named(name).has_words


def readers_by_ending(ending: str) -> dict[str, type[Reader]]:
    """Return the readers of the known endings; those of extensions are looked up for an ending that is not known."""
    found = {known: reader for reader in READERS for known in reader.endings}
    if ending not in found:
        added = map(reader_named, extensions.names("formats"))
        found = {known: reader for reader in added for known in reader.endings} | found
    return found


def _takers(name: str) -> str:
    """Return the formats that take a setting."""
    return ", ".join(reader.format for reader in READERS if name in reader.settings)


def open_reader(file: InputFile, config: ExtractConfig) -> Reader:
    """Open a file of the corpus."""
    reader = reader_named(file.format)
    if config.label_column and not config.is_split_into_words and not reader.has_words:
        reason = f"`label_column` {config.label_column!r} labels the words of `is_split_into_words`"
        raise InputError(f"{reason}; keep a document's label with `keep_columns`", path=file.path)
    for name in _SETTINGS:
        # Without this error, the reader would ignore the setting.
        if getattr(config, name) and name not in reader.settings:
            raise InputError(f"`{name}` does not go with {file.format}; it goes with {_takers(name)}", path=file.path)
    if config.document_context and not config.document_column and not reader.has_documents:
        reason = "does not say which rows are one document, as `document_context` must know; pass `document_column`"
        goes_with = "" if "document_column" in reader.settings else f", which goes with {_takers('document_column')}"
        raise InputError(reason + goes_with, path=file.path)
    opened = open_file(file, **{name: getattr(config, name) for name in _OPTIONS if name in reader.settings})
    try:
        opened.use(config)
    except InputError:
        opened.close()
        raise
    return opened


def open_file(file: InputFile, **options: Any) -> Reader:
    """Open a file with all its columns; the options are those of its reader."""
    return reader_named(file.format)(file, **options)


def check_text_column(files: Sequence[InputFile], config: ExtractConfig) -> None:
    """Refuse a column of texts where no file has columns: the readers would ignore it."""
    have_columns = any(reader_named(file.format).has_columns for file in files)
    if config.text_column != ExtractConfig.text_column and not have_columns:
        raise InputError(f"has no columns for `text_column` {config.text_column!r}; leave it out", path=files[0].path)


def own_id_column(files: Sequence[InputFile]) -> str | None:
    """Return the column with the ids that the formats of all files give without a setting, if there is one."""
    found = {reader_named(file.format).own_id for file in files}
    return found.pop() if len(found) == 1 else None


def own_columns(files: Iterable[InputFile]) -> list[str]:
    """Return the columns that the formats of the files give a corpus without a setting, each once."""
    return list(dict.fromkeys(name for file in files for name in reader_named(file.format).own_columns))
