"""Choices of the settings: each a text, under its name on the command line and in plans."""

from __future__ import annotations

from enum import StrEnum
from typing import Self, TypeVar

from bertfeat import extensions
from bertfeat.errors import UserError

_ADDED = {"CorpusFormat": "formats", "Pooling": "poolings", "WordPooling": "poolings"}

_Kind = TypeVar("_Kind", bound=StrEnum)


def one_of(kind: type[_Kind], what: str, name: str) -> _Kind:
    """Return the choice of a name; a UserError that begins with `what` lists the choices if it is unknown."""
    if name not in list(kind):
        raise UserError(f"{what} {name!r}: unknown; choose one of {', '.join(kind)}")
    return kind(name)


class Choice(StrEnum):
    """A choice among texts, which is shown as its text."""

    def __repr__(self) -> str:
        return repr(str(self))

    @classmethod
    def names(cls) -> list[str]:
        """Return all names, those of extensions last."""
        return [*cls, *(extensions.names(_ADDED[cls.__name__]) if cls.__name__ in _ADDED else ())]

    @property
    def added_by(self) -> str | None:
        """The package that adds this choice, with its version; None for one of bertfeat's own."""
        is_own = self.name in type(self).__members__
        return None if is_own else extensions.version_of(_ADDED[type(self).__name__], self)

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Return a choice that an installed package adds; None if there is none of this name."""
        if value not in cls.names():
            return None
        name = str(value)
        added = str.__new__(cls, name)
        added._name_, added._value_ = name.upper(), name
        cls._value2member_map_[name] = added
        return added


class Level(Choice):
    """The unit of text that one row represents; `sentence` is the whole document."""

    TOKEN = "token"
    WORD = "word"
    SPAN = "span"
    SENTENCE = "sentence"


class Task(Choice):
    """What a probe learns: one label of several, a number or several, or any number of labels."""

    CLASSIFY = "classify"
    REGRESS = "regress"
    MULTILABEL = "multilabel"


class Combine(Choice):
    """How the selected layers become columns: one per layer (`none`), or one for all of them."""

    NONE = "none"
    CONCAT = "concat"
    SUM = "sum"
    MEAN = "mean"


class WordPooling(Choice):
    """How the vectors of a word's tokens become one vector."""

    FIRST = "first"
    LAST = "last"
    MEAN = "mean"
    MAX = "max"


class SpanPooling(Choice):
    """How the vectors of a span's tokens become one vector; `ends` is the first and the last one, end to end."""

    MEAN = "mean"
    MAX = "max"
    FIRST = "first"
    LAST = "last"
    ENDS = "ends"


class SpanPair(Choice):
    """How the vectors of two spans become one: end to end, or the first minus the second; none if a row is of one."""

    NONE = "none"
    CONCAT = "concat"
    DIFF = "diff"


class ChunkContext(Choice):
    """What the encoder sees of a chunk: the document around it, or the chunk alone."""

    DOCUMENT = "document"
    ALONE = "alone"


class UnknownWords(Choice):
    """The vector of a word that static vectors lack: none, or zeros at the word level."""

    NULL = "null"
    ZERO = "zero"


class Pooling(Choice):
    """How the vectors of a document's tokens become one vector; `model` is the model's own sentence embedding."""

    MEAN = "mean"
    MAX = "max"
    CLS = "cls"
    POOLER = "pooler"
    LASTTOKEN = "lasttoken"
    WEIGHTEDMEAN = "weightedmean"
    MODEL = "model"


class OnOverlong(Choice):
    """What happens to a document that is longer than the model's limit."""

    WINDOW = "window"
    TRUNCATE = "truncate"
    ERROR = "error"


class StoreDtype(Choice):
    """The type of the stored vectors, under its name in NumPy, Arrow, polars and torch."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"

    @property
    def width(self) -> int:
        """The bytes of one value."""
        return int(self.removeprefix("float")) // 8


class VectorEncoding(Choice):
    """How a vector is stored in Parquet: as a fixed-size list or as fixed-size binary (little-endian)."""

    ARRAY = "array"
    BINARY = "binary"


class ComputeDtype(Choice):
    """The type that the encoder computes in.

    `auto` is bfloat16 on CUDA from Ampere on and for weights in bfloat16, else float32.
    """

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class CorpusFormat(Choice):
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
    FASTA = "fasta"


class BadRows(Choice):
    """What happens to a row that cannot be read: the run ends, or the row is set aside and counted."""

    ERROR = "error"
    QUARANTINE = "quarantine"


class Runner(Choice):
    """Where shards run: on this machine, or on a Ray cluster."""

    LOCAL = "local"
    RAY = "ray"
