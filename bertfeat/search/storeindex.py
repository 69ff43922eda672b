"""Build of the index of a store: an interrupted build resumes, and the index appears when it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfeat.ann.buildsettings import BuildSettings
from bertfeat.ann.description import INDEX, QUERIES, ROWS, IndexDescription
from bertfeat.ann.indexbuild import build, plan_build
from bertfeat.ann.indexfolder import building_folder, publish, read_description, write_transform
from bertfeat.config import parse_size
from bertfeat.durable.differences import differing, named
from bertfeat.durable.records import to_values
from bertfeat.durable.steps import step
from bertfeat.errors import UserError
from bertfeat.progress import Progress, reporting
from bertfeat.search.index import Index, open_index
from bertfeat.search.origin import Origin, TunedBy
from bertfeat.search.queryvectors import find_query_prompt
from bertfeat.search.rowmapwriter import row_map_batches, write_row_map
from bertfeat.search.rowsdigest import digest_rows
from bertfeat.search.storevectors import StoreParts, choose_feature
from bertfeat.search.tunequeries import GivenQueries, QueryFinder, TuneQueries
from bertfeat.search.workplace import empty, fresh_ready, is_index, take_up, tidy, workplace
from bertfeat.storage import local_path
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store, open_store
from bertfeat.vectors.nearest import parse_metric

_WORK = "work"
# Settings that change the speed of a build, and in the index only what depends on rounding.
_RUN_ONLY = ("n_threads",)


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """An index to make: of which store, level and feature, with which settings, and where."""

    store: Store
    spec: FeatureSpec
    settings: BuildSettings
    output: Path
    query_prompt: str | None
    given: GivenQueries | None

    def asked(self) -> dict[str, Any]:
        """Return what the index depends on, as JSON values."""
        settings = {name: value for name, value in to_values(self.settings).items() if name not in _RUN_ONLY}
        about = {"level": str(self.spec.level), "feature": self.spec.feature, "store": self.store.manifest.plan_hash}
        return {**settings, **about, **_shown(self.query_prompt, self.tuned_by)}

    @property
    def tuned_by(self) -> TunedBy | None:
        """The queries to tune by, if some are given."""
        return None if self.given is None else self.given.about


def _shown(query_prompt: str | None, tuned_by: TunedBy | None) -> dict[str, Any]:
    prompt = {} if query_prompt is None else {"query_prompt": query_prompt}
    # Compare queries by digest: the same ones may be in a file of another name.
    return prompt if tuned_by is None else {**prompt, "tune_queries": tuned_by.digest}


def build_index(
    store: str | Path | Store,
    output: str | Path,
    *,
    level: str | None = None,
    feature: str | int | None = None,
    index: str = "auto",
    metric: str = "cosine",
    max_memory: int | str = "4GB",
    transform: str = "none",
    recall: float = 0.95,
    seed: int = 0,
    threads: int | None = None,
    query_prompt_name: str | None = None,
    tune_queries: TuneQueries | None = None,
    text_column: str | None = None,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
) -> Index:
    """Index the vectors of a store for searching by similarity.

    The same call resumes an interrupted build; on a finished index it does nothing. The same store and settings give
    the same index on one machine.

    Args:
        store: The store, or its folder.
        output: The index's folder.
        level: `sentence`, `word` or `token`; by default the only one that is stored.
        feature: The vectors, stored or made from stored ones (`layer_11` or 11, `mean_last4`); by default the only
            feature that is stored, or `concat_last4`.
        index: A faiss factory string (`Flat`, `HNSW32`, `IVF1024,SQ8`, ...), or `auto`: by size, memory and recall.
        metric: `cosine`, `ip` (inner product) or `l2` (Euclidean distance).
        max_memory: The most memory of the build, and of the index, without the program itself: bytes, or `"4GB"`.
        transform: What is done to vectors first: `none`, `center`, `whiten`, `whiten:DIM`, `pca:DIM` or
            `truncate:DIM`. Raw BERT vectors have much in common; centring removes it. Truncation keeps the first DIM
            values, at length 1.
        recall: The part of the ten nearest vectors that a search must find; search parameters are tuned for it.
        seed: The random seed.
        threads: Threads to compute on; all by default.
        query_prompt_name: The model's prompt that is put before each query, by name, `""` for none; by default the one
            named `query`, if the rows are the model's own embeddings (pooling `model`) or were made with a prompt;
            none if the rows have the prompt for documents of a model that names none for queries.
        tune_queries: Queries like those to come, 2 or more, better 1,000: they have the recall then. A file of texts as
            `QueryFile` reads it (at word and token level each marks a word in brackets); a store of the same feature
            of other texts; or vectors as they are in a store: .npy, or float (n_queries, dim). Up to 2,000 random ones
            are used; a random half tunes, the other is measured. By default random vectors of the index are used.
        text_column: The column of `tune_queries` with the text; by default `text`.
        overwrite: Replace an index that is there.
        progress: See `extract`.

    Returns:
        The index, open.

    Raises:
        UserError: The store, a setting or the place cannot be used; or the memory is too small: the message names an
            index that fits. Nothing is written.
        RunError: The system refused a write; the same call resumes.

    Examples:
        >>> from bertfeat import extract
        >>> store = extract("examples/data/peps.txt", tmp / "features", levels="sentence", layers="-1")
        >>> index = build_index(store, tmp / "index", transform="center")
        >>> index.search("Which naming styles are there?", k=1)["doc_id"].to_list()
        [62]
    """
    asked: dict[str, Any] = {"index": index, "recall": recall, "seed": seed}
    settings = parse_settings(metric=metric, transform=transform, max_memory=max_memory, threads=threads, **asked)
    with reporting(progress) as reports:
        return build_or_find(
            store,
            output,
            settings,
            level,
            feature,
            query_prompt_name,
            tune_queries,
            text_column,
            overwrite=overwrite,
            progress=reports,
        )[0]


def parse_settings(
    *, metric: str, transform: str, max_memory: int | str, threads: int | None, **settings: Any
) -> BuildSettings:
    """Return the settings of `build_index`, or raise a UserError for the one that cannot be used."""
    return BuildSettings(
        metric=parse_metric(metric),
        transform=transform,
        max_memory_bytes=parse_size(max_memory, "max_memory"),
        n_threads=threads,
        **settings,
    )


def build_or_find(
    store: str | Path | Store,
    output: str | Path,
    settings: BuildSettings,
    level: str | None = None,
    feature: str | int | None = None,
    query_prompt_name: str | None = None,
    tune_queries: TuneQueries | None = None,
    text_column: str | None = None,
    *,
    overwrite: bool = False,
    progress: Progress,
) -> tuple[Index, bool]:
    """Do what `build_index` does; also return whether the index was there already."""
    opened = store if isinstance(store, Store) else open_store(store)
    where = opened.choose_level(level)
    spec = FeatureSpec.of(opened, where, choose_feature(opened, where, feature))
    query_prompt = find_query_prompt(opened, where, query_prompt_name)
    if tune_queries is None and text_column is not None:
        raise UserError(f"`text_column` {text_column!r} is of `tune_queries`, and none are given; leave it out")
    finder = QueryFinder(opened, spec, query_prompt, settings, text_column)
    given = None if tune_queries is None else finder.find(tune_queries)
    request = _Request(opened, spec, settings, local_path(output, "an index"), query_prompt, given)
    if isinstance(opened.path, Path) and request.output.resolve().is_relative_to(opened.path.resolve()):
        raise UserError(f"{request.output}: is inside the store {opened.path}; choose another place for the index")
    source = StoreParts(opened, where, spec.feature, progress)
    if not source.n_vectors:
        raise UserError(
            f"{opened.path}: no row of level {where} has a vector of {spec.feature}; there is nothing to index"
        )
    plan_build(source.n_vectors, source.dim, settings, 0 if given is None else given.about.n_queries)
    tidy(request.output)
    if is_index(request.output) and not overwrite:
        return _standing(request), True
    with workplace(request.output) as folder:
        take_up(folder, request.output, request.asked(), overwrite=overwrite)
        _make(request, source, folder, overwrite=overwrite)
        empty(folder)
    return open_index(request.output, store=opened), False


def _standing(request: _Request) -> Index:
    """Open the index at the output, unless it has other settings or is damaged; remove what a kill left next to it."""
    with _replaceable(request.output):
        there = read_description(request.output)
    _check_same(request, there)
    if building_folder(request.output).exists():
        with workplace(request.output) as folder:
            empty(folder)
    with _replaceable(request.output):
        return open_index(request.output, store=request.store)


@contextmanager
def _replaceable(output: Path) -> Iterator[None]:
    """Name the flag that replaces an index that cannot be opened: a build without it does not."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{output}: the index there cannot be used ({error}); pass `overwrite`") from error


