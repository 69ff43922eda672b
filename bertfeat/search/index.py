"""Search of an index, or of all rows of a store: texts, words in context or vectors in, rows of the store out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow.parquet as pq

from bertfeat.ann.budget import CHUNK_BYTES
from bertfeat.ann.description import ROWS, IndexDescription
from bertfeat.ann.exact import check_request, exact_search
from bertfeat.ann.folder import read_description
from bertfeat.ann.index import load_index
from bertfeat.ann.transforms import TransformSpec, fit_transform, prepare
from bertfeat.choices import one_of
from bertfeat.display import html_table, model_text
from bertfeat.durable.files import os_errors
from bertfeat.durable.publication import standing
from bertfeat.durable.records import to_values
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS
from bertfeat.progress import Progress
from bertfeat.records import BoolArray, IntArray
from bertfeat.search.filters import PositionFilters
from bertfeat.search.hits import Context, HitRows
from bertfeat.search.origin import Origin
from bertfeat.search.query_vectors import EncodedQueries, Queries, QueryEncoder
from bertfeat.search.reranking import Rerank, Reranker, Tokens
from bertfeat.storage import local_path
from bertfeat.store.reader import Store, as_store, check_columns, check_known
from bertfeat.store.selection import check_rows
from bertfeat.vectors.nearest import Metric
from bertfeat.vectors.store import StoreVectors

# The name of a hit's row number in the level, among the columns of the store.
ROW = "row"
_RANKED = ("query", "rank", "score")
_RERANKED = (*_RANKED, "dense_score", "matches")
# Pairs of a query and a candidate that are scored at once.
_PAIRS_AT_ONCE = 1 << 20
_MAX_TRIES = 5


class Index:
    """An index with its store; made by `open_index` and `build_index`. Its vectors have positions, numbered from 0.

    Attributes:
        path: Its folder.
        description: The content of `index.json`: settings, measured recall, seconds, ...
        origin: The store and feature of its vectors.
        spec: The feature that it holds.
        level: The level whose rows it finds.
        metric: How vectors are compared.
        transform: What is done to vectors before they are compared; None for nothing.
        n_vectors: The number of vectors.
        rows: int64 (n_vectors,), ascending: the row of the level that each vector comes from.
        was_complete: Whether `build_index` found it finished.
        n_added: How many vectors `update` added.
    """

    def __init__(self, path: Path, description: IndexDescription, *, store: str | Path | Store | None = None) -> None:
        self._vectors = load_index(path, description)
        self.path = path
        self.was_complete, self.n_added = False, 0
        self.description = description
        self.origin = Origin.at(description)
        self.spec = self.origin.spec
        self.level = self.spec.level
        self.metric = description.metric
        self.transform = self._vectors.transform
        self.n_vectors = description.n_vectors
        # Read at once: another index may take its place. pyarrow takes a relative path that starts with `a:` for a URL.
        with pq.ParquetFile((path / ROWS).absolute()) as file:
            # By polars: a column of pyarrow imports pandas for this.
            self.rows: IntArray = cast("pl.DataFrame", pl.from_arrow(file.read(["row"])))["row"].to_numpy()
        rerank = self.origin.rerank
        self._rerank_tokens = None if rerank is None else Tokens(path, rerank)
        self._given_store = store
        self._encoder = QueryEncoder(
            spec=self.spec,
            given_words=self.origin.given_words,
            name=f"index {path}",
            prompt=self.origin.query_prompt,
            token_spec=None if rerank is None else rerank.spec,
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._vectors.close()

    @functools.cached_property
    def store(self) -> Store:
        """The store that it was built from.

        Raises:
            UserError: The store is not there any more, or is another one.
        """
        if self._given_store is None:
            return self.origin.find_store(self.path)
        return self.origin.check_store(as_store(self._given_store), self.path)

    def vectors(self, positions: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return vectors as the store holds them, (n, dim), before any transform.

        Raises:
            UserError: There is no such position.
        """
        return self.store.take(self.level, self.spec.feature, self.rows[check_rows(positions, self.n_vectors)])

    def load_model(self) -> None:
        """Load the model, which the first query of texts does otherwise; see `encode`."""
        self.store  # noqa: B018
        self._encoder.load()

    def encode(self, queries: Queries, names: Sequence[str] | None = None) -> EncodedQueries:
        """Return queries as vectors: texts are encoded as the store's rows were, after the prompt for queries if any.

        Args:
            queries: As for `search`.
            names: The name of each text in messages; by default `query 0`, `query 1`, ..., or `query`.

        Raises:
            UserError: A query cannot be encoded, or the store or the model is not the one of the index.
        """
        # Opening the store checks that it is the one that the index describes.
        self.store  # noqa: B018
        return self._encoder.encode(queries, names)

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
        rerank: str | None = None,
        candidates: int | str | None = None,
        group_by: str | None = None,
        matches: bool = False,
    ) -> pl.DataFrame:
        """Find the k most similar rows for each query.

        An index that was built with `rerank` orders the best hits of its vectors again, by MaxSim: each token of a
        query meets the token of the document that is most similar to it, and the score is the mean of these cosines.

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
            rerank: `maxsim`, all tokens of a query with the same weight; `idf`, each weighted by its inverse document
                frequency; `mixed`, the mean of the cosine of the vectors and the score of `idf`; or `none`. By default
                `mixed` for texts, if the index was built for it (`idf` if its metric is not the cosine).
            candidates: How many of the best hits of the vectors are ordered again (100, k at least); or `all`.
            group_by: A column of the level; only the best hit of each of its values is returned, such as of each
                `doc_id` at the span level.
            matches: Also return the column `matches`: for each word of a query its `query_word`, the `word` of the
                document that it met, that word's `char_start` and `char_end` in the text of the hit, and its part of
                the MaxSim as `score`.

        Returns:
            A row for each hit: `query`, `rank` from 1 on, `score` (the cosine, inner product or distance, or that of
            `rerank`, and then the former as `dense_score`), and the columns. A query has fewer than k hits only if
            fewer are allowed or an approximate index finds fewer. A document without tokens comes last, with a NaN.

        Raises:
            UserError: A query, k, a filter or a column cannot be used; or the store is not there.

        Examples:
            >>> index.search("a text", k=3, where="label = 'x'")  # doctest: +SKIP
        """
        names = list(dict.fromkeys(LEVELS[self.level].shown if columns is None else columns))
        check_columns(self.store, self.level, [name for name in names if name != ROW])
        if taken := [name for name in names if name in (_RANKED if self._rerank_tokens is None else _RERANKED)]:
            raise UserError(f"column {taken[0]!r} of the store has the name of the {taken[0]} of a hit; leave it out")
        k = self._at_most(k)
        if same_word and exclude_same_word:
            raise UserError("same_word and exclude_same_word leave nothing to find; pass one of them")
        check_request(k, allowed, self.n_vectors)
        if where is not None:
            mask = self._filters.condition(where)
            allowed = mask if allowed is None else mask & allowed
        encoded = self.encode(queries)
        reranker = self._reranker(rerank, encoded)
        if reranker is None and (matches or candidates is not None):
            raise UserError("`matches` and `candidates` are for `rerank`, and this search has none; leave them out")

        def find(k: int) -> Sequence[npt.NDArray[Any]]:
            if same_word or exclude_same_word:
                return self._by_word(encoded, k, allowed, same=same_word)
            if reranker is None:
                return self.nearest(encoded.vectors, k, allowed=allowed)
            n = 100 if candidates is None else candidates
            return self._reranked(reranker, encoded.vectors, k, allowed, n)

        scores, *further, positions = find(k) if group_by is None else self._best_of_groups(find, k, group_by)
        dense = further[0] if further else None
        query, place = np.nonzero(positions >= 0)
        found = positions[query, place]
        rows = self.rows[found]
        more: dict[str, Any] = {} if dense is None else {"dense_score": dense[query, place]}
        if matches and reranker is not None:
            more["matches"] = self._matches(reranker, query, found)
        frame = pl.DataFrame({"query": query, "rank": place + 1, "score": scores[query, place], **more, ROW: rows})
        if others := [name for name in names if name != ROW]:
            frame = frame.hstack(self._hits.columns(rows, others))
        return frame.select(*_RANKED, *more, *names)

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

    def evaluate(self, *, n_queries: int = 1000, seed: int = 0) -> dict[str, Any]:
        """Measure the recall against exact search, and the speed.

        The queries are random vectors of the index; a vector is not counted as a hit for itself. A hit that is as close
        as the last true one counts as true.

        Returns:
            `n_queries`, `recall@K` for K of 1, 10 and 100 (None where the index holds K vectors or fewer),
            `queries_per_s` for 10 hits each, and `ms_per_query` of queries one at a time. If the index was tuned by
            given queries, `given` has the same values for those of them that did not tune it.

        Raises:
            UserError: The index holds fewer than 2 vectors, or its store is not there.
        """
        from bertfeat.search.evaluation import evaluate_index

        return evaluate_index(self, n_queries=n_queries, seed=seed)

    def update(self, store: str | Path | Store, *, progress: bool | Progress | None = None) -> Index:
        """Add the new rows of a grown store.

        What was learned from the first rows stays: the transform, and the lists and codes of a trained index. A `Flat`
        index without a transform is then the same as a new one; others are tuned and measured again, by the same
        queries if some were given (`tune_queries`). The folder is replaced when the new index is whole; this object
        keeps the old one.

        Args:
            store: That of the index after `append`, or another one whose first rows are the same.
            progress: See `extract`.

        Returns:
            The new index, open.

        Raises:
            UserError: The store holds another feature, or its first rows are not those of the index; or the index is
                damaged, or no longer fits into the memory that it was built for.
            RunError: The system refused a write; the index has not changed.

        Examples:
            >>> open_index("sentences.index").update("grown-features")  # doctest: +SKIP
        """
        from bertfeat.search.update import update_index

        return update_index(self.path, store, progress=progress)

    @property
    def default_rerank(self) -> Rerank:
        """How the hits of texts are ordered by default: as is best on most collections (docs/rerank.md)."""
        if self._rerank_tokens is None:
            return Rerank.NONE
        return Rerank.MIXED if self.metric is Metric.COSINE else Rerank.IDF

    def _reranker(self, asked: str | None, encoded: EncodedQueries) -> Reranker | None:
        """Return a reranker for queries; None if the index alone orders their hits, or raise a UserError."""
        if asked is None and encoded.tokens is None:
            return None
        how = one_of(Rerank, "rerank", asked or self.default_rerank)
        if how is Rerank.NONE:
            return None
        if self._rerank_tokens is None:
            raise UserError(f"{self.path}: has no tokens to rerank by; build it with `rerank`, as token:layer_06")
        if encoded.tokens is None:
            raise UserError(f"rerank {asked!r} needs the tokens of the queries; pass texts, or rerank='none'")
        if how is Rerank.MIXED and self.metric is not Metric.COSINE:
            raise UserError(f"rerank 'mixed' needs the metric cosine, and {self.path} has {self.metric}; pass 'idf'")
        return self._rerank_tokens.reranker(encoded.tokens, how)

    def _reranked(
        self, reranker: Reranker, vectors: npt.NDArray[Any], k: int, allowed: BoolArray | None, candidates: int | str
    ) -> list[npt.NDArray[Any]]:
        """Return the scores, the dense scores and the positions of the best k of the candidates, (n_queries, k)."""
        if not (candidates == "all" or (str(candidates).isdecimal() and int(candidates))):
            raise UserError(f"candidates {candidates!r}: write a number from 1 on, or all")
        n = self.n_vectors if candidates == "all" else self._at_most(max(k, int(candidates)))
        parts = []
        for start in range(0, max(1, len(vectors)), step := max(1, _PAIRS_AT_ONCE // n)):
            best = reranker.order(start, *self.nearest(vectors[start : start + step], n, allowed=allowed))
            parts.append([part[:, :k] for part in best])
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    def _best_of_groups(
        self, find: Callable[[int], Sequence[npt.NDArray[Any]]], k: int, column: str
    ) -> list[npt.NDArray[Any]]:
        """Return what `find` returns for the best hit of each group, (n_queries, k); more are found until k differ."""
        check_known(self.store.path, [column], self._hits.own, f" at level {self.level}")
        groups = self.store.polars(self.level, [column])[column].rank("dense").fill_null(0).to_numpy()[self.rows]
        n = k
        while True:
            n = self._at_most(4 * n)
            found = find(n)
            taken, n_short = np.full((len(found[0]), k), -1, np.int64), 0
            for query, positions in enumerate(found[-1]):
                there = positions[positions >= 0]
                first = np.sort(np.unique(groups[there], return_index=True)[1])[:k]
                taken[query, : len(first)] = first
                n_short += len(first) < k and len(there) == n
            if not n_short or n == self.n_vectors:
                break
        parts = [np.take_along_axis(np.asarray(part), taken.clip(0), axis=1) for part in found]
        parts[-1] = np.where(taken < 0, -1, parts[-1])
        return parts

    def _matches(self, reranker: Reranker, query: IntArray, positions: IntArray) -> list[list[dict[str, Any]]]:
        """Return the matches of each pair of a query and a position, (n_pairs,)."""
        there = {column.name for column in self.store.schema(self.level).columns}
        names = [name for name in ("text", "text_pair", "char_start") if name in there]
        frame = self.store.rows(self.level, self.rows[positions], names)
        starts = frame["char_start"].to_list() if "char_start" in there else [0] * len(frame)
        texts = frame.select(pl.exclude("char_start")).iter_rows()
        found = zip(query.tolist(), positions.tolist(), texts, starts, strict=True)
        return [reranker.matches(self.store, *each) for each in found]

    def prepare(self, vectors: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return vectors (n, dim) as the index compares them: transformed, and for the cosine of unit length."""
        return prepare(vectors, self.transform, self.metric)

    def contexts(self, rows: npt.ArrayLike, width: int = 40) -> list[Context]:
        """Return rows of the level, words or tokens, with `width` columns of their text on either side.

        Raises:
            UserError: The index holds whole texts.
        """
        return self._hits.contexts(np.asarray(rows, np.int64), width)

    @property
    def has_contexts(self) -> bool:
        """Whether hits are words, tokens or mentions, which are best read with their `contexts`."""
        return self._hits.has_context

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

    def _by_word(
        self, encoded: EncodedQueries, k: int, allowed: BoolArray | None, *, same: bool
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
            mask = words if same else ~words
            mask = mask if allowed is None else mask & allowed
            scores[numbers], positions[numbers] = self.nearest(encoded.vectors[numbers], k, allowed=mask)
        return scores, positions


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
        opened: Index | Exception
        try:
            opened = Index(folder, description, store=store)
        except (UserError, OSError) as error:
            opened = error
        # If another index has taken its place meanwhile, the files may be from both, or missing.
        if standing(place) == folder and read_description(folder) == description:
            if isinstance(opened, Exception):
                raise opened
            return opened
    raise UserError(f"{place}: is replaced again and again; wait until that is done")


def nearest_rows(
    store: str | Path | Store,
    vectors: npt.NDArray[Any],
    k: int = 10,
    *,
    level: str | None = None,
    feature: str | int | None = None,
    metric: str = "cosine",
    transform: str = "none",
) -> tuple[npt.NDArray[np.float32], IntArray]:
    """Find the k most similar rows of a store for each vector by comparing all rows.

    Rows without a vector are never found. Use `build_index` to search the same store many times.

    Args:
        store: The store, or its folder.
        vectors: float (n, dim), as a store holds them.
        k: The number of hits per vector.
        level: As for `build_index`.
        feature: As for `build_index`.
        metric: As for `build_index`.
        transform: As for `build_index`; it is fitted to the vectors of the store.

    Returns:
        The scores, float32 (n, k), best first, NaN where there are fewer rows; and the rows of the level, int64 (n, k),
        -1 there.

    Raises:
        UserError: The store, a setting or a vector cannot be used; or there are too few rows to fit the transform.

    Examples:
        >>> from bertfeat import extract
        >>> store = extract("examples/data/peps.txt", tmp / "features", levels="sentence", layers="-1")
        >>> scores, rows = nearest_rows(store, store.numpy("sentence", "layer_06")[:2], k=3)
        >>> rows[:, 0].tolist()
        [0, 1]
    """
    opened = as_store(store)
    where = opened.choose_level(level)
    source = StoreVectors(opened, where, opened.choose_feature(where, feature), chunk_bytes=CHUNK_BYTES)
    fitted = fit_transform(source, TransformSpec.parse(transform))
    scores, positions = exact_search(source, vectors, k, one_of(Metric, "metric", metric), fitted)
    return scores, np.append(source.rows, -1)[positions]
