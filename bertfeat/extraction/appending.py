"""Job of an append: the plan of a finished store, with the new inputs and their shards at its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from bertfeat.config import ExtractConfig, Runner
from bertfeat.corpus import Corpus, Earlier, resolve_inputs
from bertfeat.corpus.duplicates import IdDigests
from bertfeat.durable.differences import differing
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import InputError, PlanMismatch, StoreError
from bertfeat.extraction.job import Job, check_versions, make_job, recorded, resolve_job
from bertfeat.extraction.plan import MODEL_NAMES, config_of, corpus_schema, make_plan, plan_fields
from bertfeat.progress import Progress
from bertfeat.records import InputFile, Plan, ShardSpec
from bertfeat.runners import check_ray
from bertfeat.storage import AnyPath
from bertfeat.store.idfile import ids_of
from bertfeat.store.manifest import read_manifest
from bertfeat.store.openfolder import folder_at
from bertfeat.store.plandifferences import changes
from bertfeat.store.planfile import read_plan
from bertfeat.store.planstates import APPENDS, COMPACTED, grown, is_of_inputs, state_of
from bertfeat.store.reader import open_store


@dataclasses.dataclass(frozen=True, slots=True)
class Growing:
    """A finished store that is appended to.

    Attributes:
        path: Where it is.
        manifest: Its manifest.
        finished: Its plan.
        plan: The stored plan, which may continue `finished` by an append that has not finished.
        config: The settings of the append.
    """

    path: AnyPath
    manifest: Mapping[str, Any]
    finished: Plan
    plan: Plan
    config: ExtractConfig

    @property
    def is_unfinished(self) -> bool:
        """Whether an append has not finished."""
        return self.plan.plan_hash != self.finished.plan_hash


@dataclasses.dataclass(frozen=True, slots=True)
class Growth:
    """The work of an append.

    Attributes:
        job: The job, whose plan ends with the append.
        finished: The plan of the store before it.
        ids: The ids of that store, to be kept for the next append; None if ids are row numbers, or nothing is new.
        is_last: False if inputs remain for another append, after this one, which was begun before.
    """

    job: Job
    finished: Plan
    ids: IdDigests | None
    is_last: bool


def open_growing(path: AnyPath, settings: Mapping[str, Any], *, overwrite: bool) -> Growing:
    """Open a store to append to.

    Args:
        path: The store.
        settings: Those that are given again, and those that say where to run; all others are the store's.
        overwrite: Leave out an append that has not finished.

    Raises:
        UserError: There is no finished store, it cannot grow, or a setting is not one.
    """
    if not path.exists():
        raise StoreError(f"{path}: no such store; leave out `append` to make it")
    try:
        manifest = read_manifest(folder_at(path))
    except (FileNotFoundError, NotADirectoryError):
        # The error says what is there.
        manifest = open_store(path).manifest
    plan = read_plan(path)
    finished = None if plan is None else state_of(plan, manifest["plan_hash"])
    if plan is None or finished is None:
        raise StoreError(
            f"{path}: its plan.json is missing or not that of its manifest; extract again with `overwrite`"
        )
    if not finished.shards:
        raise StoreError(f"{path}: has no documents, so its columns are not known; extract again with `overwrite`")
    config = config_of(finished, settings)
    if config.limit is not None:
        raise StoreError(f"{path}: `limit={config.limit}` is for a first look; extract without it, then append")
    return Growing(path, manifest, finished, finished if overwrite else plan, config)


def open_append(store: Growing, files: tuple[InputFile, ...], progress: Progress) -> Growth:
    """Plan an append, or continue one that has not finished. Inputs whose bytes the store has are left out.

    Raises:
        UserError: The model or a row cannot be used, or an id is in the store already.
        PlanMismatch: The settings, the model or the versions are not those of the store.
    """
    config, plan = store.config, store.plan
    Corpus(files, config).check_head()
    given = {file.digest: file for file in reversed(files)}
    _check_unfinished(store, given)
    there = {file.digest for file in plan.inputs}
    new = tuple(file for digest, file in {file.digest: file for file in files}.items() if digest not in there)
    # New ids are compared with those of the store, so what has begun must finish first.
    added = () if store.is_unfinished else new
    everything = (*(given.get(file.digest, file) for file in plan.inputs), *added)
    if config.runner is Runner.RAY:
        check_ray(config.ray_address)
    checkpoint = open_checkpoint(config.model, config.revision)
    tokenizer, resolved = resolve_job(checkpoint, everything, config)
    _check_settings(store, plan_fields(config, resolved, everything))
    if added or store.is_unfinished:
        check_versions(plan, f"{store.path}: made with other versions", "install those, or extract all inputs again")
    ids = None
    if added:
        progress.stage("reading the corpus")
        ids = ids_of(store.path, store.manifest, plan) if config.id_column else None
        earlier = Earlier(str(store.path), len(plan.inputs), plan.n_rows, corpus_schema(plan), ids)
        corpus = Corpus(everything, config, earlier)
        made = make_plan(config, resolved, everything, corpus, tokenizer, first_shard=len(plan.shards))
        if made.schemas != plan.schemas:
            raise PlanMismatch(f"{store.path}: has other columns than these inputs; extract them into a new store", {})
        plan = grown(plan, recorded(added), made.shards)
    job = make_job(store.path, plan, config, everything, resolved)
    return Growth(job, store.finished, ids, is_last=added == new)


def _check_unfinished(store: Growing, given: Mapping[str, InputFile]) -> None:
    """Refuse to begin an append before another one has finished."""
    for file in store.plan.inputs[len(store.finished.inputs) :]:
        if file.digest not in given:
            raise StoreError(
                f"{store.path}: an append of {file.path} has not finished; run the same command again, or replace that "
                "append with `append` and `overwrite`"
            )


def _check_settings(store: Growing, now: Mapping[str, Any]) -> None:
    """Refuse settings or a model that are not those of the store; a model's name does not count, its digests do."""
    left_out = (*MODEL_NAMES, APPENDS, COMPACTED)

    def decisive(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name not in left_out and not is_of_inputs(name)}

    if fields := differing(decisive(store.plan.fields), decisive(now)):
        raise PlanMismatch(
            f"{store.path}: made with other settings: {changes(fields)}; leave out settings to take those of the "
            "store, or extract into a new store",
            fields,
        )


def check_inputs(growth: Growth, pending: Iterable[ShardSpec]) -> None:
    """Check that the inputs of older shards, which must be repeated, are where they were.

    Raises:
        InputError: Such an input is missing or has changed.
    """
    numbers = {piece.file for shard in pending for piece in shard.slices}
    for number in sorted(numbers & {*range(len(growth.finished.inputs))}):
        file = growth.job.files[number]
        found = resolve_inputs([file.path], growth.job.config.format)[0]
        if found.digest != file.digest:
            raise InputError("has changed since the store was made, which needs it to repeat a shard", path=file.path)
