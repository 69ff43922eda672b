"""Files of word vectors: text of word2vec, fastText and GloVe, and word2vec's binary format, also as .gz.

A file becomes a folder as model2vec has it, once, in the user's cache: vectors, and a tokenizer of its words. A word
that is repeated has the vector of its first row, as in gensim.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import re
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from bertfeat.durable.files import digest_of
from bertfeat.durable.publication import publish_folder
from bertfeat.durable.records import encode
from bertfeat.durable.usercache import cache_path
from bertfeat.encoder.filedigests import weights_digest
from bertfeat.encoder.tokenvectors import MODEL_TYPE, WordFile
from bertfeat.encoder.weights import SINGLE
from bertfeat.errors import CheckpointError, RunError, StoreError
from bertfeat.records import Float32Array

_MAX_DIM = 65_536
# The longest number of a text file in bytes, and the longest word; a longer line is not one of word vectors.
_MAX_NUMBER, _MAX_WORD = 64, 65_536
_CHUNK = 1 << 20
_BLOCK_VALUES = 1 << 20
_EXPECTED = "expected a word and its numbers in each line, with one space between them"
# The folders in the cache; the number is that of their form.
_FOLDERS = "words-1"
# Of a safetensors file: the length of its header, the header, and spaces, since the number of rows is known last.
_HEADER_BYTES = 256
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


class _MadeMeanwhile(Exception):
    """Another process has made the folder."""


def words_folder(path: Path) -> Path:
    """Return the folder of a file of word vectors, which is made in the user's cache if it is not there.

    `config.json` has the `WordFile` beside the settings of model2vec. The last row is that of unknown words.

    Raises:
        CheckpointError: The file is not one of word vectors, is damaged, or cannot be read; or the cache cannot be
            written.
    """

    def check() -> None:
        if folder.is_dir():
            raise _MadeMeanwhile

    sha256 = weights_digest([path])
    try:
        folder = cache_path(_FOLDERS, sha256)
        if not folder.is_dir():
            layout = _find_layout(path)
            with contextlib.suppress(_MadeMeanwhile), publish_folder(folder, check) as new:
                _write(layout, new)
                if weights_digest([path]) != sha256:
                    raise CheckpointError(f"{path}: changes while it is read; wait until it is whole")
    except (StoreError, RunError, RuntimeError, OSError) as error:
        remedy = "set BERTFEAT_CACHE to a folder that can be written"
        raise CheckpointError(f"{path}: its vectors are kept in a cache, and {error}; {remedy}") from error
    return folder


def _write(layout: _Layout, folder: Path) -> None:
    """Write the files of a folder; memory holds the words, and the vectors of a block."""
    words: dict[str, int] = {}
    n_rows = n_left_out = n_cased = n_longer = 0
    with (folder / SINGLE).open("wb") as file:
        file.write(bytes(_HEADER_BYTES))
        rows = _rows(layout)
        while block := list(itertools.islice(rows, max(1, _BLOCK_VALUES // layout.dim))):
            n_rows += len(block)
            new = []
            for row in block:
                word = _decoded(layout, row)
                n_longer += _NUMBER_AT_END.search(word) is not None
                n_left_out += not word
                if word and word not in words:
                    words[word] = len(words)
                    n_cased += word[0] not in "<[" and word.lower() != word
                    new.append(row)
            if new:
                file.write(_values_in(layout, new).astype("<f4", copy=False).tobytes())
        n_bytes = file.write(bytes(4 * layout.dim)) * (len(words) + 1)
        arrays = {"dtype": "F32", "shape": [len(words) + 1, layout.dim], "data_offsets": [0, n_bytes]}
        header = json.dumps({"embeddings": arrays}).ljust(_HEADER_BYTES - 8)
        file.seek(0)
        file.write(struct.pack("<Q", len(header)) + header.encode())
    if not words:
        raise CheckpointError(f"{layout.path}: holds no words")
    if 2 * n_longer > n_rows:
        # The first row lacks numbers, a header is damaged, or a tab follows each word.
        raise CheckpointError(f"{layout.path}:1: vectors of {layout.dim} numbers, but most rows have more; {_EXPECTED}")
    n_repeated, digest = n_rows - n_left_out - len(words), digest_of(folder / SINGLE)
    found = WordFile(layout.title, len(words), n_repeated, n_left_out, is_uncased=not n_cased, digest=digest)
    (folder / "config.json").write_bytes(encode({"model_type": MODEL_TYPE, "max_length": None, "word_file": found}))
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": False}
    tokenizer = {
        "added_tokens": [],
        "normalizer": {**normalizer, "lowercase": found.is_uncased},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        # No file has a row for the empty word.
        "model": {"type": "WordLevel", "vocab": {**words, "": len(words)}, "unk_token": ""},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")


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
