"""`export`: vectors of a store become a file, or a folder of files, of another tool; and the table of all formats."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat import extensions
from bertfeat.choices import Combine, Level
from bertfeat.durable.files import Sink, make_parents
from bertfeat.durable.output_check import check_file, check_folder
from bertfeat.durable.publication import publish_file, publish_folder, recover
from bertfeat.encoder.layers import parse_layers
from bertfeat.errors import ConfigError, UserError, did_you_mean, require
from bertfeat.exports.word_types import joined_values, vector_lines
from bertfeat.levels import DOC_ID, LEVELS
from bertfeat.progress import Progress, reporting
from bertfeat.records import BoolArray, FeatureColumn, IntArray
from bertfeat.storage import local_path
from bertfeat.store.reader import Store, as_store

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_BLOCK_BYTES = 4 << 20
# Whatever a reader may take for the end of a line or of a column.
_BREAKS = re.compile(r"[\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A written export: its file or folder, the vectors of each row by name, and the size.

    `n_rows` and `n_documents` count what was read of the store; a document without rows at the level does not count.
    `n_without_vector` are the rows without a vector: NaN, or left out where the format has no place for them.
    """

    path: Path
    format: str
    level: str
    features: tuple[str, ...]
    n_rows: int
    n_documents: int
    n_without_vector: int
    n_bytes: int


def export(
    store: str | Path | Store,
    output: str | Path,
    *,
    to: str,
    level: str | None = None,
    feature: str | None = None,
    layers: str | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
) -> ExportResult:
    """Write vectors of a store as a file, or a folder of files, of another tool.

    Memory holds the texts of one shard, and 4 MB of vectors or one document. The result appears when all of it is
    written.

    Args:
        store: A finished store, its folder or its URL.
        output: The file or the folder.
        to: The format: `google-jsonl`, `neurox-hdf5`, `structural-probes-hdf5`, `npy`, `word2vec`, `projector`, or the
            name that an installed package adds.
        level: What a row stands for; by default the only stored level that the format holds.
        feature: One feature, stored or made from what is stored. By default all stored layers, or the only feature.
        layers: Layers instead, as in `extract`.
        limit: The first documents only, of those with rows at the level.
        overwrite: Replace what is already there.
        progress: See `extract`.

    Raises:
        UserError: A setting cannot be used, the store has no rows, a row does not go into the format, or something is
            already there.
        StoreError: There is no finished store, or a part is missing or damaged.
        RunError: The system refused a write; what was there before is unchanged.

    Examples:
        >>> export("features", "vectors.txt", to="word2vec", level="sentence")  # doctest: +SKIP
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"`limit` {limit} is below 1")
    format_, path = _format(to), local_path(output, "an export")

    def check() -> None:
        if format_.endings:
            check_file(path, overwrite=overwrite, endings=format_.endings)
        else:
            check_folder(path, f"an export to {to}", format_.files, overwrite=overwrite)

    recover(path)
    check()
    opened = as_store(store)
    known = opened.choose_level(level, format_.levels)
    if known not in format_.levels:
        raise UserError(f"`level='{level}'`: {to} holds {' or '.join(format_.levels)} rows; pass another level")
    names = _features(opened, format_, known, feature, layers)
    chosen = Selection(opened, known, tuple(opened.feature(known, name) for name in names), limit)
    if not chosen.n_vectors:
        raise UserError(f"{opened.path}: no row at level {known} has a vector; there is nothing to export")
    with reporting(progress) as reports, _published(path, format_, check) as sinks:
        format_.write(chosen, sinks, reports)
    return ExportResult(
        path=path,
        format=to,
        level=str(chosen.level),
        features=tuple(found.name for found in chosen.features),
        n_rows=chosen.n_rows,
        n_documents=chosen.n_documents,
        n_without_vector=chosen.n_rows - chosen.n_vectors,
        n_bytes=sum(file.stat().st_size for file in ([path] if format_.endings else path.iterdir())),
    )


def _format(to: str) -> Format:
    """Return a format, which an installed package may add."""
    known = [*FORMATS, *(extensions.names("exports") if to not in FORMATS else ())]
    if to not in known:
        raise ConfigError(f"`to` {to!r}: {did_you_mean(to, known) or 'must be one of ' + ', '.join(known)}")
    found: Format = FORMATS.get(to) or extensions.load("exports", to)
    return found


@contextlib.contextmanager
def _published(path: Path, format_: Format, check: Callable[[], None]) -> Iterator[list[Sink]]:
    """Yield the sinks of a format's files, which get their place together at the end."""
    if format_.endings:
        make_parents(path)
        with publish_file(path, kind="export") as sink:
            yield [sink]
        return
    with publish_folder(path, check) as new, contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Sink(new / name))) for name in format_.files]


