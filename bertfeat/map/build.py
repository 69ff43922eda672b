"""Map of a store: two coordinates and the nearest neighbors of each row, as Parquet and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from bertfeat.ann.budget import CHUNK_BYTES
from bertfeat.ann.description import BuildSettings
from bertfeat.ann.exact import sample_positions
from bertfeat.ann.neighbors import NearestNeighbors
from bertfeat.choices import Level, one_of
from bertfeat.config import parse_size
from bertfeat.durable.files import make_parents
from bertfeat.durable.output_check import check_file
from bertfeat.durable.publication import publish_bytes, publish_file
from bertfeat.errors import UserError, did_you_mean
from bertfeat.exports.frame_files import frame_writer
from bertfeat.levels import LEVELS, PAIR_COLUMNS
from bertfeat.map.coordinates import MapMethod, fit_plane, parse_method, umap_plane
from bertfeat.map.page import map_page
from bertfeat.progress import Progress, reporting
from bertfeat.records import BoolArray, Float32Array, IntArray
from bertfeat.search.filters import PositionFilters
from bertfeat.search.hits import HitRows
from bertfeat.storage import local_path
from bertfeat.store.reader import Store, as_store, check_columns, row_columns
from bertfeat.vectors.array import FloatArray, chunks_of
from bertfeat.vectors.nearest import Metric
from bertfeat.vectors.store import StoreVectors, searchable

# Consecutive rows of a map: their numbers, coordinates (n, 2), and neighbors with their distances, each (n, k).
_Drawn: TypeAlias = tuple[range, Float32Array, IntArray, Float32Array]
#: The most points of a page: more make the file and its start too slow.
MAX_POINTS = 200_000
_TEXTS = ("text", "text_pair")
_MADE = ("x", "y", "neighbors")
# The columns of a terminal on either side of a word, and the characters of a text on the page.
_CONTEXT_COLUMNS = 60
_PAGE_TEXT = 300
_TEXT = pl.col(pl.String)
_CUT_TEXTS = pl.when(_TEXT.str.len_chars() > _PAGE_TEXT).then(_TEXT.str.head(_PAGE_TEXT - 1) + "…").otherwise(_TEXT)


@dataclass(frozen=True, slots=True)
class StoreMap:
    """A written map.

    Attributes:
        path: The Parquet file.
        page: The HTML file; None without one.
        level: The level of the rows.
        feature: The feature that is drawn.
        method: `pca` or `umap`.
        n_rows: The rows of the map.
        n_points: The points of the page: all rows, or a random sample of 200,000.
        n_left_out: Rows of the level that are never drawn: those without a vector, and special tokens.
        n_neighbors: The neighbors of a row.
        shown_variance: The share of the variance that the plane of a PCA shows; None for UMAP.
    """

    path: Path
    page: Path | None
    level: str
    feature: str
    method: str
    n_rows: int
    n_points: int
    n_left_out: int
    n_neighbors: int
    shown_variance: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the map's facts as JSON values."""
        values = asdict(self)
        return values | {name: None if values[name] is None else str(values[name]) for name in ("path", "page")}


