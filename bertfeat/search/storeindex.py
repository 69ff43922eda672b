"""Builds the index of a store: broken off at any point, the same call goes on; the index appears when it is whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfeat.ann.buildsettings import BuildSettings
from bertfeat.ann.description import INDEX, ROWS, IndexDescription
from bertfeat.ann.indexbuild import BuildResult, build, plan_build
from bertfeat.ann.indexfolder import building_folder, publish, read_description, write_transform
from bertfeat.ann.transforms import TransformSpec
from bertfeat.ann.vectorparts import VectorBatch
from bertfeat.config import parse_size
from bertfeat.durable.differences import differing, named
from bertfeat.durable.steps import step
from bertfeat.errors import UserError
from bertfeat.nearest import parse_metric
from bertfeat.progress import Progress, reporting
from bertfeat.search.index import Index, open_index
from bertfeat.search.origin import Origin
from bertfeat.search.rowsdigest import digest_rows
from bertfeat.search.storevectors import StoreParts, choose_feature, choose_level
from bertfeat.search.workplace import empty, fresh_ready, is_index, take_up, tidy, workplace
from bertfeat.storage import local_path
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store, open_store
from bertfeat.store.rowmapwriter import row_map_batches, write_row_map

_WORK = "work"
# They change how fast an index is made, and of what is in it no more than rounding decides.
_RUN_ONLY = ("n_threads",)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """An index to make: of which store, level and feature, how, and where."""

    store: Store
    spec: FeatureSpec
    settings: BuildSettings
    output: Path

    def asked(self) -> dict[str, Any]:
        """Return what decides the index, as JSON values, for messages field by field."""
        settings = {name: value for name, value in self.settings.to_json().items() if name not in _RUN_ONLY}
        about = {"level": str(self.spec.level), "feature": self.spec.feature, "store": self.store.manifest["plan_hash"]}
        return {**settings, **about}


def build_index(
    store: str | Path | Store,
    output: str | Path,
    *,
    level: str | None = None,
    feature: str | None = None,
    index: str = "auto",
    metric: str = "cosine",
    max_memory: int | str = "4GB",
    transform: str = "none",
    recall: float = 0.95,
    seed: int = 0,
    threads: int | None = None,
    overwrite: bool = False,
    progress: bool | Progress = False,
) -> Index:
    """Index the vectors of a store for searching by similarity.

    Called again with the same store and settings it goes on where it broke off; on a finished index it does nothing.
    The same store and settings give the same index on one machine.

    Args:
        store: The store, or its folder.
        output: The index's folder.
        level: `sentence`, `word` or `token`; may be left out where the store has one alone.
        feature: The vectors, stored or made from what is stored (`layer_11`, `mean_last4`); by default the only one
            that is stored, or `concat_last4`.
        index: A faiss factory string (`Flat`, `HNSW32`, `IVF1024,SQ8`, ...), or `auto`: by size, memory and recall.
        metric: `cosine`, `ip` (inner product) or `l2` (Euclidean distance).
        max_memory: Bytes, or such as `"4GB"`, that building and the index may hold beside the program itself.
        transform: What is done to vectors first: `none`, `center`, `whiten`, `whiten:DIM` or `pca:DIM`. Raw BERT
            vectors have much in common, which centring takes away.
        recall: The part of the ten closest vectors that a search is to find; search parameters are tuned for it.
        seed: Of every choice by lot.
        threads: Threads to compute on; all by default.
        overwrite: Replace an index that is there.
        progress: See `bertfeat.progress.Progress`.

    Returns:
        The index, open.

    Raises:
        UserError: The store, a setting or the place cannot be used, or the memory is too small: the message names an
            index that fits. Nothing is written.
        RunError: The system refused a write; the same call goes on.

    Example:
        >>> from bertfeat import extract
        >>> store = extract("examples/data/peps.txt", tmp / "features", levels="sentence", layers="-1")
        >>> index = build_index(store, tmp / "index", transform="center")
        >>> index.search("Which naming styles are there?", k=1)["doc_id"].to_list()
        [62]
    """
    settings = parse_settings(
        index=index,
        metric=metric,
        transform=transform,
        max_memory=max_memory,
        recall=recall,
        seed=seed,
        threads=threads,
    )
    with reporting(progress) as reports:
        return build_or_find(store, output, settings, level, feature, overwrite=overwrite, progress=reports)[0]


def parse_settings(
    *, metric: str, transform: str, max_memory: int | str, threads: int | None, **settings: Any
) -> BuildSettings:
    """Return the settings of `build_index`, checked.

    Raises:
        UserError: A setting cannot be used.
    """
    return BuildSettings(
        metric=parse_metric(metric),
        transform=TransformSpec.parse(transform),
        max_memory_bytes=parse_size(max_memory, "max_memory"),
        n_threads=threads,
        **settings,
    )


def build_or_find(
    store: str | Path | Store,
    output: str | Path,
    settings: BuildSettings,
    level: str | None = None,
    feature: str | None = None,
    *,
    overwrite: bool = False,
    progress: Progress,
) -> tuple[Index, bool]:
    """Do what `build_index` does; return also whether the index was there before, and nothing was done."""
    opened = store if isinstance(store, Store) else open_store(store)
    where = choose_level(opened, level)
    spec = FeatureSpec.of(opened, where, choose_feature(opened, where, feature))
    request = Request(opened, spec, settings, local_path(output, "an index"))
    where_store = opened.path
    if isinstance(where_store, Path) and request.output.resolve().is_relative_to(where_store.resolve()):
        raise UserError(f"{request.output}: lies in the store {opened.path}; choose another place for the index")
    source = StoreParts(opened, where, spec.feature)
    if not source.n_vectors:
        raise UserError(
            f"{opened.path}: no row of level {where} has a vector of {spec.feature}; there is nothing to index"
        )
    plan_build(source.n_vectors, source.dim, settings)
    tidy(request.output)
    if is_index(request.output) and not overwrite:
        return _standing(request), True
    with workplace(request.output) as folder:
        take_up(folder, request.output, request.asked(), overwrite=overwrite)
        _make(request, Watched(source, progress), folder, overwrite=overwrite)
        empty(folder)
    return open_index(request.output, store=opened), False


class Watched:
    """A source that reports how far it has been read."""

    def __init__(self, source: StoreParts, progress: Progress) -> None:
        self.inner = source
        self.progress = progress
        self.n_vectors, self.dim = source.n_vectors, source.dim
        self.parts: Sequence[range] = source.parts

    def batches(self, part: int) -> Iterator[VectorBatch]:
        """Yield the vectors of a part in order."""
        for batch in self.inner.batches(part):
            self.progress.stage("reading vectors", batch.positions.stop, self.n_vectors)
            yield batch


def _standing(request: Request) -> Index:
    """Open the index that stands at the output, and remove what a kill left beside it.

    Raises:
        UserError: It is not the one that is asked for, or damaged.
    """
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
    """Say of an index that cannot be opened how it is replaced: building it again, by itself, does not."""
    try:
        yield
    except UserError as error:
        reason = str(error).partition("; ")[0]
        raise UserError(
            f"{output}: the index there cannot be used ({reason}); pass --overwrite to replace it"
        ) from error


def _check_same(request: Request, there: IndexDescription) -> None:
    """Refuse an index that is not the one that is asked for.

    Raises:
        UserError: The message names the fields.
    """
    origin = Origin.from_json(there.source, request.output)
    about = {"level": str(origin.spec.level), "feature": origin.spec.feature, "store": origin.plan_hash}
    settings = {name: value for name, value in there.settings.items() if name not in _RUN_ONLY}
    asked = request.asked() | {"store": origin.plan_hash_of(request.store)}
    if fields := named(differing({**settings, **about}, asked)):
        grown = "run bertfeat index update if rows were added, " if origin.plan_hash != asked["store"] else ""
        raise UserError(
            f"{request.output}: an index stands there that was built otherwise ({fields}); {grown}choose another "
            "--output, or pass --overwrite"
        )


def _make(request: Request, source: Watched, folder: Path, *, overwrite: bool) -> None:
    """Build, put the files together, and publish them."""
    source.progress.stage("checking vectors")
    try:
        rows_digest = digest_rows(source.inner)
    except UserError:
        if not (folder / _WORK).exists():
            empty(folder)
        raise
    result = build(source, folder / _WORK, request.settings, source_id=rows_digest)
    source.progress.stage("writing the index")
    ready = fresh_ready(folder)
    (ready / INDEX).hardlink_to(result.path)
    step(f"{INDEX}.ready")
    if result.transform is not None:
        write_transform(ready, result.transform)
    write_rows(source.inner, ready)
    step(f"{ROWS}.ready")
    origin = Origin.of(request.store, request.spec, request.output, rows_digest)
    publish(ready, request.output, _description(request, result, origin), overwrite=overwrite)


def write_rows(source: StoreParts, folder: Path) -> None:
    """Write the row map of an index."""
    store, level = source.store, source.level
    write_row_map(folder / ROWS, store, level, row_map_batches(store, level, source.included))


def _description(request: Request, result: BuildResult, origin: Origin) -> IndexDescription:
    return IndexDescription(
        n_vectors=result.n_vectors,
        dim=result.dim,
        metric=request.settings.metric,
        transform=request.settings.transform,
        factory=result.factory,
        parameters=result.parameters,
        settings=request.settings.to_json(),
        source=origin.to_json(),
        measured=result.measured,
        seconds=result.seconds,
    )
