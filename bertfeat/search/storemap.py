"""Map of a store: two coordinates and the nearest neighbours of each row, as Parquet and as a page."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from bertfeat.ann.budget import CHUNK_BYTES
from bertfeat.ann.coordinates import MapMethod, fit_plane, parse_method, umap_plane
from bertfeat.ann.description import BuildSettings
from bertfeat.ann.exact import sample_positions
from bertfeat.ann.transforms import Transform
from bertfeat.choices import Level
from bertfeat.config import parse_size
from bertfeat.durable.files import Sink, make_parents
from bertfeat.durable.placecheck import check_file
from bertfeat.durable.publication import publish_bytes, publish_file
from bertfeat.errors import UserError
from bertfeat.exports.framefiles import frame_writer
from bertfeat.levels import LEVELS
from bertfeat.progress import Progress, reporting
from bertfeat.records import Float32Array, IntArray
from bertfeat.reports.mappage import map_page
from bertfeat.search.filters import PositionFilters
from bertfeat.search.maptable import MapTable, cut_texts, neighbour_structs, page_texts
from bertfeat.search.rowneighbours import Neighbours
from bertfeat.storage import local_path
from bertfeat.store.reader import Store, open_store
from bertfeat.vectors.array import Vectors, chunks_of
from bertfeat.vectors.nearest import Metric, parse_metric
from bertfeat.vectors.store import StoreVectors, searchable

#: The most points of a page: more make the file and its start too slow.
MAX_POINTS = 200_000


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
        n_neighbors: The neighbours of a row.
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


class _Drawn(NamedTuple):
    """Consecutive rows of a map: their numbers, coordinates (n, 2), and neighbours with distances, each (n, k)."""

    positions: range
    places: Float32Array
    ids: IntArray
    distances: Float32Array


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
    """Draw the rows of a level in a plane: a Parquet file of coordinates and neighbours, and a page beside it.

    The Parquet file has the columns that name a row (`doc_id`; `word_index` and `word` at word level), `text` (the
    document, or the word in brackets in its context), kept columns of the corpus, float32 `x` and `y`, and
    `neighbors`, a struct of `ids` (rows of this file, from 0) and `distances`, which Embedding Atlas takes.

    Args:
        store: The store, or its folder.
        output: The Parquet file; the page has the same name with `.html`. The page's name does for both.
        level: The level; by default the only one that is stored, or word level if `word` is given.
        feature: As for `build_index`.
        word: Only the rows of this word, in upper or lower case.
        method: `pca`; or `umap`, which needs umap-learn, and starts from the PCA.
        neighbors: The nearest rows to find for each row.
        metric: `cosine` or `l2`, by which neighbours are found, and so UMAP.
        columns: Columns of the corpus to keep; all by default.
        color: A column that gives the colours of the page at first.
        limit: Only the first rows.
        sample: Only this number of random rows.
        seed: The seed of the sample, of the index and of UMAP.
        page: Also write the page; of more than 200,000 rows it shows a random sample, and says so.
        max_memory: The most memory of the index that finds the neighbours.
        overwrite: Replace files that are already there.
        progress: See `bertfeat.extract`.

    Raises:
        UserError: A setting, the level, a word or a column cannot be used; there are fewer than three rows with a
            vector, or all vectors are the same; or a library is missing.
        StoreError: A part is missing or damaged.
        RunError: The system refused; an old file is unchanged, or the new one is there.

    Examples:
        >>> map_store("features", "map.parquet", level="word", word="bank")  # doctest: +SKIP
    """
    how, settings = parse_method(method), _settings(metric, seed, max_memory)
    for name, number in (("neighbors", neighbors), ("limit", limit), ("sample", sample)):
        if number is not None and number < 1:
            raise UserError(f"`{name}` {number} is below 1")
    if color is not None and not page:
        raise UserError("`color` is for the page, which is switched off; leave one of them out")
    path = local_path(output, "a map")
    if page and path.suffix.lower() == ".html":
        path = path.with_suffix(".parquet")
    beside = path.with_suffix(".html") if page else None
    check_file(path, overwrite=overwrite, endings=(".parquet",))
    if beside is not None:
        check_file(beside, overwrite=overwrite)
    opened = store if isinstance(store, Store) else open_store(store)
    where = opened.choose_level("word" if level is None and word is not None else level)
    chosen = opened.choose_feature(where, feature)
    table = MapTable(opened, where, columns)
    table.check_color(color)
    with reporting(progress) as reports, tempfile.TemporaryDirectory(prefix="bertfeat-map-") as folder:
        included = searchable(opened, where, chosen)
        rows = _chosen_rows(opened, where, np.flatnonzero(included), word)[:limit]
        rows = rows if sample is None else rows[sample_positions(len(rows), sample, seed)]
        source = StoreVectors(opened, where, chosen, rows=rows, chunk_bytes=CHUNK_BYTES, progress=reports)
        try:
            plane, share = fit_plane(source)
        except UserError as error:
            raise UserError(f"{opened.path}: level {where}, feature {chosen}: {error}") from None
        near = Neighbours(source, Path(folder), settings, min(neighbors, len(rows) - 1))
        drawn: Iterable[_Drawn] = _drawn(source, plane, near)
        if how is MapMethod.UMAP:
            drawn = _moved(list(drawn), seed, reports)
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
            n_neighbors=near.k,
            shown_variance=round(share, 4) if how is MapMethod.PCA else None,
        )
        make_parents(path)
        with publish_file(path) as sink:
            shown = _write(path, sink, table, rows, drawn, points)
            # Made before the Parquet file gets its place, so that a failure leaves neither.
            name = (opened.path.resolve() if isinstance(opened.path, Path) else opened.path).name
            html = _page(shown, table.colours, name, made, word, color) if page else b""
        if beside is not None:
            publish_bytes(beside, html)
    return made


def _settings(metric: str, seed: int, max_memory: int | str) -> BuildSettings:
    """Return the settings of the index that finds neighbours."""
    compared = parse_metric(metric)
    if compared is Metric.IP:
        raise UserError("metric 'ip': an inner product is not a distance; choose cosine or l2")
    n_bytes = parse_size(max_memory, "max_memory")
    return BuildSettings(metric=compared, seed=seed, recall=0.99, max_memory_bytes=n_bytes)


def _chosen_rows(store: Store, level: Level, rows: IntArray, word: str | None) -> IntArray:
    """Return the rows of a word, or all."""
    if word is None:
        return rows
    if not LEVELS[level].surface:
        raise UserError(f"`level='{level}'`: a row is a whole text, which has no word; pass `level='word'`")
    rows = rows[PositionFilters(store, level, rows).words_like(word)]
    if not len(rows):
        raise UserError(f"{store.path}: no row of level {level} is the word {word!r}, in upper or lower case")
    return rows


def _drawn(source: Vectors, plane: Transform, near: Neighbours) -> Iterable[_Drawn]:
    """Yield all rows in batches, with coordinates in a plane."""
    for positions, vectors in chunks_of(source):
        yield _Drawn(positions, plane.apply(vectors), *near.of(positions, vectors))


def _moved(drawn: Sequence[_Drawn], seed: int, progress: Progress) -> Iterable[_Drawn]:
    """Yield rows with the coordinates of UMAP."""
    progress.stage("UMAP")
    _, places, ids, distances = (np.concatenate(arrays) for arrays in zip(*drawn, strict=True))
    places = umap_plane(places, ids, distances, seed)
    for some in drawn:
        yield some._replace(places=places[some.positions.start : some.positions.stop])


def _write(
    path: Path, sink: Sink, table: MapTable, rows: IntArray, drawn: Iterable[_Drawn], points: IntArray
) -> pl.DataFrame:
    """Write the Parquet file; return some of its rows for a page: ascending, without neighbours, long texts cut."""
    kept: list[pl.DataFrame] = []
    with frame_writer(path, sink) as write:
        for at, places, ids, distances in drawn:
            frame = table.read(rows[at.start : at.stop])
            frame = frame.with_columns(pl.Series("x", places[:, 0]), pl.Series("y", places[:, 1]))
            write(frame.with_columns(neighbour_structs(ids, distances)))
            first, last = np.searchsorted(points, [at.start, at.stop])
            kept.append(cut_texts(frame[points[first:last] - at.start]))
    return pl.concat(kept)


def _page(
    shown: pl.DataFrame, colours: Sequence[str], name: str, made: StoreMap, word: str | None, color: str | None
) -> bytes:
    """Return the page of some rows."""
    rows = f"{made.n_rows:,} rows"
    if made.n_points < made.n_rows:
        rows = f"{made.n_points:,} random rows of {made.n_rows:,}"
    note = "UMAP: near points are similar; distances between groups and sizes of groups mean little."
    if made.shown_variance is not None:
        share = f"{100 * made.shown_variance:.1f} % of the variance"
        note = f"PCA: this plane shows {share}, so near points may be far apart in truth."
    return map_page(
        shown.select("x", "y").to_numpy(),
        page_texts(shown),
        {name: shown[name].to_list() for name in colours},
        title=f"{name}: {made.level}, {made.feature}" + (f", {word}" if word is not None else ""),
        note=f"{rows}. {note}",
        color=color,
    )