def map_store(
    store: str | Path | Store,
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
    """Draw the rows of a level in a plane; see `Store.map`."""
    how, compared, memory = parse_method(method), one_of(Metric, "metric", metric), parse_size(max_memory, "max_memory")
    if compared is Metric.IP:
        raise UserError("metric 'ip': an inner product is not a distance; choose cosine or l2")
    for name, number in (("neighbors", neighbors), ("limit", limit), ("sample", sample)):
        if number is not None and number < 1:
            raise UserError(f"`{name}` {number} is below 1")
    if color is not None and not page:
        raise UserError("`color` is for the page, which is switched off; leave one of them out")
    path, beside = _places(output, page=page, overwrite=overwrite)
    opened = as_store(store)
    where = opened.choose_level("word" if level is None and word is not None else level)
    chosen = opened.choose_feature(where, feature)
    table = _MapTable(opened, where, columns, color)
    with reporting(progress) as reports:
        included = searchable(opened, where, chosen)
        rows = np.flatnonzero(included if word is None else included & _is_word(opened, where, word))[:limit]
        rows = rows if sample is None else rows[sample_positions(len(rows), sample, seed)]
        source = StoreVectors(opened, where, chosen, rows=rows, chunk_bytes=CHUNK_BYTES, progress=reports)
        try:
            plane, share = fit_plane(source)
        except UserError as error:
            raise UserError(f"{opened.path}: level {where}, feature {chosen}: {error}") from None
        settings = BuildSettings(metric=compared, seed=seed, recall=0.99, max_memory=memory)
        nearest = NearestNeighbors(source, settings)
        drawn: Iterable[_Drawn] = (
            (span, plane.apply(vectors), *_neighbors(nearest, span, vectors, neighbors, compared))
            for span, vectors in chunks_of(source)
        )
        if how is MapMethod.UMAP:
            drawn = list(drawn)
            reports.stage("UMAP")
            _, places, ids, distances = (np.concatenate(arrays) for arrays in zip(*drawn, strict=True))
            moved = umap_plane(places, ids, distances, seed)
            drawn = [(span, moved[span.start : span.stop], near, far) for span, _, near, far in drawn]
        points = sample_positions(len(rows), MAX_POINTS if page else 0, seed)
        made = StoreMap(
            path,
            beside,
            level=str(where),
            feature=chosen,
            method=str(how),
            n_rows=len(rows),
            n_points=len(points),
            n_left_out=int(np.count_nonzero(~included)),
            n_neighbors=min(neighbors, len(rows) - 1),
            shown_variance=round(share, 4) if how is MapMethod.PCA else None,
        )
        make_parents(path)
        with publish_file(path) as sink:
            shown = []
            with frame_writer(path, sink) as write:
                for span, places, ids, distances in drawn:
                    frame = table.read(rows[span.start : span.stop], places)
                    write(frame.with_columns(neighbor_structs(ids, distances)))
                    first, last = np.searchsorted(points, [span.start, span.stop])
                    shown.append(frame[points[first:last] - span.start].with_columns(_CUT_TEXTS))
            # Made before the Parquet file gets its place, so that a failure leaves neither.
            html = _page(pl.concat(shown), table, made, word) if page else b""
        if beside is not None:
            publish_bytes(beside, html)
    return made


def _places(output: str | Path, *, page: bool, overwrite: bool) -> tuple[Path, Path | None]:
    """Return the places of the Parquet file and of the page, which can be written to."""
    path = local_path(output, "a map")
    if page and path.suffix.lower() == ".html":
        path = path.with_suffix(".parquet")
    check_file(path, overwrite=overwrite, endings=(".parquet",))
    if not page:
        return path, None
    check_file(path.with_suffix(".html"), overwrite=overwrite)
    return path, path.with_suffix(".html")


def _is_word(store: Store, level: str, word: str) -> BoolArray:
    """Return which rows of a level are a word, bool (n_rows,)."""
    where = store.schema(level).level
    if not LEVELS[where].surface:
        raise UserError(f"`level='{level}'`: a row is a whole text, which has no word; pass `level='word'`")
    found = PositionFilters(store, where, np.arange(store.n_rows(where))).words_like(word)
    if not found.any():
        raise UserError(f"{store.path}: no row of level {level} is the word {word!r}, in upper or lower case")
    return found


def _neighbors(
    nearest: NearestNeighbors, rows: range, vectors: FloatArray, k: int, metric: Metric
) -> tuple[IntArray, Float32Array]:
    """Return the positions of the nearest rows, int64 (n, k), the nearest first, and distances, float32 (n, k)."""
    scores, positions = nearest.of(vectors, k, np.arange(rows.start, rows.stop))
    return positions, scores if metric is Metric.L2 else np.maximum(0, 1 - scores)


def _page(shown: pl.DataFrame, table: _MapTable, made: StoreMap, word: str | None) -> bytes:
    """Return the page of some rows; the second text of a pair is on a line of its own."""
    texts = pl.concat_str([name for name in _TEXTS if name in shown.columns], separator="\n", ignore_nulls=True)
    rows = f"{made.n_rows:,} rows"
    if made.n_points < made.n_rows:
        rows = f"{made.n_points:,} random rows of {made.n_rows:,}"
    note = "UMAP: near points are similar; distances between groups and sizes of groups mean little."
    if made.shown_variance is not None:
        share = f"{100 * made.shown_variance:.1f} % of the variance"
        note = f"PCA: this plane shows {share}, so near points may be far apart in truth."
    return map_page(
        shown.select("x", "y").to_numpy(),
        shown.select(texts).to_series().to_list(),
        {name: shown[name].to_list() for name in table.colors},
        title=f"{table.title}: {made.level}, {made.feature}" + (f", {word}" if word is not None else ""),
        note=f"{rows}. {note}",
        color=table.color,
    )


class _MapTable:
    """The columns of a map's rows: those that name a row, its text, and the kept columns of the corpus."""

    def __init__(self, store: Store, level: Level, columns: Sequence[str] | None, color: str | None) -> None:
        entry, own = LEVELS[level], row_columns(store, level)
        standard = {column.name for known in LEVELS.values() for column in (*known.columns, *PAIR_COLUMNS)}
        kept = [name for names in own for name in names if name not in standard] if columns is None else list(columns)
        check_columns(store, level, kept)
        names = [name for name in entry.names if name in own[0] and name not in _TEXTS]
        self._texts = [] if entry.surface else [name for name in _TEXTS if name in own[0]]
        for n, name in enumerate(kept):
            if name in {*names, *_TEXTS, *_MADE, *kept[:n]}:
                raise UserError(f"column {name!r}: the map has a column of this name already; pass other `columns`")
        self._hits, self._names, self._kept = HitRows(store, level), names, kept
        self.title = (store.path.resolve() if isinstance(store.path, Path) else store.path).name
        self.colors, self.color = names + kept, color
        if color is not None and color not in self.colors:
            hint = did_you_mean(color, self.colors) or f"columns are {', '.join(self.colors)}"
            raise UserError(f"`color` {color!r}: no such column in the map; {hint}")

    def read(self, rows: IntArray, places: Float32Array) -> pl.DataFrame:
        """Return the columns of some rows, and their coordinates."""
        frame = self._hits.columns(rows, [*self._names, *self._texts, *self._kept])
        if "text" not in self._texts:
            texts = [context.marked() for context in self._hits.contexts(rows, _CONTEXT_COLUMNS)]
            frame.insert_column(len(self._names) + len(self._texts), pl.Series("text", texts, dtype=pl.String))
        return frame.with_columns(pl.Series("x", places[:, 0]), pl.Series("y", places[:, 1]))


def neighbor_structs(ids: IntArray, distances: Float32Array) -> pl.Series:
    """Return neighbors, each (n, k), as structs of two lists: shorter ones where an index found fewer (-1, NaN)."""
    lists = pl.Schema({"ids": pl.List(pl.Int64), "distances": pl.List(pl.Float32)})
    frame = pl.DataFrame({"ids": ids, "distances": distances}).cast(lists)
    if (ids < 0).any():
        found = pl.element().ge(0), pl.element().is_not_nan()
        frame = frame.with_columns(pl.col(name).list.filter(one) for name, one in zip(lists, found, strict=True))
    return frame.to_struct("neighbors")