def _features(store: Store, format_: Format, level: Level, feature: str | None, layers: str | None) -> list[str]:
    """Return the names of the vectors of each row."""
    if feature is not None and layers is not None:
        raise ConfigError("`feature` and `layers` name the vectors twice; drop one")
    if feature is not None:
        return [feature]
    stored = store.features(level)
    names = [column.name for column in stored if column.combine == Combine.NONE]
    if layers is not None:
        names = [f"layer_{number:02d}" for number in parse_layers(layers, store.manifest.model.n_layers)]
    if names and format_.has_layers:
        return names
    if layers is None:
        names = [column.name for column in stored]
    if len(names) > 1:
        raise UserError(f"{store.path}: several features at level {level}: {', '.join(names)}; name one: `feature`")
    return names


class Rows(NamedTuple):
    """Whole documents of a level."""

    first_document: int  # the documents before
    bounds: IntArray  # (n_documents + 1,), their first rows here, then the number of rows
    columns: pl.DataFrame  # all without vectors
    vectors: npt.NDArray[Any]  # (n_features, n_rows, dim) of the stored type, NaN in a row without a vector

    def has_vector(self) -> BoolArray:
        """Return which rows have a vector, bool (n_rows,)."""
        found: BoolArray = ~np.isnan(self.vectors[0, :, 0])
        return found

    def documents(self) -> Iterator[tuple[int, Any, slice]]:
        """Yield number, id and rows of each document."""
        ids = self.columns[DOC_ID.name]
        for place, (first, last) in enumerate(pairwise(self.bounds.tolist())):
            yield self.first_document + place, ids[first], slice(first, last)


