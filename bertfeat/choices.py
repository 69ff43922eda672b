"""Choices of the settings: each a text, under its name on the command line and in plans."""

from __future__ import annotations

from enum import StrEnum


class _Choice(StrEnum):
    """A choice among texts, which is shown as its text."""

    def __repr__(self) -> str:
        return repr(str(self))


class Level(_Choice):
    """The unit of text that one row represents; `sentence` is the whole document."""

    TOKEN = "token"
    WORD = "word"
    SENTENCE = "sentence"


class Combine(_Choice):
    """How the selected layers become columns: one per layer (`none`), or one for all of them."""

    NONE = "none"
    CONCAT = "concat"
    SUM = "sum"
    MEAN = "mean"


class WordPooling(_Choice):
    """How the vectors of a word's tokens become one vector."""

    FIRST = "first"
    LAST = "last"
    MEAN = "mean"
    MAX = "max"


class UnknownWords(_Choice):
    """The vector of a word that static vectors lack: none, or zeros at the word level."""

    NULL = "null"
    ZERO = "zero"


class Pooling(_Choice):
    """How the vectors of a document's tokens become one vector; `model` is the model's own sentence embedding."""

    MEAN = "mean"
    MAX = "max"
    CLS = "cls"
    POOLER = "pooler"
    LASTTOKEN = "lasttoken"
    WEIGHTEDMEAN = "weightedmean"
    MODEL = "model"


class OnOverlong(_Choice):
    """What happens to a document that is longer than the model's limit."""

    WINDOW = "window"
    TRUNCATE = "truncate"
    ERROR = "error"


class StoreDtype(_Choice):
    """The type of the stored vectors, under its name in NumPy, Arrow, polars and torch."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"

    @property
    def width(self) -> int:
        """The bytes of one value."""
        return int(self.removeprefix("float")) // 8


class VectorEncoding(_Choice):
    """How a vector is stored in Parquet: as a fixed-size list or as fixed-size binary (little-endian)."""

    ARRAY = "array"
    BINARY = "binary"


class ComputeDtype(_Choice):
    """The type that the encoder computes in.

    `auto` is bfloat16 on CUDA from Ampere on and for weights in bfloat16, else float32.
    """

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class CorpusFormat(_Choice):
    """The format of a corpus file; `auto` uses the file ending."""

    AUTO = "auto"
    TXT = "txt"
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    CONLL = "conll"
    CONLLU = "conllu"


class BadRows(_Choice):
    """What happens to a row that cannot be read: the run ends, or the row is set aside and counted."""

    ERROR = "error"
    QUARANTINE = "quarantine"


class Runner(_Choice):
    """Where shards run: on this machine, or on a Ray cluster."""

    LOCAL = "local"
    RAY = "ray"
