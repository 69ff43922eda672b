"""Reader of word vectors in a file: text of word2vec, fastText and GloVe, and word2vec's binary format, also as .gz.

The words are read first, and each row's number of fields is checked. The numbers are read when the vectors are loaded.
A word that is repeated has the vector of its first row, as in gensim.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bertfeat.encoder.filedigests import weights_digest
from bertfeat.encoder.vectorrows import EXPECTED, Layout, Row, values_in, values_of
from bertfeat.errors import CheckpointError
from bertfeat.records import Float32Array

_MAX_DIM = 65_536
# The longest number of a text file in bytes, and the longest word; a longer line is not one of word vectors.
_MAX_NUMBER, _MAX_WORD = 64, 65_536
_CHUNK = 1 << 20
_BLOCK_VALUES = 1 << 20
_GZIP, _BOM = b"\x1f\x8b", b"\xef\xbb\xbf"
_FASTTEXT = struct.pack("<i", 793712314)
# The first bytes of files that are often taken for word vectors, and what to do.
_OTHERS = {
    _FASTTEXT: "a model of fastText with subwords (.bin), which is not supported; use its vectors of words (.vec)",
    b"PK\x03\x04": "a zip archive, or weights of torch; unzip vectors, and name another model by its folder",
    b"\x80": "a pickle, such as a .kv or .model of gensim, which can run code; save_word2vec_format of gensim writes "
    "a file of vectors",
    b"PAR1": "a Parquet file, not word vectors",
    b"\x89HDF": "an HDF5 file, not word vectors",
    b"\x93NUMPY": "a NumPy array without words",
    b"GGUF": "a GGUF model, not word vectors",
}
_NUMBER_AT_END = re.compile(r"\s[-+.eE\d]+\Z")
_NUMBERS = b"0123456789+-.eEinfaINFA \t\r\n"
_File: TypeAlias = "io.BufferedReader[Any]"


@dataclass(frozen=True, slots=True)
class WordVectors:
    """A file of word vectors whose words were read.

    Attributes:
        path: The file, resolved.
        layout: How its rows are laid out.
        rows: The row of each word, from 0 on; of a word that is repeated, the first one.
        n_repeated: Rows of words that came before.
        n_left_out: Rows whose word is empty or not UTF-8.
        is_uncased: No word has an upper-case letter, so that text is lower-cased; marks such as `<UNK>` do not count.
    """

    path: Path
    layout: Layout
    rows: Mapping[str, int] = field(repr=False)
    n_repeated: int
    n_left_out: int
    is_uncased: bool

    @property
    def dim(self) -> int:
        """The numbers of each vector."""
        return self.layout.dim

    @property
    def n_rows(self) -> int:
        """The rows of the file, repeated words included."""
        return self.n_left_out + self.n_repeated + len(self.rows)


def open_word_vectors(path: Path) -> WordVectors:
    """Find the layout of a file of word vectors, and read its words.

    Raises:
        CheckpointError: The file is not one of word vectors, is damaged, or cannot be read.
    """
    return _scanned(path, weights_digest([path]))


@lru_cache(maxsize=2)
def _scanned(path: Path, sha256: str) -> WordVectors:  # noqa: ARG001 - the digest tells whether the words are known
    layout = _find_layout(path)
    rows: dict[str, int] = {}
    n_rows = n_left_out = n_cased = n_longer = 0
    for n_rows, row in enumerate(_rows(path, layout), start=1):
        word = _decoded(path, layout, row)
        n_longer += _NUMBER_AT_END.search(word) is not None
        if not word:
            n_left_out += 1
        elif rows.setdefault(word, n_rows - 1) == n_rows - 1:
            n_cased += word[0] not in "<[" and word.lower() != word
    if not rows:
        raise CheckpointError(f"{path}: holds no words")
    if 2 * n_longer > n_rows:
        # The first row lacks numbers, a header is damaged, or a tab follows each word.
        raise CheckpointError(f"{path}:1: vectors of {layout.dim} numbers, but most rows have more; {EXPECTED}")
    n_repeated = n_rows - n_left_out - len(rows)
    return WordVectors(path, layout, rows, n_repeated, n_left_out, is_uncased=not n_cased)


def _decoded(path: Path, layout: Layout, row: Row) -> str:
    """Return the word of a row, empty if it is not UTF-8."""
    word, is_right = "", not layout.is_binary
    try:
        word = row.word.decode()
        is_right |= min(word, default=" ") >= " "
    except UnicodeDecodeError as error:
        # word2vec.c cuts long words off, also inside of a character.
        is_right |= error.reason == "unexpected end of data"
    if not is_right:
        reason = "is not a word: another one has a space, which word2vec's binary format cannot hold, or is not UTF-8"
        raise CheckpointError(f"{path}: row {row.number}: {row.word!r:.60} {reason}; write the vectors as text")
    return word


def read_vectors(found: WordVectors) -> Float32Array:
    """Return the vector of each row, float32 (n_rows + 1, dim); the last one, of unknown words, is zero.

    Raises:
        CheckpointError: A field is not a finite number.
    """
    table = np.zeros((found.n_rows + 1, found.dim), dtype=np.float32)
    block: list[Row] = []
    size, end = max(1, _BLOCK_VALUES // found.dim), 0
    for row in _rows(found.path, found.layout):
        block.append(row)
        if len(block) == size:
            table[end : end + size] = values_in(found.path, found.layout, block)
            end += size
            block.clear()
    if block:
        table[end : end + len(block)] = values_in(found.path, found.layout, block)
    return table


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_File]:
    """Open a file, decompressed if it is a .gz; errors while it is read become errors of the file."""
    try:
        with contextlib.ExitStack() as stack:
            file: _File = stack.enter_context(io.BufferedReader(io.FileIO(path), _CHUNK))
            if file.peek(2)[:2] == _GZIP:
                unpacked = stack.enter_context(gzip.GzipFile(fileobj=file, mode="rb"))
                file = stack.enter_context(io.BufferedReader(unpacked, _CHUNK))
            if file.peek(3)[:3] == _BOM:
                file.read(3)
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CheckpointError(f"{path}: not a whole .gz file ({error}); download or copy it again") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None


def _find_layout(path: Path) -> Layout:
    with _opened(path) as file:
        start = file.peek(8)[:8]
        for magic, what in _OTHERS.items():
            if start.startswith(magic):
                raise CheckpointError(f"{path}: {what}")
        first = file.readline(_CHUNK)
        header = first.split()
        if len(header) == 2 and all(part.isdigit() for part in header):
            n_rows, dim = (int(part[:18]) for part in header)
            if not 1 <= dim <= _MAX_DIM:
                raise CheckpointError(f"{path}:1: vectors of {dim} numbers; expected 1 to {_MAX_DIM}")
            second = file.readline(_CHUNK)
            if _is_binary(second, dim, file.read(_CHUNK)):
                return Layout("word2vec binary", dim, n_rows, is_binary=True)
            layout = Layout("word2vec or fastText text", dim, n_rows, is_binary=False)
            return _checked(path, layout, _text_row(path, layout, 2, second) if second.strip() else None)
    if not first.strip():
        raise CheckpointError(f"{path}: the first line is empty; {EXPECTED}")
    dim = first.rstrip().count(b" ")
    if not 1 <= dim <= _MAX_DIM or b"\0" in first:
        raise CheckpointError(f"{path}: not a file of word vectors ({EXPECTED}), and other models are folders")
    layout = Layout("GloVe text", dim, None, is_binary=False)
    return _checked(path, layout, _text_row(path, layout, 1, first))


def _is_binary(row: bytes, dim: int, after: bytes) -> bool:
    """Return whether the first row after a header, up to a line end, holds its numbers as bytes.

    `after` are bytes that follow: a line end may be the first byte of a number.
    """
    fields = row.rstrip().rsplit(b" ", dim)[1:]
    return any(field.translate(None, _NUMBERS) for field in fields) or (not fields and b"\0" in after)


def _checked(path: Path, layout: Layout, first: Row | None) -> Layout:
    """Return a layout whose first row holds numbers."""
    if first is not None:
        values_of(path, layout, first)
    return layout


def _rows(path: Path, layout: Layout) -> Iterator[Row]:
    """Yield the rows of a file; with a header, as many as it names."""
    n_rows = 0
    with _opened(path) as file:
        if layout.n_rows is not None:
            file.readline(_CHUNK)
        read = _binary_rows if layout.is_binary else _text_rows
        for row in read(path, layout, file):
            n_rows += 1
            yield row
    if layout.n_rows is not None and n_rows != layout.n_rows:
        raise CheckpointError(
            f"{path}:1: the header names {layout.n_rows:,} words, and there are {n_rows:,}; download or copy it again"
        )


def _text_rows(path: Path, layout: Layout, file: _File) -> Iterator[Row]:
    first, limit = 1 if layout.n_rows is None else 2, _MAX_WORD + layout.dim * _MAX_NUMBER
    for number, line in enumerate(iter(partial(file.readline, limit), b""), start=first):
        if len(line) == limit:
            raise CheckpointError(f"{path}:{number}: the line has {limit:,} bytes or more; {EXPECTED}")
        if not line.isspace():
            yield _text_row(path, layout, number, line)


def _text_row(path: Path, layout: Layout, number: int, line: bytes) -> Row:
    line = line.rstrip()
    n_numbers = line.count(b" ")
    if n_numbers < layout.dim:
        raise CheckpointError(f"{path}:{number}: {n_numbers} numbers after the word, not {layout.dim}; {EXPECTED}")
    if n_numbers == layout.dim:
        word, _, numbers = line.partition(b" ")
        return Row(number, word, numbers)
    # Some words of published files have spaces.
    word = line.rsplit(b" ", layout.dim)[0]
    return Row(number, word, line[len(word) + 1 :])


def _binary_rows(path: Path, layout: Layout, file: _File) -> Iterator[Row]:
    n_bytes, chunk, at, number = 4 * layout.dim, b"", 0, 0
    assert layout.n_rows is not None
    while number < layout.n_rows:
        space = chunk.find(b" ", at)
        if space < 0 or space + 1 + n_bytes > len(chunk):
            more = file.read(_CHUNK)
            chunk, at = chunk[at:] + more, 0
            if not more:
                break
            if chunk.find(b" ", 0, _MAX_WORD) < 0 and len(chunk) > _MAX_WORD:
                raise CheckpointError(f"{path}: row {number + 1}: no end of a word; download or copy it again")
            continue
        # Some writers end each vector with a line end.
        word, start, at = chunk[at:space].lstrip(b"\n"), space + 1, space + 1 + n_bytes
        number += 1
        yield Row(number, word, chunk[start:at])
    if number == layout.n_rows and (chunk[at:] + file.read(2)).strip():
        raise CheckpointError(
            f"{path}: bytes remain after row {number:,}, and the header names {layout.n_rows:,} rows of {layout.dim} "
            "numbers; download or copy it again"
        )
