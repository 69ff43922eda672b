"""Jobs of an append: damaged shards of the store are repeated, then the new inputs make the next version."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertfeat.choices import CorpusFormat, Level, Runner
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, Earlier, resolve_inputs
from bertfeat.corpus.columns import IdRegister
from bertfeat.corpus.corpus import FRAME, STDIN, begins_with
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import InputError, PlanMismatch, StoreError
from bertfeat.extraction.job import Job, gives_words, make_job
from bertfeat.extraction.plan import (
    VERSION_NAMES,
    config_of,
    corpus_schema,
    make_plan,
    plan_differences,
    plan_fields,
    recorded,
)
from bertfeat.extraction.resolution import resolve
from bertfeat.progress import Progress
from bertfeat.records import DocId, InputFile, Plan
from bertfeat.runners.ray import check_ray
from bertfeat.storage import AnyPath
from bertfeat.store import layout
from bertfeat.store.folder import folder_at
from bertfeat.store.manifest import IMPORTED, newest_readable
from bertfeat.store.plan_file import MODEL_NAMES, SPANS_DIGEST, changes, hash_of_plan, read_plan
from bertfeat.store.reader import Store, open_store
from bertfeat.store.vectors import opened_part, read_groups


def open_growing(path: AnyPath, settings: Mapping[str, Any]) -> tuple[Store, ExtractConfig]:
    """Open a store to append to; return it with the settings of the append, by default those of the store."""
    if not folder_at(path).path.exists():
        raise StoreError(f"{path}: no such store; leave out `append` to make it")
    # A damaged manifest is made again by the append that made it.
    newest = newest_readable(folder_at(path))
    store = open_store(path) if newest is None else Store(path, newest)
    if not store.manifest.n_next_row:
        raise StoreError(f"{path}: has no documents, so its columns are not known; extract again with `overwrite`")
    if IMPORTED in store.metadata:
        raise StoreError(
            f"{path}: imported, and an append needs the model of the vectors; import all vectors into a new store"
        )
    config = config_of(store.plan, settings)
    if config.limit is not None:
        raise StoreError(f"{path}: made with `limit={config.limit}`, for a first look; extract without it, then append")
    return store, config


def append_jobs(store: Store, config: ExtractConfig, files: Sequence[InputFile], progress: Progress) -> Iterator[Job]:
    """Yield one job per plan with damaged shards, then that of the inputs whose bytes the store does not have."""
    Corpus(files, config).check_head()
    given: dict[str, InputFile] = {}
    for file in files:
        given.setdefault(file.digest, file)
    planned = store.manifest.inputs
    there = {file.digest for file in planned}
    new = tuple(file for digest, file in given.items() if digest not in there)
    _check_not_longer(recorded(new), planned)
    if config.runner is Runner.RAY:
        check_ray(config.ray_address)
    checkpoint = open_checkpoint(config.model, config.revision)
    everything = (*(given.get(file.digest, file) for file in planned), *new)
    tokenizer, resolved = resolve(config, checkpoint, given_words=gives_words(everything, config))
    fields = plan_fields(config, resolved, everything)
    damaged = _damaged(store)
    _check_settings(store, fields, with_versions=bool(new or damaged))
    for plan in damaged:
        there_now = tuple(given.get(file.digest, file) for file in plan.inputs)
        _check_there(store, plan, given)
        yield make_job(store.path, plan, config, there_now, resolved)
    if not new:
        return
    # The name of the model is that of the store.
    fields |= {name: store.plan.fields.get(name) for name in MODEL_NAMES} | {"base": store.manifest.plan_hash}
    stored = read_plan(store.path, hash_of_plan(fields, new))
    if stored is None:
        progress.stage("reading the corpus")
        ids = IdRegister(_ids(store)) if config.id_column else None
        earlier = Earlier(str(store.path), store.manifest.n_next_row, corpus_schema(store.plan), ids)
        n_shards = len(store.manifest.shards)
        made = make_plan(fields, resolved, Corpus(new, config, earlier), tokenizer, n_shards)
        if made.schemas != store.plan.schemas:
            raise PlanMismatch(f"{store.path}: has other columns than these inputs; extract them into a new store")
        stored = dataclasses.replace(made, model=store.manifest.model, metadata=store.metadata)
    yield make_job(store.path, stored, config, new, resolved)


def _ids(store: Store) -> Iterator[DocId]:
    """Yield the ids of a store; a document without rows at any level has no id there."""
    # The level with the fewest rows; the enum goes from tokens to sentences.
    for part in store.stored_parts(max(store.levels, key=list(Level).index)):
        with opened_part(part) as file:
            ids = read_groups(file, range(file.num_row_groups), ["doc_id"]).column(0)
        yield from ids.unique().to_pylist()


def _damaged(store: Store) -> list[Plan]:
    """Return the plans with shards that have no receipt: `verify` removes those of damaged shards."""
    plan_of = {layout.receipt_path(shard.plan_hash, shard.shard): shard.plan_hash for shard in store.manifest.shards}
    missing = folder_at(store.path).missing(plan_of)
    hashes = {plan_of[name] for name in missing}
    return [plan for plan in store.plans if plan.plan_hash in hashes] if hashes else []


def _check_there(store: Store, plan: Plan, given: Mapping[str, InputFile]) -> None:
    """Check that the inputs of shards that must be repeated are given, or are where they were, unchanged."""
    receipts = {layout.receipt_path(plan.plan_hash, shard.index): shard for shard in plan.shards}
    shards = [receipts[name] for name in folder_at(store.path).missing(receipts)]
    for number in sorted({piece.file for shard in shards for piece in shard.slices}):
        file = plan.inputs[number]
        if file.digest in given:
            continue
        if file.path in (STDIN, FRAME):
            raise InputError("is needed again, to repeat a damaged shard; pass it once more", path=file.path)
        if resolve_inputs([file.path], CorpusFormat(file.format))[0].digest != file.digest:
            raise InputError("has changed since the store was made; a damaged shard must be repeated", path=file.path)


def _check_not_longer(new: Iterable[InputFile], planned: Iterable[InputFile]) -> None:
    """Refuse a file that was added before and has new rows at its end: its old rows would be added again."""
    before = {file.path: file for file in planned}
    for file in new:
        old = before.get(file.path)
        if old is not None and file.path not in (STDIN, FRAME) and begins_with(file, old):
            raise InputError("was added before, and has grown; append a file of its new rows alone", path=file.path)


def _check_settings(store: Store, now: Mapping[str, Any], *, with_versions: bool) -> None:
    """Refuse settings or a model that are not those of the store; the new documents may have a file of spans."""
    left_out = (SPANS_DIGEST, *(() if with_versions else VERSION_NAMES))
    if fields := plan_differences(store.plan.fields, now, left_out):
        what = "versions" if fields.keys() <= {*VERSION_NAMES} else "settings"
        remedy = "install those" if what == "versions" else "leave out settings to take those of the store"
        raise PlanMismatch(
            f"{store.path}: made with other {what}: {changes(fields)}; {remedy}, or extract into a new store", fields
        )