def _check_same(request: _Request, there: IndexDescription) -> None:
    """Raise a UserError, with the fields, if an index was built with other settings or from another store."""
    origin = Origin.at(there)
    asked = request.asked()
    about = {"level": str(origin.spec.level), "feature": origin.spec.feature, "store": asked["store"]}
    settings = {name: value for name, value in to_values(there.settings).items() if name not in _RUN_ONLY}
    about |= _shown(origin.query_prompt, origin.tuned_by)
    fields, part = differing({**settings, **about}, asked), origin.indexed_part(request.store)
    if part is request.store and not fields:
        return
    update = f"run {origin.update_command(request.store, request.output)}, choose another `output`"
    if fields:
        said = f"with other settings ({named(fields)}); choose another `output`"
    elif part is None:
        said = f"of another store; if the first rows of {request.store.path} are the same, {update}"
    else:
        said = f"of {request.store.path} before rows were added; {update}"
    raise UserError(f"{request.output}: there is an index already {said}, or pass `overwrite`")


def _make(request: _Request, source: StoreParts, folder: Path, *, overwrite: bool) -> None:
    """Build the index and publish its files."""
    try:
        queries = None if request.given is None else request.given.kept(folder, source.progress)
        source.progress.stage("checking vectors")
        _, rows_digest = digest_rows(source)
    except UserError:
        if not (folder / _WORK).exists():
            empty(folder)
        raise
    # A folder that was made with other queries was emptied above, so these match.
    result = build(source, folder / _WORK, request.settings, source_id=rows_digest, queries=queries)
    source.progress.stage("writing the index")
    ready = fresh_ready(folder)
    (ready / INDEX).hardlink_to(result.path)
    step(f"{INDEX}.ready")
    if result.transform is not None:
        write_transform(ready, result.transform)
    if queries is not None:
        (ready / QUERIES).hardlink_to(folder / QUERIES)
    write_rows(source, ready)
    settings = request.settings
    description = IndexDescription(
        n_vectors=result.n_vectors,
        dim=result.dim,
        metric=settings.metric,
        transform=settings.transform,
        factory=result.factory,
        parameters=result.parameters,
        settings=settings,
        source=to_values(
            Origin.of(request.store, request.spec, request.output, rows_digest, request.query_prompt, request.tuned_by)
        ),
        measured=result.measured,
        seconds=result.seconds,
    )
    publish(ready, request.output, description, overwrite=overwrite)


def write_rows(source: StoreParts, folder: Path) -> None:
    """Write the row map of an index."""
    store, level = source.store, source.level
    write_row_map(folder / ROWS, store, level, row_map_batches(store, level, source.included))
    step(f"{ROWS}.ready")
