"""Files of vectors from elsewhere: the base class of their readers, and the checks of their values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from bertfeat.choices import Combine, Level
from bertfeat.config import ExtractConfig
from bertfeat.corpus.rowsources import RowSource, Words
from bertfeat.corpus.tabular import shown
from bertfeat.errors import InputError
from bertfeat.levels import EMBEDDING
from bertfeat.records import BoolArray, FeatureColumn, FileSlice, InputFile
from bertfeat.vectors.finite import first_not_finite

# Vectors of the stored type, and which rows have one.
Stored = tuple[dict[str, npt.NDArray[Any]], BoolArray | None]


class Unit(NamedTuple):
    """What a file holds together: some rows, or a document.

    `n_rows` counts its rows. A document also has its place, as in `FileSlice`, and its words or word pieces, where the
    file has them.
    """

    n_rows: int
    offset: int = 0
    row: int = 1
    words: Words | None = None


class Block(NamedTuple):
    """The vectors of a piece of a file.

    `vectors` are of the stored type, (n_rows, dim); `valid` is False in rows without a vector, or None. In a file that
    holds documents, `n_rows` are the rows of each, and `words` its words, where the file has them.
    """

    vectors: dict[str, npt.NDArray[Any]]
    valid: BoolArray | None
    n_rows: Sequence[int] = ()
    words: Sequence[Words | None] = ()

    @classmethod
    def of(cls, parts: Sequence[Stored], words: Sequence[Words | None] = ()) -> Block:
        """Join what `VectorReader.stored` gave for parts of a piece; with `words`, each part is a document."""
        names = parts[0][0]
        n_rows = [len(next(iter(vectors.values()))) for vectors, _ in parts]
        flags = [np.ones(n, np.bool_) if flag is None else flag for n, (_, flag) in zip(n_rows, parts, strict=True)]
        valid = np.concatenate(flags)
        vectors = {name: np.concatenate([found[name] for found, _ in parts]) for name in names}
        return cls(vectors, None if valid.all() else valid, n_rows if words else (), words)


class VectorReader(ABC):
    """A file of vectors, open for reading.

    Attributes:
        format: The name of its format.
        endings: The file endings of the format.
        holds_documents: The file says where documents end: with a vector for each of their words.
        has_columns: Vectors are in columns with names, of which `vector_columns` chooses.
        pooling: How vectors of word pieces become those of words and texts, by level.
        is_compressible: The file may be compressed as .gz or .zst.
        features: The vector columns.
        own_rows: The rows that the file describes itself; None if it has vectors only.
    """

    format: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    holds_documents: ClassVar[bool] = False
    has_columns: ClassVar[bool] = False
    pooling: ClassVar[Mapping[Level, str]] = {}
    is_compressible: ClassVar[bool] = False

    features: tuple[FeatureColumn, ...]
    own_rows: RowSource | None = None

    def __init__(self, file: InputFile, config: ExtractConfig, vector_columns: Sequence[str] = ()) -> None:
        self.file = file
        (self.level,) = config.levels
        self.dtype = np.dtype(str(config.store_dtype))
        self.vector_columns = vector_columns

    @abstractmethod
    def scan(self) -> Iterator[Unit]:
        """Check all values, and yield what the file holds, in order.

        Raises:
            InputError: A value cannot be used.
        """

    @abstractmethod
    def read(self, piece: FileSlice, given: Sequence[Words | None]) -> Block:
        """Return the vectors of a piece of the file; `given` are the words of each document, if they are known."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def words_of(self, unit: Unit, given: Words | None, number: int) -> Words | None:
        """Compare the words of a document with those that are given, and return its words.

        Args:
            unit: The document.
            given: Its words; None if they are not known.
            number: Its number, for messages.

        Raises:
            InputError: The words differ.
        """
        if given is None:
            return unit.words
        if len(given) != unit.n_rows:
            raise self.differs(number, given, f"has {len(given):,} words, the vectors have {unit.n_rows:,}")
        for place, (mine, theirs) in enumerate(zip(given, unit.words or given, strict=True)):
            if mine != theirs:
                raise self.differs(number, given, f"has the word {mine!r} at {place}, the vectors have {theirs!r}")
        return given

    def differs(self, number: int, words: Sequence[str], reason: str) -> InputError:
        """Return the error for a sentence that is not the one of the vectors."""
        return self.wrong(f"sentence {number} ({shown(' '.join(words))}) {reason}")

    def wrong(self, reason: str, row: int | None = None) -> InputError:
        """Return the error for something in the file."""
        return InputError(reason, path=self.file.path, row=row)

    def layer_features(self, layers: Sequence[int], dim: int) -> tuple[FeatureColumn, ...]:
        """Return a column per layer."""
        if not (layers and dim):
            raise self.wrong(f"has {len(layers)} layers of {dim} values; there is nothing to import")
        return tuple(FeatureColumn(f"layer_{layer:02d}", (layer,), str(Combine.NONE), dim) for layer in layers)

    def single_feature(self, dim: int) -> tuple[FeatureColumn, ...]:
        """Return the column of the only vector of each row."""
        if not dim:
            raise self.wrong("its vectors have no values; there is nothing to import")
        return (FeatureColumn(EMBEDDING, (0,), str(Combine.NONE), dim),)

    def check_float(self, dtype: np.dtype[Any], what: str) -> None:
        """Refuse values that are not floats."""
        if dtype.kind != "f" or dtype.itemsize > 8:
            raise self.wrong(f"{what} are {dtype}; write float16, float32 or float64")

    def stored(self, values: Mapping[str, npt.NDArray[Any]], place: Callable[[int], tuple[str, int | None]]) -> Stored:
        """Convert vectors to the stored type; a row that is NaN in all values of all columns has no vector.

        Args:
            values: float (n_rows, dim) for each column.
            place: Returns how messages begin that name a row, and its number in the file if that is a line or a row.

        Returns:
            The vectors, and which rows have one; None if all have.

        Raises:
            InputError: A row holds NaN or infinity, or a value that the stored type does not hold.
        """
        n_rows = len(next(iter(values.values())))
        valid = np.ones(n_rows, np.bool_)
        # A row can be all NaN only if it begins with NaN.
        starts = np.isnan(np.stack([array[:, 0] for array in values.values()])).all(axis=0)
        for row in np.flatnonzero(starts).tolist():
            valid[row] = not all(np.isnan(array[row]).all() for array in values.values())
        found = {}
        for name, array in values.items():
            with np.errstate(over="ignore", invalid="ignore"):
                cast = np.ascontiguousarray(array, self.dtype)
            bad = first_not_finite(cast, valid)
            if bad is not None:
                raise self._not_finite(name, array[bad], cast[bad], *place(bad))
            found[name] = cast
        return found, None if valid.all() else valid

    def _not_finite(
        self, name: str, given: npt.NDArray[Any], cast: npt.NDArray[Any], where: str, row: int | None
    ) -> InputError:
        value = given[~np.isfinite(cast)][0]
        if not np.isfinite(value):
            return self.wrong(f"{where}{name} holds {value}; a row without a vector is NaN in all its values", row)
        remedy = "pass `store_dtype='float32'`" if cast.dtype == np.float16 else "scale the vectors"
        return self.wrong(f"{where}{name} holds {value:g}, which {cast.dtype} does not hold; {remedy}", row)
