"""Map of a store: two coordinates and the nearest neighbours of each row, as Parquet and as a page."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bertfeat.ann.buildsettings import BuildSettings
from bertfeat.ann.coordinates import MapMethod, check_plane, fit_plane, umap_plane
from bertfeat.ann.vectorparts import VectorBatch, all_batches, sample_positions
from bertfeat.choices import Level
from bertfeat.config import parse_size
from bertfeat.durable.files import make_parents
from bertfeat.durable.placecheck import check_file
from bertfeat.durable.publication import publish_bytes, publish_file
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS
from bertfeat.moments import Moments
from bertfeat.nearest import Metric, parse_metric
from bertfeat.progress import Progress, reporting
from bertfeat.records import Float32Array, IntArray
from bertfeat.reports.mappage import MAX_POINTS, check_page, map_page
from bertfeat.search.filters import PositionFilters
from bertfeat.search.maptable import MapTable, neighbour_structs
from bertfeat.search.rowneighbours import Neighbours, RowParts
from bertfeat.search.storevectors import StoreParts, choose_feature, choose_level
from bertfeat.storage import local_path
from bertfeat.store.framefiles import frame_writer
from bertfeat.store.reader import Store, open_store


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
        n_without_vector: Rows of the level that have no vector, or are special tokens.
        n_neighbors: The neighbours of a row.
        shown_variance: The share of the variance that the plane of a PCA shows; None for UMAP.
    """

    path: Path
    page: Path | None
    level: str
    feature: str
    method: str
    n_rows: int
    n_without_vector: int
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
    """Draw the rows of a level in a plane: a Parquet file of coordinates and neighbours, and a page beside it.

    The Parquet file has the columns that name a row (`doc_id`; `word_index` and `word` at word level), `text` (the
    document, or the word in brackets in its context), kept columns of the corpus, float32 `x` and `y`, and
    `neighbors`, a struct of `ids` (rows of this file, from 0) and `distances`, which Embedding Atlas takes.

    Args:
        store: The store, or its folder.
        output: The Parquet file; the page has the same name with `.html`.
        level: The level; by default the only one that is stored, or word level if `word` is given.
        feature: As for `build_index`.
        word: Only the rows of this word, in upper or lower case.
        method: `pca`, read in batches; or `umap`, which needs umap-learn and holds all vectors in memory.
        neighbors: The nearest rows to find for each row.
        metric: `cosine` or `l2`, for neighbours and for UMAP.
        columns: Columns of the corpus to keep; all by default.
        color: A column that gives the colours of the page at first.
        limit: Only the first rows.
        sample: Only this number of random rows.
        seed: The seed of the sample, of the index and of UMAP.
        page: Also write the page, which takes up to 200,000 rows.
        max_memory: The most memory of the index that finds the neighbours.
        overwrite: Replace files that are already there.
        progress: See `bertfeat.extract`.

    Raises:
        UserError: A setting, the level, a word or a column cannot be used; there are fewer than three rows with a
            vector, or too many for a page; or a library is missing.
        StoreError: A part is missing or damaged.
        RunError: The system refused; an old file is unchanged, or the new one is there.

    Examples:
        >>> map_store("features", "map.parquet", level="word", word="bank")  # doctest: +SKIP
    """
    how = _parse_method(method)
    compared = _parse_metric(metric)
    for name, number in (("neighbors", neighbors), ("limit", limit), ("sample", sample)):
        if number is not None and number < 1:
            raise UserError(f"`{name}` {number} is below 1")
    settings = BuildSettings(
        metric=compared, seed=seed, recall=0.99, max_memory_bytes=parse_size(max_memory, "max_memory")
    )
    path = local_path(output, "a map")
    beside = path.with_suffix(".html") if page else None
    _check_places(path, beside, overwrite=overwrite)
    opened = store if isinstance(store, Store) else open_store(store)
    where = choose_level(opened, "word" if level is None and word is not None else level)
    chosen = choose_feature(opened, where, feature)
    table = MapTable(opened, where, columns)
    table.check_color(color, has_page=page)
    with reporting(progress) as reports:
        included = StoreParts(opened, where, chosen).included
        rows = _chosen_rows(opened, where, np.flatnonzero(included), word, limit, sample, seed)
        source = RowParts(opened, where, chosen, rows, reports)
        _check_rows(opened, source, where, chosen, has_page=page)
        make_parents(path)
        with tempfile.TemporaryDirectory(prefix="bertfeat-map-") as folder:
            near = Neighbours(source, Path(folder), settings, min(neighbors, len(rows) - 1))
            plane = _plane(source, how, near, reports)
            written = _write(path, source, plane, near, table, keep=page)
    shown = written.shown if how is MapMethod.PCA else None
    if beside is not None:
        heading = f"{opened.path.name}: {where}, {chosen}" + (f", {word}" if word is not None else "")
        texts, values = table.page_columns(pl.concat(written.frames))
        html = map_page(np.concatenate(written.places), texts, values, title=heading, note=_note(shown), color=color)
        publish_bytes(beside, html)
    return StoreMap(
        path, beside, str(where), chosen, str(how), len(rows), int(len(included) - included.sum()), near.k, shown
    )


