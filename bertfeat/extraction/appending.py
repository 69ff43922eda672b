"""Job of an append: the plan of a finished store, with the new inputs and their shards at its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from bertfeat.choices import CorpusFormat, Runner
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, Earlier, resolve_inputs
from bertfeat.corpus.duplicates import IdDigests
from bertfeat.corpus.inputs import FRAME, STDIN, begins_with
from bertfeat.durable.differences import differing
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import InputError, PlanMismatch, StoreError
from bertfeat.extraction.job import Job, check_versions, make_job, recorded, resolve_job
from bertfeat.extraction.plan import MODEL_NAMES, config_of, corpus_schema, cut, plan_fields
from bertfeat.progress import Progress
from bertfeat.records import InputFile, Plan
from bertfeat.runners.ray_cluster import check_ray
from bertfeat.storage import AnyPath
from bertfeat.store import receipts
from bertfeat.store.idfile import ids_of
from bertfeat.store.manifest import Manifest, ManifestDamaged, read_manifest
from bertfeat.store.openfolder import folder_at
from bertfeat.store.opening import marked_shards
from bertfeat.store.plandifferences import changes
from bertfeat.store.planfile import read_plan
from bertfeat.store.planstates import COMPACTED, IMPORTED, grown, is_of_inputs, state_of
from bertfeat.store.reader import open_store


@dataclasses.dataclass(frozen=True, slots=True)
class Growing:
    """A finished store that is appended to.

    Attributes:
        path: Where it is.
        manifest: Its manifest; empty if a repair of the grown store has not finished.
        finished: Its plan.
        plan: The stored plan, which may continue `finished` by an append that has not finished.
        config: The settings of the append.
    """

    path: AnyPath
    manifest: Manifest
    finished: Plan
    plan: Plan
    config: ExtractConfig

    @property
    def is_unfinished(self) -> bool:
        """Whether an append, or the repair of a shard, has not finished."""
        return not self.manifest or self.plan.plan_hash != self.finished.plan_hash


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
    plan = read_plan(path)
    try:
        manifest = read_manifest(folder_at(path))
    except (FileNotFoundError, NotADirectoryError, ManifestDamaged):
        # Without appends, an error that says what is there.
        manifest = Manifest() if plan is not None and plan.appends else open_store(path).manifest
    finished = None if plan is None else state_of(plan, manifest.get("plan_hash", plan.plan_hash))
    if plan is None or finished is None:
        raise StoreError(f"{path}: its plan is missing or not that of its manifest; extract again with `overwrite`")
    if not finished.shards:
        raise StoreError(f"{path}: has no documents, so its columns are not known; extract again with `overwrite`")
    if IMPORTED in finished.fields:
        raise StoreError(
            f"{path}: imported, and an append needs the model of the vectors; import all vectors into a new store"
        )
    config = config_of(finished, settings)
    if config.limit is not None:
        raise StoreError(f"{path}: made with `limit={config.limit}`, for a first look; extract without it, then append")
    return Growing(path, manifest, finished, finished if overwrite else plan, config)


def open_append(store: Growing, files: tuple[InputFile, ...], progress: Progress) -> Growth:
    """Plan an append, or continue one that has not finished. Inputs whose bytes the store has are left out.

    Raises:
        UserError: The model or a row cannot be used, or an id is in the store already.
        PlanMismatch: The settings, the model or the versions are not those of the store.
    """
    config, plan = store.config, store.plan
    Corpus(files, config).check_head()
    given: dict[str, InputFile] = {}
    for file in files:
        given.setdefault(file.digest, file)
    _check_pending(store, given)
    there = {file.digest for file in plan.inputs}
    new = tuple(file for digest, file in given.items() if digest not in there)
    _check_not_longer(recorded(new), plan)
    # New ids are compared with those of the store, so what has begun must finish first.
    added = () if store.is_unfinished else new
    everything = (*(given.get(file.digest, file) for file in plan.inputs), *added)
    if config.runner is Runner.RAY:
        check_ray(config.ray_address)
    checkpoint = open_checkpoint(config.model, config.revision, config.random_weights)
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
        shards, schemas = cut(config, resolved, corpus, tokenizer, first_shard=len(plan.shards))
        if schemas != plan.schemas:
            raise PlanMismatch(f"{store.path}: has other columns than these inputs; extract them into a new store", {})
        plan = grown(plan, recorded(added), shards)
    job = make_job(store.path, plan, config, everything, resolved)
    return Growth(job, store.finished, ids, is_last=added == new)


def _check_pending(store: Growing, given: Mapping[str, InputFile]) -> None:
    """Check that the inputs of shards that must be run or repeated are given, or are where they were.

    Raises:
        StoreError: Another append has not finished.
        InputError: The input of a shard that must be repeated is missing or has changed.
    """
    folder = folder_at(store.path)
    marked = {*(marked_shards(folder) or ())}
    if not (marked or store.is_unfinished):
        return
    done = {stored.receipt.shard for stored in receipts.finished(folder, store.plan)} - marked
    pending = (shard for shard in store.plan.shards if shard.index not in done)
    for number in sorted({piece.file for shard in pending for piece in shard.slices}):
        file = store.plan.inputs[number]
        if file.digest in given:
            continue
        if number >= len(store.finished.inputs):
            raise StoreError(
                f"{store.path}: an append of {file.path} has not finished; run the same command again, or replace that "
                "append with `append` and `overwrite`"
            )
        _check_there(file)


def _check_there(file: InputFile) -> None:
    if file.path in (STDIN, FRAME):
        raise InputError("is needed again, to repeat a damaged shard; pass it once more", path=file.path)
    if resolve_inputs([file.path], CorpusFormat(file.format))[0].digest != file.digest:
        raise InputError("has changed since the store was made; a damaged shard must be repeated", path=file.path)


def _check_not_longer(new: Iterable[InputFile], plan: Plan) -> None:
    """Refuse a file that was added before and has new rows at its end: its old rows would be added again."""
    before = {file.path: file for file in plan.inputs}
    for file in new:
        old = before.get(file.path)
        if old is not None and file.path not in (STDIN, FRAME) and begins_with(file, old):
            raise InputError("was added before, and has grown; append a file of its new rows alone", path=file.path)


def _check_settings(store: Growing, now: Mapping[str, Any]) -> None:
    """Refuse settings or a model that are not those of the store; a model's name does not count, its digests do."""
    stored, left_out = store.plan.fields, (*MODEL_NAMES, COMPACTED)

    def decisive(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name not in left_out and not is_of_inputs(name)}

    if fields := differing(decisive(stored), decisive(now)):
        raise PlanMismatch(
            f"{store.path}: made with other settings: {changes(fields)}; leave out settings to take those of the "
            "store, or extract into a new store",
            fields,
        )
