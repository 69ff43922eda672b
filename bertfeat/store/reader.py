"""Reader of a store: rows as polars, Arrow, NumPy or torch, whole, in batches or shuffled."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from bertfeat.choices import Level
from bertfeat.config import parse_size
from bertfeat.display import html_table, model_text
from bertfeat.durable import files
from bertfeat.errors import StoreError, UserError, no_column
from bertfeat.forks import check_polars
from bertfeat.records import BadRow, BoolArray, FeatureColumn, IntArray, Plan
from bertfeat.storage import AnyPath, ObjectPath
from bertfeat.store import receipts
from bertfeat.store.conditions import rows_where
from bertfeat.store.description import StoreDescription
from bertfeat.store.manifest import Manifest
from bertfeat.store.part_reader import KeptGroups, opened
from bertfeat.store.schema import row_group_rows
from bertfeat.store.selection import (
    FeatureBatch,
    check_rows,
    read_batches,
    read_vectors,
    take_columns,
    take_vectors,
)
from bertfeat.store.shuffling import shuffled_batches
from bertfeat.store.vectors import StoredPart, VectorSource, feature_name, find_source
from bertfeat.store.view import LevelView

if TYPE_CHECKING:
    import torch

    from bertfeat.layers.result import LayerComparison
    from bertfeat.map.build import StoreMap
    from bertfeat.progress import Progress
    from bertfeat.store.torch_dataset import FeatureDataset


# Vectors that are read together for shuffled batches: smaller blocks take longer, larger ones mix less.
_BLOCK_BYTES = 256 << 10


def open_store(path: str | Path | ObjectPath, *, version: int | None = None, allow_incomplete: bool = False) -> Store:
    """Open a store for reading.

    Args:
        path: Its folder, or its URL in an object store.
        version: The number of an earlier version, before later appends; by default the newest. `overwrite` and
            compactions remove the versions before them.
        allow_incomplete: Also open a store whose run has not finished, with its finished shards.

    Raises:
        StoreError: There is no store or version, or it is incomplete, damaged, or of a newer format.

    Examples:
        >>> open_store("features").numpy("word", "concat_last4")  # doctest: +SKIP
    """
    return Store.at(path, version=version, allow_incomplete=allow_incomplete)


def as_store(store: str | Path | ObjectPath | Store) -> Store:
    """Return a store as it is, or open the one at a place; errors are those of `open_store`."""
    return store if isinstance(store, Store) else open_store(store)


class Store(StoreDescription):
    """A store open for reading; made by `open_store`. Rows are in corpus order.

    Methods that return vectors take a stored feature, or one that can be made from the stored layers: `concat_last4` or
    `mean_last4` from four layer columns, `layer_11` from `concat_last4`. A number is a layer: 11, or -1 for the last
    one. A row without a vector (a word that lost its tokens to truncation) holds NaN; `valid` marks these rows.
    `len(store)` is the number of documents.

    Vectors of a local part are copied from the places that the manifest lists; only the size of the part is checked.
    Parts without such places (parts with null vectors) are decoded. A read that decodes checks size, rows and columns
    against the manifest and, for vectors of a local part, the digest. `verify` checks every digest.

    Raises:
        UserError: From each method: a level, feature, column, row or shard does not exist, a feature cannot be made
            from stored layers, or a size is below 1.
        StoreError: From each method that reads: no shard is done yet, or a file is damaged, or missing, perhaps because
            the store was replaced or compacted since it was opened. After an append, the rows stay those of the
            opening.
    """

    def __init__(self, path: AnyPath, manifest: Manifest, unfinished: Plan | None = None) -> None:
        super().__init__(path, manifest, unfinished)
        self.kept = KeptGroups()

    def __reduce__(self) -> tuple[object, ...]:
        return Store, (self.path, self.manifest, self._unfinished)

    @functools.cached_property
    def _stored_parts(self) -> Mapping[Level, list[StoredPart]]:
        levels, at = self.manifest.levels, self.path
        return {
            level: [StoredPart(at / part.path, part, levels[level], self._layout) for part in parts]
            for level, parts in self._parts.items()
        }

    def __repr__(self) -> str:
        rows = ", ".join(f"{level}: {self.n_rows(level)} rows" for level in self.levels)
        return f"Store({str(self.path)!r}, {rows})"

    def _repr_html_(self) -> str:
        title = f"{self.path}: {len(self):,} documents, model {model_text(self.metadata)}"
        features = {level: ", ".join(f"{f.name}[{f.dim}]" for f in self.features(level)) for level in self.levels}
        rows = [
            (level, f"{self.n_rows(level):,}", ", ".join(c.name for c in self.schema(level).columns), features[level])
            for level in self.levels
        ]
        return html_table(title, ["level", "rows", "columns", "features"], rows)

    def __len__(self) -> int:
        """The number of documents, without the rows that were set aside."""
        return self.manifest.totals.counts.get("n_documents", 0)

    def __bool__(self) -> bool:
        """True, also without documents."""
        return True

    @files.os_errors(StoreError)
    def bad_rows(self) -> tuple[BadRow, ...]:
        """Return the input rows that were set aside (`bad_rows="quarantine"`), in corpus order, with their raw bytes.

        Raises:
            StoreError: The store was copied without its `_bertfeat` folder, or the file of these rows is damaged.
        """
        return tuple(row for shard in self.manifest.shards for row in receipts.read_quarantine(self._folder, shard))

    def shard(self, number: int) -> Store:
        """Return the store as if it had only one shard."""
        found = [shard for shard in self.manifest.shards if shard.shard == number]
        if not found:
            raise UserError(f"{self.path}: no shard {number}; there are {len(self.manifest.shards)}")
        return Store(self.path, self.manifest.with_shards(found), self._unfinished)

    def __getitem__(self, level: str) -> LevelView:
        """Return a view of a level, which every library that takes Arrow takes: `pl.DataFrame(store["word"])`."""
        return LevelView(self, level)

    def scan(self, level: str, columns: Sequence[str | int] | None = None) -> pl.LazyFrame:
        """Return a level, or some of its columns and features, as a lazy polars frame that reads only what is used.

        Columns, filters and limits decide what is read when the frame is collected: vectors as `take` reads them, of
        the rows that are left by filters on other columns. polars reads these, and compares nothing with the manifest.
        """
        return LevelView(self, level, columns).scan()

    def polars(self, level: str, columns: Sequence[str | int] | None = None) -> pl.DataFrame:
        """Return a level, or some of its columns and features, as a polars frame."""
        check_polars()
        return cast("pl.DataFrame", pl.from_arrow(self.arrow(level, columns), rechunk=False))

    def arrow(self, level: str, columns: Sequence[str | int] | None = None) -> pa.Table:
        """Return a level, or some of its columns and features, as an Arrow table; vectors are fixed-size lists."""
        view = LevelView(self, level, columns)
        return pa.Table.from_batches(view.batches(), view.schema)

    def numpy(self, level: str, feature: str | int, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """Return the vectors of a feature as a new array (n_rows, dim) of the stored type, or of another float type."""
        return self.slice(level, feature, 0, self.n_rows(level), dtype)

    def torch(self, level: str, feature: str | int) -> torch.Tensor:
        """Return the vectors of a feature as a torch tensor (n_rows, dim) on the CPU; see `numpy`."""
        import torch

        return torch.from_numpy(self.numpy(level, feature))

    def valid(self, level: str, feature: str | int) -> BoolArray:
        """Return bool (n_rows,): which rows have a vector of a feature. Reads no vectors where all rows have one."""
        source, flags = self.source(level, feature), []
        for part in self.stored_parts(level):
            with opened(part, self.kept) as file:
                flags.append(file.valid(source))
        return np.concatenate(flags)

    def batches(
        self, level: str, feature: str | int, *, batch_size: int = 8192, columns: Sequence[str | int] = ()
    ) -> Iterator[FeatureBatch]:
        """Yield the vectors of a feature in order, `batch_size` rows at a time, in memory that does not grow.

        Args:
            level: The level.
            feature: The feature; see `numpy`.
            batch_size: Rows of each batch except the last.
            columns: Further columns of the batches.
        """
        if batch_size < 1:
            raise UserError(f"batch_size {batch_size} is below 1")
        if columns:
            check_polars()
        source = self.source(level, feature)
        names = self._known_columns(level, columns)
        return read_batches(self.stored_parts(level), source, self.kept, names, batch_size)

    def shuffled(
        self,
        level: str,
        feature: str | int,
        *,
        batch_size: int = 1024,
        columns: Sequence[str | int] = (),
        seed: int = 0,
        epoch: int = 0,
        start: int = 0,
        buffer: int | str | None = None,
    ) -> Iterator[FeatureBatch]:
        """Yield the vectors of a feature in random batches: each row once, in an order that the arguments decide.

        Vectors that fit into `buffer` come in a uniformly random order. Of more, blocks of 256 KB in random order fill
        the buffer, and its rows are permuted: single rows would take 20 times as long to read. Where vectors must be
        decoded, a block is a row group.

        Args:
            level: The level.
            feature: The feature; see `numpy`.
            batch_size: Rows of each batch except the last; the order does not depend on it.
            columns: Further columns of the batches.
            seed: The seed of the order.
            epoch: The number of the pass; each has its own order.
            start: The number of batches to skip without reading them, to resume a pass.
            buffer: Bytes of vectors to mix: by default 4 MB, which stay in the processor's cache, or 64 MB where
                vectors must be decoded. More mixes more blocks, and takes about 1.5 times as long.
        """
        check_polars()
        for name, value in {"batch_size": batch_size, "seed": seed, "epoch": epoch, "start": start}.items():
            if value < (name == "batch_size"):
                raise UserError(f"`{name}` {value} is below {int(name == 'batch_size')}")
        source, parts = self.source(level, feature), self.stored_parts(level)
        row_bytes = source.dim * self._layout.dtype.width
        block_rows = row_group_rows(self.features(level), self._layout)
        if copied := all(part.can_be_copied for part in parts):
            block_rows = min(block_rows, max(1, _BLOCK_BYTES // row_bytes))
        if buffer is None:
            buffer = "4MB" if copied else "64MB"
        return shuffled_batches(
            parts,
            source,
            self.kept,
            self._known_columns(level, columns),
            range(start * batch_size, self.n_rows(level), batch_size),
            key=(seed, epoch),
            block_rows=block_rows,
            buffer_rows=parse_size(buffer, "buffer") // row_bytes,
        )

    def torch_dataset(self, level: str, feature: str | int, label: str | None = None) -> FeatureDataset:
        """Return the rows that have a vector as a data set for the `DataLoader` of torch.

        An item is a float32 tensor (dim,), or with `label` a pair of it and its label.

        Args:
            level: The level.
            feature: The feature; see `numpy`.
            label: A column of the level or of its documents. Texts become numbers of `classes`, and rows without a
                label are left out.
        """
        from bertfeat.store.torch_dataset import FeatureDataset

        labels = None if label is None else read_columns(self, self.schema(level).level, [label])[label]
        return FeatureDataset(self, level, feature, labels)

    def feature(self, level: str, feature: str | int) -> FeatureColumn:
        """Describe a feature, stored or made from stored layers: its name, its layers, how they combine, its width."""
        source = self.source(level, feature)
        return FeatureColumn(self.name(feature), source.layers, str(source.combine), source.dim)

    def choose_feature(self, level: str, feature: str | int | None = None) -> str:
        """Return the name of a feature; by default of the only one that is stored, or `concat_last4`.

        Raises:
            UserError: There is no such feature; or none is given, and several could be meant.
        """
        stored = [found.name for found in self.features(level)]
        if feature is None and len(stored) == 1:
            return stored[0]
        try:
            return self.feature(level, "concat_last4" if feature is None else feature).name
        except UserError:
            if feature is not None:
                raise
            names = ", ".join(stored)
            raise UserError(
                f"{self.path}: has the features {names} at level {level}; pass `feature` with one of them"
            ) from None

    def slice(
        self, level: str, feature: str | int, start: int, stop: int, dtype: npt.DTypeLike | None = None
    ) -> npt.NDArray[Any]:
        """Return the vectors of the rows `start` to `stop - 1`, (n_rows, dim), without reading other rows."""
        if not 0 <= start <= stop <= self.n_rows(level):
            raise UserError(f"no rows {start} to {stop} at level {level}, which has {self.n_rows(level)}")
        source = self.source(level, feature)
        return read_vectors(self.stored_parts(level), range(start, stop), source, self.kept, dtype)

    def take(self, level: str, feature: str | int, rows: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the vectors of some rows, (len(rows), dim), in the order of `rows`."""
        numbers = check_rows(rows, self.n_rows(level))
        source = self.source(level, feature)
        return take_vectors(self.stored_parts(level), numbers, source, self.kept)

    def rows(self, level: str, rows: npt.ArrayLike, columns: Sequence[str | int]) -> pl.DataFrame:
        """Return columns of some rows as a frame, in the order of `rows`: from row numbers back to the text."""
        check_polars()
        names = self._known_columns(level, columns)
        numbers = check_rows(rows, self.n_rows(level))
        return take_columns(self.stored_parts(level), numbers, names, self.kept)

    def where(self, level: str, where: str) -> IntArray:
        """Return the numbers of the rows for which an SQL condition is true, for `take` and `rows`; reads no vectors.

        Args:
            level: The level.
            where: The condition, on columns of the level and of its documents: `label != 'O' AND n_tokens > 1`.

        Raises:
            UserError: There is no such level, or the condition cannot be used.
        """
        return np.flatnonzero(condition_mask(self, self.schema(level).level, where))

    def layers(
        self,
        other: str | Path | Store | None = None,
        *,
        level: str | None = None,
        min_count: int = 5,
        sample: int = 2000,
        seed: int = 0,
        progress: bool | Progress | None = None,
    ) -> LayerComparison:
        """Measure how the vectors of each layer lie in space, and how layers, or two models, differ.

        Vectors are read in one pass, in memory that does not grow with the rows: sums of pairs of layers, a sample of
        rows, and sums of up to 1,000 word types. If the sums of all pairs do not fit into half of the free memory,
        further passes follow.

        Args:
            other: Another store of the same corpus: of a fine-tuned or adapted model, of random weights, of another
                family. Then only rows that both have count, matched by document and word.
            level: word, token, span or sentence; by default the only one that is stored.
            min_count: The fewest rows of a word type whose self-similarity is measured; 2 or more.
            sample: The rows whose neighbors and pairs are compared, drawn by seed; 50 or more.
            seed: The seed of the sample, and of the word types where there are more than 1,000.
            progress: See `extract`.

        Raises:
            UserError: A store or a setting cannot be used, too few rows have vectors, or the stores have no common
                rows.

        Examples:
            >>> from bertfeat import extract
            >>> store = extract("examples/data/peps.txt", tmp / "features", levels="word", layers="0,3,6", limit=20)
            >>> layers = store.layers()
            >>> [row.feature for row in layers.rows]
            ['layer_00', 'layer_03', 'layer_06']
            >>> layers.cka[0][0]
            1.0
        """
        from bertfeat.layers.measures import compare_layers

        return compare_layers(
            self, other, level=level, min_count=min_count, sample=sample, seed=seed, progress=progress
        )

    def map(
        self,
        output: str | Path,
        *,
        level: str | None = None,
        feature: str | int | None = None,
        word: str | None = None,
        method: str = "pca",
        neighbors: int = 10,
        metric: str = "cosine",
        columns: Sequence[str] | None = None,
        color: str | None = None,
        limit: int | None = None,
        sample: int | None = None,
        seed: int = 0,
        page: bool = True,
        max_memory: int | str = "4GB",
        overwrite: bool = False,
        progress: bool | Progress | None = None,
    ) -> StoreMap:
        """Draw the rows of a level in a plane: a Parquet file of coordinates and neighbors, and a page beside it.

        The Parquet file has the columns that name a row (`doc_id`; `word_index` and `word` at word level), `text` (the
        document, or the word in brackets in its context), kept columns of the corpus, float32 `x` and `y`, and
        `neighbors`, a struct of `ids` (rows of this file, from 0) and `distances`, which Embedding Atlas takes.

        Args:
            output: The Parquet file; the page has the same name with `.html`. The page's name does for both.
            level: The level; by default the only one that is stored, or word level if `word` is given.
            feature: As for `build_index`.
            word: Only the rows of this word, in upper or lower case.
            method: `pca`; or `umap`, which needs umap-learn, and starts from the PCA.
            neighbors: The nearest rows to find for each row.
            metric: `cosine` or `l2`, by which neighbors are found, and so UMAP.
            columns: Columns of the corpus to keep; all by default.
            color: A column that gives the colors of the page at first.
            limit: Only the first rows.
            sample: Only this number of random rows.
            seed: The seed of the sample, of the index and of UMAP.
            page: Also write the page; of more than 200,000 rows it shows a random sample, and says so.
            max_memory: The most memory of the index that finds the neighbors.
            overwrite: Replace files that are already there.
            progress: See `bertfeat.extract`.

        Raises:
            UserError: A setting, the level, a word or a column cannot be used; there are fewer than three rows with a
                vector, or all vectors are the same; or a library is missing.
            RunError: The system refused; an old file is unchanged, or the new one is there.

        Examples:
            >>> open_store("features").map("map.parquet", level="word", word="bank")  # doctest: +SKIP
        """
        from bertfeat.map.build import map_store

        return map_store(
            self,
            output,
            level=level,
            feature=feature,
            word=word,
            method=method,
            neighbors=neighbors,
            metric=metric,
            columns=columns,
            color=color,
            limit=limit,
            sample=sample,
            seed=seed,
            page=page,
            max_memory=max_memory,
            overwrite=overwrite,
            progress=progress,
        )

    def stored_parts(self, level: str) -> list[StoredPart]:
        """Return the parts of a level, in order, with their paths and schemas."""
        parts = self._stored_parts[self.schema(level).level]
        if not parts:
            raise StoreError(f"{self.path}: no shard is done yet; run the command that made it again")
        return parts

    def source(self, level: str, feature: str | int) -> VectorSource:
        """Return the stored values that a feature is made of."""
        return find_source(self.schema(level), self.name(feature), self.manifest.model.n_layers)

    def name(self, feature: str | int) -> str:
        """Return the name of a column or feature, or of a layer that is given by its number."""
        return feature_name(feature, self.manifest.model.n_layers)

    def _known_columns(self, level: str, columns: Sequence[str | int]) -> Sequence[str]:
        names = LevelView(self, level, columns).columns
        check_known(self.path, names, self.columns(level), f" at level {level}")
        return names