@dataclass(slots=True)
class _Written:
    """What a page takes of the written rows, and the share of the variance that they show."""

    frames: list[pl.DataFrame]
    places: list[Float32Array]
    shown: float


def _plane(
    source: RowParts, how: MapMethod, near: Neighbours, progress: Progress
) -> Callable[[VectorBatch], Float32Array]:
    """Return a function that gives the coordinates of a batch, float32 (n, 2)."""
    if how is MapMethod.PCA:
        fitted = fit_plane(source)
        return lambda batch: fitted.apply(batch.vectors)
    found = [near.of(batch) for batch in all_batches(source)]
    own = np.arange(source.n_vectors)[:, None]
    ids = np.hstack([own, np.concatenate([ids for ids, _ in found])])
    distances = np.hstack([np.zeros_like(own, np.float32), np.concatenate([distances for _, distances in found])])
    progress.stage("UMAP")
    places = umap_plane(source, ids, distances, near.metric, near.seed)
    return lambda batch: places[batch.positions.start : batch.positions.stop]


def _write(
    path: Path,
    source: RowParts,
    plane: Callable[[VectorBatch], Float32Array],
    near: Neighbours,
    table: MapTable,
    *,
    keep: bool,
) -> _Written:
    """Write the Parquet file, and return what a page takes of it if `keep`."""
    written = _Written([], [], 0.0)
    flat, whole = Moments(2, "squares"), Moments(source.dim, "squares")
    with publish_file(path) as sink, frame_writer(path, sink) as write:
        for batch in all_batches(source):
            places = plane(batch)
            flat.add(places)
            whole.add(batch.vectors)
            frame = table.read(source.rows[batch.positions.start : batch.positions.stop])
            made = pl.DataFrame({"x": places[:, 0], "y": places[:, 1], "neighbors": neighbour_structs(*near.of(batch))})
            write(frame.hstack(made))
            if keep:
                written.frames.append(frame)
                written.places.append(places)
    written.shown = round(float(flat.squares.sum() / whole.squares.sum()), 4)
    return written


def _chosen_rows(
    store: Store, level: Level, rows: IntArray, word: str | None, limit: int | None, sample: int | None, seed: int
) -> IntArray:
    """Return the rows to draw, ascending."""
    if word is not None:
        if not LEVELS[level].surface:
            raise UserError(f"`level='{level}'`: a row is a whole text, which has no word; pass `level='word'`")
        rows = rows[PositionFilters(store, level, rows).words_like(word)]
        if not len(rows):
            raise UserError(f"{store.path}: no row of level {level} is the word {word!r}, in upper or lower case")
    rows = rows[:limit]
    return rows if sample is None else rows[sample_positions(len(rows), sample, seed)]


def _check_rows(store: Store, source: RowParts, level: Level, feature: str, *, has_page: bool) -> None:
    """Raise a UserError if there are too few rows, or too many for a page."""
    try:
        check_plane(source)
    except UserError as error:
        raise UserError(f"{store.path}: level {level}, feature {feature}: {error}") from None
    if has_page and source.n_vectors > MAX_POINTS:
        raise UserError(
            f"{store.path}: {source.n_vectors:,} rows are too many for a page, which takes {MAX_POINTS:,}; "
            "pass `sample=100000`, or `page=False`"
        )


def _check_places(path: Path, page: Path | None, *, overwrite: bool) -> None:
    """Check the places of both files, and the library of the page."""
    check_file(path, overwrite=overwrite, endings=(".parquet",))
    if page is not None:
        check_page()
        check_file(page, overwrite=overwrite)


def _parse_method(name: str) -> MapMethod:
    try:
        method = MapMethod(name)
    except ValueError:
        raise UserError(f"method {name!r}: unknown; choose one of {', '.join(MapMethod)}") from None
    method.check()
    return method


def _parse_metric(name: str) -> Metric:
    metric = parse_metric(name)
    if metric is Metric.IP:
        raise UserError("metric 'ip': an inner product is not a distance; choose cosine or l2")
    return metric


def _note(shown: float | None) -> str:
    """Return a sentence on what a map shows."""
    if shown is None:
        return "UMAP: near points are similar; distances between far groups and the size of groups mean little."
    return f"PCA: this plane shows {100 * shown:.1f} % of the variance, so near points may be far apart in truth."
