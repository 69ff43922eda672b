"""Static vectors: folders of model2vec, and files of word vectors, which become such folders.

A file is text of word2vec, fastText or GloVe, or in word2vec's binary format, also as .gz. It is read once into a
folder of the user's cache: vectors, and a tokenizer of its words. A repeated word has the vector of its first row, as
in gensim.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from safetensors import safe_open

from bertfeat.durable.files import digest_of
from bertfeat.durable.publication import publish_folder
from bertfeat.durable.records import encode
from bertfeat.durable.user_cache import cache_path
from bertfeat.encoder.file_digests import named_digest, weights_digest
from bertfeat.encoder.sentence_model import NormalizeStep, SentenceMode, SentenceModel
from bertfeat.encoder.weights import SINGLE, inside, read_header
from bertfeat.errors import CheckpointError, RunError, StoreError, checkpoint_errors
from bertfeat.records import Float32Array, IntArray

MODEL_TYPE = "model2vec"
# The arrays of a file, and the types in which they are used. With a mapping, several tokens share a row of embeddings.
_TYPES = {"embeddings": np.float32, "mapping": np.int64, "weights": np.float32}
_MAX_DIM = 65_536
# Changes when the words of a file are found in text by other rules.
_WORD_RULES = "bertfeat words 1"
_CHUNK = 1 << 20
# Longer than any row.
_MAX_ROW = 8 << 20
_BLOCK_VALUES = 1 << 20
_EXPECTED = "expected a word and its numbers in each line, with one space between them"
# The folders in the cache; the number is that of their form.
_FOLDERS = "words-1"
# Of a safetensors file: the length of its header, the header, and spaces, since the number of rows is known last.
_HEADER_BYTES = 256
_GZIP, _BOM = b"\x1f\x8b", b"\xef\xbb\xbf"
# The first bytes of files that are often taken for word vectors, and what to do.
_OTHERS = {
    b"\xba\x16\x4f\x2f": "a model of fastText with subwords (.bin), which is not supported; use its vectors "
    "of words (.vec)",
    b"PK\x03\x04": "a zip archive, or weights of torch; unzip vectors, and name another model by its folder",
    b"\x80": "a pickle, such as a .kv or .model of gensim, which can run code; save_word2vec_format of gensim writes "
    "a file of vectors",
}
_NUMBER_AT_END = re.compile(r"\s[-+.eE\d]+\Z")
_NUMBERS = b"0123456789+-.eEinfaINFA \t\r\n"
_File: TypeAlias = "io.BufferedReader | gzip.GzipFile"


@dataclass(frozen=True, slots=True)
class WordFile:
    """What a folder keeps of the file of word vectors that it was made of.

    `n_repeated` rows have words that came before, and `n_left_out` words that are empty or not UTF-8. If `is_uncased`,
    no word has an upper-case letter, so that text is lower-cased; marks such as `<UNK>` do not count. `digest` is the
    xxh3-128 (hex) of the safetensors file.
    """

    layout: str
    n_words: int
    n_repeated: int
    n_left_out: int
    is_uncased: bool
    digest: str


@dataclass(frozen=True, slots=True)
class _Settings:
    """What is read of config.json; the length is that which model2vec takes if the file names none."""

    normalize: bool = False
    max_length: Annotated[int, Meta(ge=1)] | None = 512
    word_file: WordFile | None = None


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """The vectors of a model2vec folder, checked and not loaded.

    The safetensors `file` holds `n_values` numbers: the vectors of `n_ids` token ids, and more. The mean of a text is
    divided by its length if the model `normalizes`; model2vec reads `max_length` tokens of a text, or all. `words` is
    the file of word vectors that the folder was made of, if it was.
    """

    file: Path
    n_ids: int
    dim: int
    n_values: int
    tokenizer_sha256: str
    normalizes: bool
    max_length: int | None
    words: WordFile | None

    def sentence_model(self) -> SentenceModel | None:
        """Return how model2vec makes the vector of a text; None for word vectors, which say nothing of texts."""
        if self.words is not None:
            return None
        steps = (NormalizeStep(),) if self.normalizes else ()
        return SentenceModel((SentenceMode.MEAN,), True, steps, max_length=self.max_length, has_special_tokens=False)

    def read(self) -> tuple[Float32Array, IntArray | None, Float32Array | None]:
        """Return the vectors float32 (n_rows, dim), the row of each token (n_ids,), and the weight of each (n_ids,).

        Raises:
            CheckpointError: A row is out of range, or a number is not finite.
        """
        if self.words is not None and digest_of(self.file) != self.words.digest:
            raise CheckpointError(
                f"its bytes are not those that were written; delete {self.file.parent}", place=self.file
            )
        with checkpoint_errors(self.file, "it does not load"), safe_open(self.file, framework="np") as file:
            names = [name for name in _TYPES if name in file.keys()]  # noqa: SIM118
            arrays: dict[str, Any] = {name: file.get_tensor(name).astype(_TYPES[name], copy=False) for name in names}
        for name, values in arrays.items():
            if not np.isfinite(values).all():
                raise CheckpointError(
                    f"{name} holds nan or infinity; download or copy the model again", place=self.file
                )
        vectors, mapping = arrays["embeddings"], arrays.get("mapping")
        if mapping is not None and not 0 <= int(mapping.min()) <= int(mapping.max()) < len(vectors):
            raise CheckpointError(f"mapping names rows outside of the {len(vectors):,} of embeddings", place=self.file)
        return vectors, mapping, arrays.get("weights")


def open_token_vectors(folder: Path, config: Mapping[str, Any]) -> TokenVectors:
    """Check the arrays and the settings of a model2vec folder.

    Raises:
        CheckpointError: An array is missing, or a shape, a type or a setting is wrong.
    """
    file = inside(folder, SINGLE)
    arrays = read_header(file)
    kind, shape = arrays.get("embeddings", ("no array", ()))
    if kind not in ("F32", "F16", "F64", "I8") or len(shape) != 2 or not shape[0] or not 1 <= shape[1] <= _MAX_DIM:
        raise CheckpointError(
            f"embeddings is {kind} {list(shape)}; expected numbers (tokens, 1 to {_MAX_DIM})", place=file
        )
    n_ids = arrays["mapping"][1][0] if "mapping" in arrays else shape[0]
    if "weights" in arrays and arrays["weights"][1][0] < n_ids:
        raise CheckpointError(f"{arrays['weights'][1][0]} weights for {n_ids} tokens", place=file)
    with checkpoint_errors(folder / "config.json", "does not fit model2vec"):
        settings = msgspec.convert(config, _Settings)
    words = settings.word_file
    rules = hashlib.sha256(f"{_WORD_RULES}, uncased {words.is_uncased}".encode()).hexdigest() if words else None
    return TokenVectors(
        file,
        n_ids,
        dim=shape[1],
        n_values=sum(math.prod(found) for _, found in arrays.values()),
        tokenizer_sha256=rules or named_digest([folder / "tokenizer.json"]),
        normalizes=settings.normalize,
        max_length=settings.max_length,
        words=words,
    )


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
    n_rows = n_left_out = 0
    with (folder / SINGLE).open("wb") as file:
        file.write(bytes(_HEADER_BYTES))
        rows = _rows(layout)
        while block := list(itertools.islice(rows, max(1, _BLOCK_VALUES // layout.dim))):
            n_rows += len(block)
            new = []
            for row in block:
                word = _decoded(layout, row)
                n_left_out += not word
                if word and word not in words:
                    words[word] = len(words)
                    new.append(row)
            if new:
                file.write(_numbers(layout, new).astype("<f4", copy=False).tobytes())
        n_bytes = file.write(bytes(4 * layout.dim)) * (len(words) + 1)
        arrays = {"dtype": "F32", "shape": [len(words) + 1, layout.dim], "data_offsets": [0, n_bytes]}
        header = json.dumps({"embeddings": arrays}).ljust(_HEADER_BYTES - 8)
        file.seek(0)
        file.write(len(header).to_bytes(8, "little") + header.encode())
    if not words:
        raise CheckpointError(f"{layout.path}: holds no words")
    if 2 * sum(_NUMBER_AT_END.search(word) is not None for word in words) > len(words):
        # The first row lacks numbers, a header is damaged, or a tab follows each word.
        raise CheckpointError(f"{layout.path}:1: vectors of {layout.dim} numbers, but most rows have more; {_EXPECTED}")
    n_repeated = n_rows - n_left_out - len(words)
    is_uncased = all(word[0] in "<[" or word.lower() == word for word in words)
    found = WordFile(layout.title, len(words), n_repeated, n_left_out, is_uncased, digest_of(folder / SINGLE))
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
        with path.open("rb") as packed:
            file = gzip.GzipFile(fileobj=packed) if packed.peek(2)[:2] == _GZIP else packed
            if file.peek(3)[:3] == _BOM:
                file.read(3)
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise CheckpointError(f"{path}: cannot be read to its end ({error}); download or copy it again") from None


def _find_layout(path: Path) -> _Layout:
    with _opened(path) as file:
        start = file.peek(8)[:8]
        first, second = file.readline(_MAX_ROW), file.readline(_MAX_ROW)
    for magic, what in _OTHERS.items():
        if start.startswith(magic):
            raise CheckpointError(f"{path}: {what}")
    header = first.split()
    has_header = len(header) == 2 and all(part.isdigit() for part in header)
    dim = int(header[1]) if has_header else first.rstrip().count(b" ")
    if not 1 <= dim <= _MAX_DIM or b"\0" in first:
        raise CheckpointError(f"{path}:1: not a file of word vectors ({_EXPECTED}), and other models are folders")
    if not has_header:
        return _Layout(path, "GloVe text", dim, None)
    # Numbers in bytes; a line end may be the first of them.
    fields = second.rstrip().rsplit(b" ", dim)[1:]
    if not fields or any(field.translate(None, _NUMBERS) for field in fields):
        return _Layout(path, "word2vec binary", dim, int(header[0]), is_binary=True)
    return _Layout(path, "word2vec or fastText text", dim, int(header[0]))


def _rows(layout: _Layout) -> Iterator[_Row]:
    """Yield the rows of a file; with a header, as many as it names."""
    n_rows = 0
    with _opened(layout.path) as file:
        if layout.n_rows is not None:
            file.readline(_MAX_ROW)
        for row in (_binary_rows if layout.is_binary else _text_rows)(layout, file):
            n_rows += 1
            yield row
    if layout.n_rows not in (None, n_rows):
        said = f"the header names {layout.n_rows:,} words, and there are {n_rows:,}"
        raise CheckpointError(f"{layout.path}:1: {said}; download or copy it again")


def _text_rows(layout: _Layout, file: _File) -> Iterator[_Row]:
    first = 1 if layout.n_rows is None else 2
    for number, line in enumerate(iter(partial(file.readline, _MAX_ROW), b""), start=first):
        row = line.rstrip()
        n_numbers = row.count(b" ")
        if row and n_numbers < layout.dim:
            said = f"{n_numbers} numbers after the word, not {layout.dim}"
            raise CheckpointError(f"{layout.path}:{number}: {said}; {_EXPECTED}")
        if row:
            # Some words of published files have spaces. Splitting all of a line takes longer.
            word = row.partition(b" ")[0] if n_numbers == layout.dim else row.rsplit(b" ", layout.dim)[0]
            yield _Row(number, word, row[len(word) + 1 :])


def _binary_rows(layout: _Layout, file: _File) -> Iterator[_Row]:
    n_bytes, chunk, at, number = 4 * layout.dim, b"", 0, 1
    while True:
        start = chunk.find(b" ", at) + 1
        if start and start + n_bytes <= len(chunk):
            # Some writers end each vector with a line end.
            yield _Row(number, chunk[at : start - 1].lstrip(b"\n"), chunk[start : start + n_bytes])
            at, number = start + n_bytes, number + 1
        elif len(chunk) - at < _MAX_ROW and (more := file.read(_CHUNK)):
            chunk, at = chunk[at:] + more, 0
        else:
            break
    if chunk[at:].strip():
        raise CheckpointError(f"{layout.path}: row {number} is not whole; download or copy it again")


def _numbers(layout: _Layout, rows: list[_Row]) -> Float32Array:
    """Return the numbers of some rows, float32 (n_rows, dim); those of text come from float64, as in gensim."""
    if layout.is_binary:
        values = np.frombuffer(b"".join(row.numbers for row in rows), "<f4")
    else:
        # polars reads a number in a tenth of the time that NumPy takes. The separator is in no row.
        import polars as pl

        column, schema = b" ".join(row.numbers for row in rows), {"number": pl.Float64}
        table = pl.read_csv(
            column, has_header=False, schema=schema, eol_char=" ", separator="\n", quote_char=None, ignore_errors=True
        )
        with np.errstate(over="ignore"):
            values = table["number"].to_numpy().astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        row, place = rows[wrong[0] // layout.dim], wrong[0] % layout.dim
        field = str(values[wrong[0]]) if layout.is_binary else row.numbers.split(b" ")[place].decode(errors="replace")
        where = f"{layout.path}: row {row.number}" if layout.is_binary else f"{layout.path}:{row.number}"
        said = f"the vector of {row.word.decode(errors='replace')!r:.60} holds {field!r:.40}, which is not a number"
        raise CheckpointError(f"{where}: {said}; {_EXPECTED}")
    return values.reshape(len(rows), layout.dim)