def row_columns(store: Store, level: Level) -> tuple[list[str], list[str]]:
    """Return the names of a level's columns, without its vectors, and of the further columns of its documents."""
    own = [column.name for column in store.schema(level).columns]
    if level is Level.SENTENCE or Level.SENTENCE not in store.levels:
        return own, []
    return own, [column.name for column in store.schema(Level.SENTENCE).columns if column.name not in own]


def check_columns(store: Store, level: Level, names: Sequence[str], place: object = None) -> None:
    """Check that columns are among `row_columns`; `place` names the store in the message, by default its path."""
    own, others = row_columns(store, level)
    check_known(place or store.path, names, [*own, *others], f" at level {level}")


def check_known(place: object, names: Sequence[str], known: Sequence[str], at: str = "") -> None:
    """Raise a UserError that names the first of some columns that a table at a place does not have."""
    for name in names:
        if name not in known:
            raise UserError(f"{place}: {no_column(name, known, at)}")


def read_columns(store: Store, level: Level, names: Sequence[str]) -> pl.DataFrame:
    """Return some of `row_columns` for all rows of a level, in order."""
    check_columns(store, level, names)
    own, _ = row_columns(store, level)
    others = [name for name in names if name not in own]
    here = list(dict.fromkeys([*(name for name in names if name in own), *(["doc_id"] if others else [])]))
    frame = store.polars(level, here)
    if others:
        documents = store.polars(Level.SENTENCE, ["doc_id", *others])
        frame = frame.join(documents, on="doc_id", how="left", maintain_order="left")
    return frame.select(names)


def condition_mask(store: Store, level: Level, where: str) -> BoolArray:
    """Return for which rows an SQL condition on columns of the level, or of documents, is true, bool (n_rows,)."""
    own, others = row_columns(store, level)
    return rows_where(where, "where", [*own, *others], lambda names: read_columns(store, level, names))
