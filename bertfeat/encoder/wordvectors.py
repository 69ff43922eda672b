"""Reader of word vectors in a file: text of word2vec, fastText and GloVe, and word2vec's binary format, also as .gz.

The words are read first, and each row's number of fields is checked. The numbers are read when the vectors are loaded.
A word that is repeated has the vector of its first row, as in gensim.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import itertools
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from bertfeat.encoder.filedigests import weights_digest
from bertfeat.errors import CheckpointError
from bertfeat.records import Float32Array

_MAX_DIM = 65_536
# The longest number of a text file in bytes, and the longest word; a longer line is not one of word vectors.
_MAX_NUMBER, _MAX_WORD = 64, 65_536
_CHUNK = 1 << 20
_BLOCK_VALUES = 1 << 20
_EXPECTED = "expected a word and its numbers in each line, with one space between them"
# Changes when the words of a file are found in text by other rules.
_WORD_RULES = "bertfeat words 1"
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


class _Layout(NamedTuple):
    """How the rows of a file are laid out; `n_rows` is the number in the header, None without a header."""

    path: Path
    title: str
    dim: int
    n_rows: int | None
    is_binary: bool = False


class _Row(NamedTuple):
    """A row: its number for messages (the line of a text file), its word, and its numbers as they are in the file."""

    number: int
    word: bytes
    numbers: bytes


@dataclass(frozen=True, slots=True)
class WordVectors:
    """A file of word vectors whose words were read.

    Attributes:
        layout: How its rows are laid out.
        rows: The row of each word, from 0 on; of a word that is repeated, the first one.
        n_repeated: Rows of words that came before.
        n_left_out: Rows whose word is empty or not UTF-8.
        is_uncased: No word has an upper-case letter, so that text is lower-cased; marks such as `<UNK>` do not count.
    """

    layout: _Layout
    rows: Mapping[str, int] = field(repr=False)
    n_repeated: int
    n_left_out: int
    is_uncased: bool

    @property
    def file(self) -> Path:
        """The file, resolved."""
        return self.layout.path

    @property
    def dim(self) -> int:
        """The numbers of each vector."""
        return self.layout.dim

    @property
    def n_rows(self) -> int:
        """The rows of the file, repeated words included; this is also the id of all words that it lacks."""
        return self.n_left_out + self.n_repeated + len(self.rows)

    @property
    def n_ids(self) -> int:
        """The ids that have a vector; that of unknown words is zero."""
        return self.n_rows + 1

    @property
    def n_values(self) -> int:
        """The numbers in the file."""
        return self.n_rows * self.dim

    @property
    def tokenizer_sha256(self) -> str:
        """sha256 (hex) over the rules that find words in text."""
        return hashlib.sha256(f"{_WORD_RULES}, uncased {self.is_uncased}".encode()).hexdigest()

    def sentence_model(self) -> None:
        """Return None: a file of words says nothing of texts."""

    def read(self) -> tuple[Float32Array, None, None]:
        """Return the vector of each id, float32 (n_ids, dim), and nothing else, as `TokenVectors.read` does.

        Raises:
            CheckpointError: A field is not a finite number.
        """
        table = np.zeros((self.n_ids, self.dim), dtype=np.float32)
        rows, end = _rows(self.layout), 0
        while block := list(itertools.islice(rows, max(1, _BLOCK_VALUES // self.dim))):
            table[end : end + len(block)] = _values_in(self.layout, block)
            end += len(block)
        return table, None, None


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
    for n_rows, row in enumerate(_rows(layout), start=1):
        word = _decoded(layout, row)
        n_longer += _NUMBER_AT_END.search(word) is not None
        if not word:
            n_left_out += 1
        elif rows.setdefault(word, n_rows - 1) == n_rows - 1:
            n_cased += word[0] not in "<[" and word.lower() != word
    if not rows:
        raise CheckpointError(f"{path}: holds no words")
    if 2 * n_longer > n_rows:
        # The first row lacks numbers, a header is damaged, or a tab follows each word.
        raise CheckpointError(f"{path}:1: vectors of {layout.dim} numbers, but most rows have more; {_EXPECTED}")
    return WordVectors(layout, rows, n_rows - n_left_out - len(rows), n_left_out, is_uncased=not n_cased)


def _decoded(layout: _Layout, row: _Row) -> str:
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
        raise CheckpointError(f"{layout.path}: row {row.number}: {row.word!r:.60} {reason}; write the vectors as text")
    return word


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


def _find_layout(path: Path) -> _Layout:
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
                return _Layout(path, "word2vec binary", dim, n_rows, is_binary=True)
            layout = _Layout(path, "word2vec or fastText text", dim, n_rows)
            if second.strip():
                _values_of(layout, _text_row(layout, 2, second))
            return layout
    if not first.strip():
        raise CheckpointError(f"{path}: the first line is empty; {_EXPECTED}")
    dim = first.rstrip().count(b" ")
    if not 1 <= dim <= _MAX_DIM or b"\0" in first:
        raise CheckpointError(f"{path}: not a file of word vectors ({_EXPECTED}), and other models are folders")
    layout = _Layout(path, "GloVe text", dim, None)
    _values_of(layout, _text_row(layout, 1, first))
    return layout


def _is_binary(row: bytes, dim: int, after: bytes) -> bool:
    """Return whether the first row after a header, up to a line end, holds its numbers as bytes.

    `after` are bytes that follow: a line end may be the first byte of a number.
    """
    fields = row.rstrip().rsplit(b" ", dim)[1:]
    return any(field.translate(None, _NUMBERS) for field in fields) or (not fields and b"\0" in after)


def _rows(layout: _Layout) -> Iterator[_Row]:
    """Yield the rows of a file; with a header, as many as it names."""
    n_rows = 0
    with _opened(layout.path) as file:
        if layout.n_rows is not None:
            file.readline(_CHUNK)
        for row in (_binary_rows if layout.is_binary else _text_rows)(layout, file):
            n_rows += 1
            yield row
    if layout.n_rows not in (None, n_rows):
        said = f"the header names {layout.n_rows:,} words, and there are {n_rows:,}"
        raise CheckpointError(f"{layout.path}:1: {said}; download or copy it again")


def _text_rows(layout: _Layout, file: _File) -> Iterator[_Row]:
    first, limit = 1 if layout.n_rows is None else 2, _MAX_WORD + layout.dim * _MAX_NUMBER
    for number, line in enumerate(iter(partial(file.readline, limit), b""), start=first):
        if len(line) == limit:
            raise CheckpointError(f"{layout.path}:{number}: the line has {limit:,} bytes or more; {_EXPECTED}")
        if not line.isspace():
            yield _text_row(layout, number, line)


def _text_row(layout: _Layout, number: int, line: bytes) -> _Row:
    line = line.rstrip()
    n_numbers = line.count(b" ")
    if n_numbers < layout.dim:
        said = f"{n_numbers} numbers after the word, not {layout.dim}"
        raise CheckpointError(f"{layout.path}:{number}: {said}; {_EXPECTED}")
    # Some words of published files have spaces. Splitting all of a line takes longer.
    word = line.partition(b" ")[0] if n_numbers == layout.dim else line.rsplit(b" ", layout.dim)[0]
    return _Row(number, word, line[len(word) + 1 :])


def _binary_rows(layout: _Layout, file: _File) -> Iterator[_Row]:
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
                raise CheckpointError(f"{layout.path}: row {number + 1}: no end of a word; download or copy it again")
            continue
        # Some writers end each vector with a line end.
        word, start, at = chunk[at:space].lstrip(b"\n"), space + 1, space + 1 + n_bytes
        number += 1
        yield _Row(number, word, chunk[start:at])
    if number == layout.n_rows and (chunk[at:] + file.read(2)).strip():
        raise CheckpointError(
            f"{layout.path}: bytes remain after row {number:,}, and the header names {layout.n_rows:,} rows of "
            f"{layout.dim} numbers; download or copy it again"
        )


def _values_in(layout: _Layout, block: list[_Row]) -> Float32Array:
    """Return the numbers of some rows, float32 (n_rows, dim)."""
    numbers = [row.numbers for row in block]
    values = np.frombuffer(b"".join(numbers), "<f4") if layout.is_binary else _parsed(numbers)
    if values is None or len(values) != len(block) * layout.dim or not np.isfinite(values).all():
        return np.stack([_values_of(layout, row) for row in block])
    return values.reshape(len(block), layout.dim)


def _parsed(numbers: list[bytes]) -> Float32Array | None:
    """Return the numbers of lines, float32 (n,), rounded by way of float64 as gensim does; None if one is not plain."""
    # polars reads a number in a tenth of the time that NumPy takes.
    import polars as pl

    column, schema = b" ".join(numbers), {"number": pl.Float64}
    try:
        table = pl.read_csv(column, has_header=False, schema=schema, eol_char=" ", quote_char=None)
    except pl.exceptions.PolarsError:
        return None
    with np.errstate(over="ignore"):
        found: Float32Array = table["number"].to_numpy().astype(np.float32)
    return found


def _values_of(layout: _Layout, row: _Row) -> Float32Array:
    """Return the numbers of one row, float32 (dim,), or name the one at fault."""
    where = f"{layout.path}: row {row.number}" if layout.is_binary else f"{layout.path}:{row.number}"
    if layout.is_binary:
        values = np.frombuffer(row.numbers, "<f4")
        fields = list(map(str, values.tolist()))
    else:
        fields = row.numbers.decode(errors="replace").split(" ")
        with np.errstate(over="ignore"):
            values = np.array([_number(where, text) for text in fields], dtype=np.float64).astype(np.float32)
    if not np.isfinite(values).all():
        wrong, word = fields[int(np.argmin(np.isfinite(values)))], row.word.decode(errors="replace")
        raise CheckpointError(f"{where}: the vector of {word!r:.60} holds {wrong:.40}; correct or remove the row")
    return values


def _number(where: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CheckpointError(f"{where}: {text!r:.40} is not a number; {_EXPECTED}") from None
