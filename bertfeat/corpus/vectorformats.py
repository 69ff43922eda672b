"""Formats of an import: the readers of vectors and of the rows that they stand for, by name or by file ending."""

from __future__ import annotations

from bertfeat.choices import CorpusFormat, Level, VectorFormat
from bertfeat.corpus.formats import READER_OF, WORD_FORMATS
from bertfeat.corpus.googlejson import GoogleReader
from bertfeat.corpus.hdf5files import Hdf5Reader
from bertfeat.corpus.inputs import compression_of, local_file
from bertfeat.corpus.npyarrays import NpyReader
from bertfeat.corpus.rowsources import LineIds, RowSource, SentenceRows
from bertfeat.corpus.rowtables import TABLE_OF_ENDING, ArrowTable
from bertfeat.corpus.tablerows import TableRows
from bertfeat.corpus.vectorfiles import VectorReader
from bertfeat.corpus.vectortables import ArrowVectors, ParquetVectors
from bertfeat.errors import InputError
from bertfeat.records import InputFile

READERS: tuple[type[VectorReader], ...] = (NpyReader, Hdf5Reader, ParquetVectors, ArrowVectors, GoogleReader)
VECTOR_READER_OF = {str(reader.format): reader for reader in READERS}
_LINE_FORMATS = sorted({CorpusFormat.TXT, *WORD_FORMATS})
# The formats of ids that are lines, by ending; other formats are tables.
_FORMAT_OF_ENDING = {ending: name for name in _LINE_FORMATS for ending in READER_OF[name].endings}


def vector_file(path: str, vector_format: VectorFormat) -> InputFile:
    """Describe a file of vectors.

    Raises:
        InputError: The file does not exist or has no bytes, or its ending names no format.
    """

    def choose(path: str) -> tuple[str, str | None]:
        ending, compression = compression_of(path)
        found = next((reader for reader in READERS if ending in reader.endings), None)
        if vector_format is not VectorFormat.AUTO:
            found = VECTOR_READER_OF[vector_format]
        if found is None:
            known = ", ".join(ending for reader in READERS for ending in reader.endings)
            hint = "save one array with numpy.save" if ending == ".npz" else "rename it, or pass `format`"
            raise InputError(f"ending {ending!r} must be one of {known}; {hint}", path=path)
        if compression is not None and not found.is_compressible:
            raise InputError(f"{found.format} is not read from .gz or .zst; decompress it", path=path)
        return str(found.format), compression

    return local_file(path, choose)


def file_of_rows(path: str) -> InputFile:
    """Describe the file that `ids` names.

    Raises:
        InputError: The file does not exist or has no bytes, or its ending names no format.
    """
    return local_file(path, _format_of_rows)


def row_source(file: InputFile, level: Level, *, per_row: bool) -> RowSource:
    """Open the file that `ids` names.

    Args:
        file: The file.
        level: The level of the rows.
        per_row: Whether the lines of a .txt are rows, not documents.

    Raises:
        InputError: The file cannot be read, or its format does not go with the level.
    """
    if file.format == CorpusFormat.TXT:
        return LineIds(file, per_row=per_row)
    if file.format not in WORD_FORMATS:
        return TableRows(TABLE_OF_ENDING[f".{file.format}"](file), level)
    if level is not Level.WORD:
        raise InputError(f"{file.format} has words, and the vectors are of sentences; pass a table", path=file.path)
    return SentenceRows(file)


def _format_of_rows(path: str) -> tuple[str, str | None]:
    ending, compression = compression_of(path)
    if ending in _FORMAT_OF_ENDING:
        return str(_FORMAT_OF_ENDING[ending]), compression
    if ending not in TABLE_OF_ENDING:
        raise InputError(
            f"ending {ending!r} must be one of {', '.join([*TABLE_OF_ENDING, *_FORMAT_OF_ENDING])}", path=path
        )
    if compression is not None and ending in ArrowTable.endings:
        raise InputError(f"{ending} is compressed inside; decompress the file", path=path)
    return ending[1:], compression
