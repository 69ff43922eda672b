"""Search of an index: texts, words in context or vectors in, rows of the store out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.ann.description import ROWS, IndexDescription
from bertfeat.ann.exact import check_allowed
from bertfeat.ann.indexfolder import read_description
from bertfeat.ann.transforms import Transform, prepare
from bertfeat.ann.vectorindex import VectorIndex, load_index
from bertfeat.choices import Level
from bertfeat.display import html_table, model_text
from bertfeat.durable.files import os_errors
from bertfeat.durable.publication import standing
from bertfeat.durable.records import to_values
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS
from bertfeat.records import BoolArray, IntArray
from bertfeat.search.filters import PositionFilters
from bertfeat.search.hitrows import HitRows
from bertfeat.search.kwic import Context
from bertfeat.search.origin import Origin
from bertfeat.search.queryvectors import EncodedQueries, QueryEncoder
from bertfeat.search.rowmap import RowMap
from bertfeat.storage import local_path
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store
from bertfeat.vectors.nearest import Metric

Queries = str | Sequence[str] | npt.NDArray[Any] | EncodedQueries

# The name of a hit's row number in the level, among the columns of the store.
ROW = "row"
_RANKED = ("query", "rank", "score")
_MAX_TRIES = 5


class Index:
    """An index with its store; made by `open_index` and `build_index`. Its vectors have positions, numbered from 0.

    Attributes:
        path: Its folder.
        description: The content of `index.json`: settings, measured recall, seconds, ...
        origin: The store and feature of its vectors.
        was_complete: Whether `build_index` found it finished.
        n_added: How many vectors `update_index` added.
    """

    def __init__(
        self,
        path: Path,
        description: IndexDescription,
        vectors: VectorIndex,
        *,
        store: str | Path | Store | None = None,
    ) -> None:
        self.path = path
        self.was_complete, self.n_added = False, 0
        self.description = description
        self.origin = Origin.at(description)
        self._vectors = vectors
        self._given_store = store
        self._rows = RowMap(path / ROWS)
        self._encoder = QueryEncoder(
            self.spec, given_words=self.origin.given_words, name=f"index {path}", prompt=self.origin.query_prompt
        )

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {self.n_vectors} vectors, level {self.level}, {self.description.factory})"

    def _repr_html_(self) -> str:
        about, origin = self.description, self.origin
        rows = [
            ("rows", f"level {self.level}, {self.spec.feature} of {origin.store}"),
            ("model", model_text(to_values(self.spec))),
            ("compared", f"by {self.metric}, transform {about.transform}"),
            ("recall@10", about.measured.get("recall_at_10")),
        ]
        return html_table(repr(self), ["", "value"], rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._rows.close()
        self._vectors.close()

    @property
    def spec(self) -> FeatureSpec:
        """The feature that it holds."""
        return self.origin.spec

    @property
    def level(self) -> Level:
        """The level whose rows it finds."""
        return self.spec.level

    @property
    def metric(self) -> Metric:
        """How vectors are compared."""
        return self.description.metric

    @property
    def transform(self) -> Transform | None:
        """What is done to vectors before they are compared."""
        return self._vectors.transform

    @property
    def n_vectors(self) -> int:
        """The number of vectors."""
        return self.description.n_vectors

    @functools.cached_property
    def store(self) -> Store:
        """The store that it was built from.

        Raises:
            UserError: The store is not there any more, or is another one.
        """
        return self.origin.find_store(self.path, self._given_store)

    @functools.cached_property
    def rows(self) -> IntArray:
        """The row of the level that each vector comes from, int64 (n_vectors,)."""
        return self._rows.all_rows()

    def vectors(self, positions: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return vectors as the store holds them, (n, dim), before any transform.

        Raises:
            UserError: There is no such position.
        """
        return self.store.take(self.level, self.spec.feature, self._rows.rows(positions))

    def load_model(self) -> None:
        """Load the model, which the first query of texts does otherwise.

        Raises:
            UserError: The store or the model is not the one of the index.
        """
        self.store  # noqa: B018
        self._encoder.load()

    def encode(self, texts: Sequence[str], names: Sequence[str] | None = None) -> EncodedQueries:
        """Encode queries as the store's rows were, after the prompt for queries if there is one.

        See `QueryEncoder.encode`.

        Raises:
            UserError: A query cannot be encoded, or the store or the model is not the one of the index.
        """
        # Opening the store checks that it is the one that the index describes.
        self.store  # noqa: B018
        return self._encoder.encode(texts, names)

    def search(
        self,
        queries: Queries,
        k: int = 10,
        *,
        where: str | None = None,
        same_word: bool = False,
        exclude_same_word: bool = False,
        columns: Sequence[str] | None = None,
        allowed: BoolArray | None = None,
    ) -> pl.DataFrame:
        """Find the k most similar rows for each query.

        Args:
            queries: Texts, at word and token level with a word in brackets: `on the [bank] of the river`; or float
                vectors (n_queries, dim) as they are in a store; or the result of `encode`.
            k: The number of hits per query; if it is more than the index has, all are returned.
            where: An SQL condition on columns of the store: `label = 'x' AND n_tokens > 3`.
            same_word: Find only occurrences of the word that a query marks, in upper or lower case.
            exclude_same_word: Find only other words.
            columns: Columns of the store, or of its documents if the sentence level is stored too; `row` is the number
                of the row in the level. By default the columns that identify a row, and its text.
            allowed: bool (n_vectors,), the positions that may be found; all by default.

        Returns:
            A row for each hit: `query`, `rank` from 1 on, `score` (the cosine, inner product or distance), and the
            columns. A query has fewer than k hits only if fewer are allowed or an approximate index finds fewer.

        Raises:
            UserError: A query, k, a filter or a column cannot be used; or the store is not there.

        Examples:
            >>> index.search("a text", k=3, where="label = 'x'")  # doctest: +SKIP
        """
        names = list(dict.fromkeys(LEVELS[self.level].shown if columns is None else columns))
        self._hits.check_columns([name for name in names if name != ROW])
        if taken := [name for name in names if name in _RANKED]:
            raise UserError(f"column {taken[0]!r} of the store has the name of the {taken[0]} of a hit; leave it out")
        k = self._at_most(k)
        if same_word and exclude_same_word:
            raise UserError("same_word and exclude_same_word leave nothing to find; pass one of them")
        mask = self._mask(where, allowed)
        encoded = self._encoded(queries)
        if same_word or exclude_same_word:
            scores, positions = self._by_word(encoded, k, mask, same=same_word)
        else:
            scores, positions = self.nearest(encoded.vectors, k, allowed=mask)
        return self._frame(scores, positions, names)

    def nearest(
        self, vectors: npt.NDArray[Any], k: int, *, allowed: BoolArray | None = None
    ) -> tuple[npt.NDArray[np.float32], IntArray]:
        """Find the k most similar vectors for each vector.

        Returns:
            The scores, float32 (n, k), NaN where there are fewer hits; and the positions, int64 (n, k), -1 there. If
            the index holds fewer than k vectors, k is their number.

        Raises:
            UserError: The vectors or k cannot be used.
        """
        return self._vectors.search(vectors, self._at_most(k), allowed=allowed)

    def prepare(self, vectors: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return vectors (n, dim) as the index compares them: transformed, and for the cosine of unit length."""
        return prepare(vectors, self.transform, self.metric)

    def contexts(self, rows: npt.ArrayLike, width: int = 40) -> list[Context]:
        """Return rows of the level, words or tokens, with `width` columns of their text on either side.

        Raises:
            UserError: The index holds whole texts.
        """
        if self.level is Level.SENTENCE:
            raise UserError(f"{self.path}: holds whole texts, which have no context")
        return self._hits.contexts(np.asarray(rows, np.int64), width)

    @functools.cached_property
    def _hits(self) -> HitRows:
        return HitRows(self.store, self.level)

    @functools.cached_property
    def _filters(self) -> PositionFilters:
        return PositionFilters(self.store, self.level, self.rows)

    def _at_most(self, k: int) -> int:
        """Return k, or the number of vectors where there are fewer; raise a UserError if k is below 1."""
        if k < 1:
            raise UserError(f"k {k} is below 1; ask for 1 hit or more")
        return min(k, max(self.n_vectors, 1))

    def _mask(self, where: str | None, allowed: BoolArray | None) -> BoolArray | None:
        """Return the positions that may be found; None for all."""
        check_allowed(allowed, self.n_vectors)
        if where is None:
            return allowed
        mask = self._filters.condition(where)
        return mask if allowed is None else mask & allowed

    def _encoded(self, queries: Queries) -> EncodedQueries:
        if isinstance(queries, EncodedQueries):
            return queries
        if isinstance(queries, np.ndarray):
            vectors = queries[None] if queries.ndim == 1 else queries
            return EncodedQueries(vectors, (None,) * len(vectors))
        return self.encode([queries] if isinstance(queries, str) else queries)

    def _by_word(
        self, encoded: EncodedQueries, k: int, mask: BoolArray | None, *, same: bool
    ) -> tuple[npt.NDArray[np.float32], IntArray]:
        """Search for each word among its own occurrences, or among all others."""
        scores = np.full((len(encoded.vectors), k), np.nan, np.float32)
        positions = np.full((len(encoded.vectors), k), -1, np.int64)
        queries_of: dict[str, list[int]] = {}
        for number, surface in enumerate(encoded.surfaces):
            if surface is None:
                raise UserError("same-word and exclude-same-word need a query with a [word] in an index of words")
            queries_of.setdefault(surface.casefold(), []).append(number)
        for surface, numbers in queries_of.items():
            words = self._filters.words_like(surface)
            allowed = words if same else ~words
            found = self.nearest(encoded.vectors[numbers], k, allowed=allowed if mask is None else allowed & mask)
            scores[numbers], positions[numbers] = found
        return scores, positions

    def _frame(self, scores: npt.NDArray[np.float32], positions: IntArray, names: list[str]) -> pl.DataFrame:
        query, place = np.nonzero(positions >= 0)
        rows = self._rows.rows(positions[query, place])
        frame = pl.DataFrame({"query": query, "rank": place + 1, "score": scores[query, place], ROW: rows})
        if others := [name for name in names if name != ROW]:
            frame = frame.hstack(self._hits.columns(rows, others))
        return frame.select(*_RANKED, *names)


@os_errors(UserError)
def open_index(path: str | Path, *, store: str | Path | Store | None = None) -> Index:
    """Open an index for searching.

    Args:
        path: Its folder.
        store: The store that it was built from; by default the one at its old place.

    Raises:
        UserError: There is no index, or it is damaged, or of a newer format.

    Examples:
        >>> index = open_index("sentences.index")  # doctest: +SKIP
        >>> index.search(["late delivery", "broken on arrival"], k=5)  # doctest: +SKIP
    """
    place = local_path(path, "an index")
    for _ in range(_MAX_TRIES):
        folder = standing(place)
        description = read_description(folder)
        try:
            index = _open(folder, description, store)
        except UserError:
            if read_description(standing(place)) == description:
                raise
            continue
        # If another index has taken its place meanwhile, the files may be from both.
        if read_description(standing(place)) == description:
            return index
        index.close()
    raise UserError(f"{place}: is replaced again and again; wait until that is done")


def _open(folder: Path, description: IndexDescription, store: str | Path | Store | None) -> Index:
    vectors = load_index(folder, description)
    try:
        return Index(folder, description, vectors, store=store)
    except BaseException:
        vectors.close()
        raise
