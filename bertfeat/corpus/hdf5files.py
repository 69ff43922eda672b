"""Reader of HDF5 as structural-probes and allennlp's ELMo write it: a dataset of vectors for each sentence."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

from bertfeat.choices import Level
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import clean
from bertfeat.corpus.rowsources import Words
from bertfeat.corpus.vectorfiles import Block, Stored, Unit, VectorReader
from bertfeat.errors import InputError
from bertfeat.records import FileSlice, InputFile

_INDEX = "sentence_to_index"
_READ_TEXT = f"""
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import h5py, numpy
found = numpy.asarray(h5py.File(sys.argv[2], "r")["{_INDEX}"][()]).reshape(-1)[0]
sys.stdout.buffer.write(found if isinstance(found, bytes) else str(found).encode())
"""
_TIMEOUT_S = 60
# A small file may declare a large dataset.
_MAX_BYTES, _MAX_TEXT_BYTES = 1 << 29, 1 << 26


class Hdf5Reader(VectorReader):
    """Reads .hdf5: datasets `0`, `1`, ..., each (n_layers, n_words, dim), or (n_words, dim).

    allennlp's `sentence_to_index` maps each sentence to the name of its dataset.
    """

    format = "hdf5"
    endings = (".hdf5", ".h5")
    holds_documents = True

    def __init__(self, file: InputFile, config: ExtractConfig, vector_columns: Sequence[str] = ()) -> None:
        super().__init__(file, config, vector_columns)
        if self.level is not Level.WORD:
            raise self.wrong("HDF5 holds a vector for each word; pass `level='word'`")
        if find_spec("h5py") is None:
            raise InputError("HDF5 needs h5py: pip install 'bertfeat[hdf5]'", path=file.path)
        import h5py

        self._h5py = h5py
        with self._readable(), ExitStack() as opened:
            self._file = opened.enter_context(h5py.File(file.path, "r"))
            self._n_sentences = self._count()
            self._words = self._read_words()
            shape = self._dataset(0).shape
            self._has_layers = len(shape) == 3
            self.features = (
                self.layer_features(range(shape[0]), shape[2]) if self._has_layers else self.single_feature(shape[1])
            )
            opened.pop_all()  # nothing is wrong, so the file stays open until `close`

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn the errors of h5py on a damaged file into one line."""
        try:
            yield
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
            raise self.wrong(f"cannot be read as HDF5 ({' '.join(str(error).split())[:120]})") from error

    def _count(self) -> int:
        names = [name for name in self._file if name != _INDEX]
        if not names:
            raise self.wrong("has no datasets; there is nothing to import")
        for name in names:
            if not (name.isascii() and name.isdecimal() and name == str(int(name))):
                raise self.wrong(
                    f"has a dataset {name!r:.60}; name the datasets by the numbers of the sentences: 0, 1, ..."
                )
        numbers = sorted(map(int, names))
        if numbers != list(range(len(numbers))):
            missing = next(place for place, number in enumerate(numbers) if place != number)
            raise self.wrong(f"has no sentence {missing}; its {len(numbers):,} datasets must be numbered from 0 on")
        return len(numbers)

    def _read_words(self) -> dict[int, Words]:
        """Return the words of the sentences that the file names; a sentence that occurs twice is named once."""
        if _INDEX not in self._file:
            return {}
        dataset = self._at(_INDEX)
        if dataset.size != 1:
            raise self.wrong(f"its {_INDEX} has {dataset.size:,} values; it must be one text")
        if (n_bytes := _n_bytes_read(dataset)) > _MAX_TEXT_BYTES:
            raise self.wrong(f"its {_INDEX} has {n_bytes:,} bytes, {_MAX_TEXT_BYTES:,} are the most that are read")
        # HDF5's library crashes on a damaged heap of texts, or never returns: let another process read it.
        arguments = [sys.executable, "-c", _READ_TEXT, json.dumps(sys.path), self.file.path]
        try:
            done = subprocess.run(arguments, capture_output=True, timeout=_TIMEOUT_S, check=True)
            index = json.loads(done.stdout)
            found = {int(number): tuple(clean(sentence).split()) for sentence, number in index.items()}
        except subprocess.SubprocessError as error:
            raise self.wrong(f"its {_INDEX} cannot be read; write the file again") from error
        except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise self.wrong(f"its {_INDEX} is not a JSON object of sentences: {error!s:.80}") from error
        if len(found) < len(index) or not found.keys() <= set(range(self._n_sentences)):
            reason = f"its {_INDEX} names a dataset twice, or one beyond {self._n_sentences - 1}"
            raise self.wrong(f"{reason}; write the file again")
        return found

    def _at(self, name: str) -> Any:
        """Return a dataset of the file itself: a link may lead to any other file."""
        link = self._file.get(name, getlink=True)
        if not isinstance(link, self._h5py.HardLink):
            raise self.wrong(f"its dataset {name!r} is a link to another place; copy the data into the file")
        found = self._file[name]
        if not isinstance(found, self._h5py.Dataset) or found.external or found.is_virtual:
            raise self.wrong(f"its {name!r} is not a dataset of the file itself; copy the data into it")
        return found

    def _dataset(self, number: int) -> Any:
        found = self._at(str(number))
        if len(found.shape) not in (2, 3):
            raise self.wrong(f"sentence {number} has shape {found.shape}, not (layers, words, values)")
        self.check_float(found.dtype, f"the values of sentence {number}")
        return found

    def scan(self) -> Iterator[Unit]:
        """Check all values, and yield the sentences."""
        for number in range(self._n_sentences):
            with self._readable():
                vectors, _ = self._sentence(number)
            n_words = len(vectors[self.features[0].name])
            words = self._words.get(number)
            if words is not None and len(words) != n_words:
                raise self.differs(number, words, f"has {len(words):,} words in {_INDEX}, the vectors have {n_words:,}")
            yield Unit(n_words, number, number + 1, words)

    def _sentence(self, number: int) -> Stored:
        """Return the vectors of a sentence."""
        dataset = self._dataset(number)
        shape = dataset.shape
        found = (*(shape[:1] if self._has_layers else (1,)), shape[-1])
        wanted = (len(self.features), self.features[0].dim)
        if len(shape) != 2 + self._has_layers or found != wanted:
            raise self.wrong(
                f"sentence {number} has shape {shape}; sentence 0 has {wanted[0]} layers of {wanted[1]} values"
            )
        if (n_bytes := _n_bytes_read(dataset)) > _MAX_BYTES:
            raise self.wrong(f"sentence {number} has {n_bytes:,} bytes, {_MAX_BYTES:,} are the most that are read")
        if dataset.nbytes and not dataset.id.get_storage_size():
            raise self.wrong(f"sentence {number} was never written; did the program that writes the file fail?")
        if not shape[-2]:
            raise self.wrong(f"sentence {number} has no words; leave it out")
        values = dataset[()]
        layers = values if self._has_layers else values[None]
        columns = {feature.name: layer for feature, layer in zip(self.features, layers, strict=True)}
        return self.stored(columns, lambda row: (f"sentence {number}, word {row}, both counted from 0: ", None))

    def read(self, piece: FileSlice, given: Sequence[Words | None]) -> Block:  # noqa: ARG002
        """Return the vectors of some sentences."""
        numbers = range(piece.offset, piece.offset + piece.n_rows)
        with self._readable():
            parts = [self._sentence(number) for number in numbers]
        return Block.of(parts, [self._words.get(number) for number in numbers])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _n_bytes_read(dataset: Any) -> int:
    """Return the bytes that reading a dataset takes: a chunk may be larger than the dataset."""
    return int(max(math.prod(dataset.shape), math.prod(dataset.chunks or ())) * dataset.dtype.itemsize)