class Selection:
    """The rows and vectors to write; `limit` is the number of documents, None for all."""

    def __init__(self, store: Store, level: Level, features: tuple[FeatureColumn, ...], limit: int | None) -> None:
        self.store, self.level, self.features = store, level, features
        self.n_rows = self.n_documents = self.n_vectors = 0
        # For each shard, the first row of each document, then the number of rows.
        self._bounds: dict[int, IntArray] = {}
        for entry in store.manifest.shards:
            if self.n_documents == limit:
                break
            shard = store.shard(entry.shard)
            lengths = shard.polars(level, [DOC_ID.name])[DOC_ID.name].rle().struct.field("len")
            bounds: IntArray = np.append(0, lengths.cum_sum())
            bounds = bounds[: None if limit is None else limit - self.n_documents + 1]
            self._bounds[entry.shard] = bounds
            self.n_rows += int(bounds[-1])
            self.n_documents += len(bounds) - 1
            self.n_vectors += int(np.count_nonzero(shard.valid(level, features[0].name)[: bounds[-1]]))

    def words(self, rows: Rows) -> list[str]:
        """Return the word, token or span of each row, which imported vectors may lack."""
        found = rows.columns[LEVELS[self.level].names[-1]].to_list()
        if None in found:
            reason = f"rows of level {self.level} have no words; import the vectors with words, or export to npy"
            raise UserError(f"{self.store.path}: {reason}")
        return found

    def blocks(self, reports: Progress) -> Iterator[Rows]:
        """Yield all documents, some at a time: 4 MB of float32, or one document that is larger."""
        most = max(1, _BLOCK_BYTES // (4 * sum(feature.dim for feature in self.features)))
        n_rows = n_documents = 0
        for number, bounds in self._bounds.items():
            shard, at = self.store.shard(number), 0
            columns = shard.polars(self.level, [column.name for column in shard.schema(self.level).columns])
            while at < len(bounds) - 1:
                reports.stage("exporting rows", n_rows, self.n_rows)
                stop = max(at + 1, int(np.searchsorted(bounds, bounds[at] + most, side="right")) - 1)
                first, last = int(bounds[at]), int(bounds[stop])
                vectors = [shard.slice(self.level, feature.name, first, last) for feature in self.features]
                yield Rows(n_documents, bounds[at : stop + 1] - first, columns[first:last], np.stack(vectors))
                n_rows, n_documents, at = n_rows + last - first, n_documents + stop - at, stop
        reports.stage("exporting rows", n_rows, self.n_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of an export: a file with one of its `endings`, or a folder of `files`; the first one identifies it."""

    write: Callable[[Selection, Sequence[Sink], Progress], None]
    levels: tuple[Level, ...] = (Level.SENTENCE, Level.WORD, Level.TOKEN, Level.SPAN)
    endings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    has_layers: bool = False


def _write_google_lines(chosen: Selection, sinks: Sequence[Sink], reports: Progress) -> None:
    """Write lines of google-research/bert's extract_features.py: the tokens of a document with their layers."""
    if n_without := chosen.n_rows - chosen.n_vectors:
        reason = f"{n_without} of {chosen.n_rows} {chosen.level} rows have no vector, and JSON has no NaN"
        raise UserError(f"{chosen.store.path}: {reason}; export to npy or HDF5")
    n_layers = chosen.store.manifest.model.n_layers
    heads = [
        f'{{"index": {feature.layers[0] - n_layers - 1 if feature.combine == Combine.NONE else 0}, "values": ['
        for feature in chosen.features
    ]
    for rows in chosen.blocks(reports):
        values = [joined_values(layer, ", ") for layer in rows.vectors]
        pieces = []
        for row, token in enumerate(chosen.words(rows)):
            layers = ", ".join(f"{head}{layer[row]}]}}" for head, layer in zip(heads, values, strict=True))
            pieces.append(f'{{"token": {json.dumps(token)}, "layers": [{layers}]}}')
        for number, doc_id, own in rows.documents():
            head = f'{{"linex_index": {number}, "doc_id": {json.dumps(doc_id)}'
            sinks[0].write(f'{head}, "features": [{", ".join(pieces[own])}]}}\n'.encode())


def _write_npy(chosen: Selection, sinks: Sequence[Sink], reports: Progress) -> None:
    """Write NumPy's .npy, and the columns of its rows as lines of JSON."""
    (first, *others), head = chosen.features, io.BytesIO()
    shape = (chosen.n_rows, *((len(others) + 1,) if others else ()), first.dim)
    kind = np.lib.format.dtype_to_descr(chosen.store.slice(chosen.level, first.name, 0, 0).dtype)
    np.lib.format.write_array_header_1_0(head, {"descr": kind, "fortran_order": False, "shape": shape})
    sinks[0].write(head.getvalue())
    for rows in chosen.blocks(reports):
        sinks[0].write(np.ascontiguousarray(rows.vectors.transpose(1, 0, 2)).data)
        # polars does not write bytes as JSON: they become text as Python prints them.
        texts = [
            pl.Series(column.name, [None if value is None else str(value) for value in column.to_list()], pl.String)
            for column in rows.columns
            if "Binary" in str(column.dtype)
        ]
        sinks[1].write(rows.columns.with_columns(texts).write_ndjson().encode())


def _write_word2vec(chosen: Selection, sinks: Sequence[Sink], reports: Progress) -> None:
    """Write word2vec's text: a unique key and its values per line, the number of lines and of values before."""
    sinks[0].write(f"{chosen.n_vectors} {chosen.features[0].dim}\n".encode())
    entry = LEVELS[chosen.level]
    for rows in chosen.blocks(reports):
        keys = list(map(str, rows.columns[entry.keys[0]].to_list()))
        for key in keys:
            if key.split() != [key]:
                reason = "is empty or has whitespace, which a key of word2vec's text must not"
                raise UserError(f"doc_id {key!r:.60} {reason}; use other ids, or npy")
        if len(entry.keys) > 1:
            # A word without a slash: so no two rows have the same key, whatever the ids.
            named = zip(chosen.words(rows), keys, rows.columns[entry.keys[1]].to_list(), strict=True)
            keys = [f"{'_'.join(word.replace('/', ' ').split()) or '_'}/{key}/{index}" for word, key, index in named]
        written = np.flatnonzero(rows.has_vector())
        sinks[0].write(vector_lines([keys[row] for row in written], rows.vectors[0, written]))


def _write_projector(chosen: Selection, sinks: Sequence[Sink], reports: Progress) -> None:
    """Write tables of TensorFlow's Embedding Projector: values, and the columns of their rows with a header."""
    sinks[1].write(_line(column.name for column in chosen.store.schema(chosen.level).columns))
    for rows in chosen.blocks(reports):
        has_vector = rows.has_vector()
        values = joined_values(rows.vectors[0, has_vector], "\t")
        sinks[0].write("".join(f"{row}\n" for row in values).encode())
        sinks[1].write(b"".join(map(_line, rows.columns.filter(has_vector).iter_rows())))


def _line(values: Iterable[object]) -> bytes:
    """Return a line of a table, with spaces in place of tabs and line breaks."""
    return "\t".join("" if value is None else _BREAKS.sub(" ", str(value)) for value in values).encode() + b"\n"


def _write_hdf5(chosen: Selection, sinks: Sequence[Sink], reports: Progress, *, has_index: bool = False) -> None:
    """Write datasets `0`, `1`, ..., float32 (layers, words, values), with `doc_id`, and the index of NeuroX."""
    require("h5py", what="HDF5 needs")
    import h5py

    index: dict[str, str] = {}
    times: Counter[str] = Counter()
    with _KeptErrors(sinks[0].descriptor, "r+b", closefd=False) as file:
        with h5py.File(file, "w") as target:
            for rows in chosen.blocks(reports):
                words = chosen.words(rows) if has_index else []
                for number, doc_id, own in rows.documents():
                    # Both programs compute in float32.
                    data = rows.vectors[:, own].astype(np.float32, copy=False)
                    target.create_dataset(str(number), data=data).attrs[DOC_ID.name] = doc_id
                    file.check()
                    if has_index:
                        sentence = " ".join(words[own])
                        times[sentence] += 1
                        # NeuroX names repeated sentences like this.
                        again = f" (Occurrence {times[sentence]})" if times[sentence] > 1 else ""
                        index[sentence + again] = str(number)
            if has_index:
                target.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())[0] = json.dumps(index)
        file.check()


class _KeptErrors(io.FileIO):
    """A file that keeps the error of a write until `check`: h5py crashes after a failed write."""

    error: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        rest = view = memoryview(data).cast("B")
        try:
            while rest:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = error
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        try:
            super().truncate(size)
        except OSError as error:
            self.error = error
        return size or 0

    def check(self) -> None:
        if self.error is not None:
            raise self.error


_HDF5 = functools.partial(Format, levels=(Level.WORD, Level.TOKEN), has_layers=True)
FORMATS = {
    "google-jsonl": Format(
        write=_write_google_lines,
        levels=(Level.TOKEN, Level.WORD),
        endings=(".jsonl", ".json"),
        has_layers=True,
    ),
    # NeuroX goes by this ending.
    "neurox-hdf5": _HDF5(write=functools.partial(_write_hdf5, has_index=True), endings=(".hdf5",)),
    "structural-probes-hdf5": _HDF5(write=_write_hdf5, endings=(".hdf5", ".h5")),
    "npy": Format(write=_write_npy, files=("vectors.npy", "rows.jsonl"), has_layers=True),
    "word2vec": Format(write=_write_word2vec, endings=(".txt", ".vec")),
    "projector": Format(write=_write_projector, files=("vectors.tsv", "metadata.tsv")),
}
