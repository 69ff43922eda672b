"""Formats of an import: the readers of vectors and of the rows that they stand for, by file ending."""

from __future__ import annotations

from bertfeat.choices import CorpusFormat, Level
from bertfeat.corpus.formats import READER_OF_ENDING, WORD_FORMATS
from bertfeat.corpus.googlejson import GoogleReader
from bertfeat.corpus.hdf5files import Hdf5Reader
from bertfeat.corpus.inputs import endings_of, local_file
from bertfeat.corpus.npyarrays import NpyReader
from bertfeat.corpus.rowsources import LineIds, RowSource, SentenceRows
from bertfeat.corpus.rowtables import TABLE_OF
from bertfeat.corpus.tablerows import TableRows
from bertfeat.corpus.vectorfiles import VectorReader
from bertfeat.corpus.vectortables import ParquetVectors
from bertfeat.errors import InputError
from bertfeat.records import InputFile

READERS: tuple[type[VectorReader], ...] = (NpyReader, Hdf5Reader, ParquetVectors, GoogleReader)
_ROW_FORMATS = {CorpusFormat.TXT, *TABLE_OF, *WORD_FORMATS}
VECTOR_READER_OF = {reader.format: reader for reader in READERS}


def vector_file(path: str) -> InputFile:
    """Describe a file of vectors.

    Raises:
        InputError: The file does not exist or has no bytes, or its ending names no format.
    """

    def choose(path: str) -> tuple[str, str | None]:
        (*_, ending), compression = endings_of(path)
        found = next((reader for reader in READERS if ending in reader.endings), None)
        if found is None:
            known = ", ".join(ending for reader in READERS for ending in reader.endings)
            hint = "save one array with numpy.save" if ending == ".npz" else "rename the file"
            raise InputError(f"ending {ending!r} must be one of {known}; {hint}", path=path)
        if compression is not None and not found.is_compressible:
            raise InputError(f"{found.format} is not read from .gz or .zst; decompress it", path=path)
        return found.format, compression

    return local_file(path, choose)


def file_of_rows(path: str) -> InputFile:
    """Describe the file that `ids` names.

    Raises:
        InputError: The file does not exist or has no bytes, or its ending names no format.
    """

    def choose(path: str) -> tuple[str, str | None]:
        (*_, ending), compression = endings_of(path)
        found = READER_OF_ENDING.get(ending)
        if found is None or found.format not in _ROW_FORMATS:
            known = ", ".join(ending for ending, reader in READER_OF_ENDING.items() if reader.format in _ROW_FORMATS)
            raise InputError(f"ending {ending!r} must be one of {known}; rename or convert the file", path=path)
        if compression is not None and found.is_compressed:
            raise InputError(f"{found.format} is compressed inside; decompress the file", path=path)
        return found.format, compression

    return local_file(path, choose)


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
    if file.format in TABLE_OF:
        return TableRows(TABLE_OF[file.format](file), level)
    if level is not Level.WORD:
        raise InputError(f"{file.format} has words, and the vectors are of sentences; pass a table", path=file.path)
    return SentenceRows(file)
