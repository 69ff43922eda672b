"""`extract` and `append`, which run the flow on a corpus.

Plan, shards still to do, prepare (a thread), encode (the device), commit (a thread), manifest.

`job` makes the plan. `runners/overlap` runs the three stages of `ShardTask` on the shards, in this process or in each
worker. The store's writer makes the manifest.
"""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, Inputs
from bertfeat.corpus.corpus import has_changed, shown_path
from bertfeat.devices import resolve_device, share_threads
from bertfeat.durable.differences import differing
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.errors import ConfigError, InputError, RunError, TokenizingError
from bertfeat.extraction.appending import append_jobs, open_growing
from bertfeat.extraction.job import Job, gives_words, open_inputs, open_job
from bertfeat.extraction.plan import VERSION_NAMES, fields_of_process, span_file
from bertfeat.extraction.resolution import open_tokenizer
from bertfeat.extraction.vector_cache import VectorCache
from bertfeat.progress import Progress, Report, reporting
from bertfeat.records import InputFile, Receipt, ShardSpec
from bertfeat.runners.dispatch import run_shards
from bertfeat.runners.task import Task, writers_for
from bertfeat.settings import ExtractSettings
from bertfeat.storage import as_path
from bertfeat.store.commit import commit_shard
from bertfeat.store.folder import folder_at
from bertfeat.store.plan_file import SPANS_DIGEST, changes
from bertfeat.store.reader import Store, open_store
from bertfeat.store.writer import StoreWriter, open_for_writing

if TYPE_CHECKING:
    from bertfeat.extraction.flow import Encoded, PreparedText


def extract(
    inputs: Inputs,
    output: str | Path,
    config: ExtractConfig | None = None,
    *,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
    **settings: Unpack[ExtractSettings],
) -> Store:
    """Run an encoder over a corpus once and store its hidden states as Parquet.

    The same call resumes an interrupted run, and does nothing on a finished store. The plan comes first and checks
    every input row. Then each shard is a separate task, which ends with a receipt. The manifest comes last.

    Args:
        inputs: Files, globs, or `-` for standard input; files and globs may be URLs of objects (`s3://`, `gs://`) or of
            data sets of a hub (`hf://datasets/`). Or one data frame: any object with `__arrow_c_stream__` (of polars,
            pandas, pyarrow, DuckDB, ...), a polars `LazyFrame`, a `datasets.Dataset` or `IterableDataset`. It is read
            like the Parquet file that bertfeat writes of it. Or texts: a Series, a dict of columns, or a list or an
            iterator of dicts or of strings; without `limit`, an iterator may have 20,000,000 rows. Strings are texts if
            none may be a file (it exists, or has an ending that is read) and at least one does not look like a path;
            they are paths if all may be files; a mix is refused. `Path(...)` is a path, and `{"text": [...]}` are
            texts.
        output: The store's folder, or its URL in an object store.
        config: The settings as one object; or pass them by name in `settings`, not both.
        overwrite: Replace a store that is already there.
        progress: True draws a bar with the time left, documents, tokens and bytes; False draws none; None draws it in a
            terminal and in a notebook. Or a `bertfeat.Progress`, which receives the reports.
        **settings: The fields of `ExtractConfig`: `model`, `levels`, `layers`, `limit`, ...

    Returns:
        The finished store; with `shards`, the shards that are done so far, if others are left.

    Raises:
        UserError: The inputs, the settings or the output folder cannot be used; nothing was written.
        RunError: The run failed; the same call resumes it.

    Examples:
        >>> store = extract("examples/data/peps.txt", tmp / "features", levels="sentence", layers="-1")
        >>> store.numpy("sentence", "layer_06").shape
        (206, 384)
    """
    config = ExtractConfig.of(config, settings)
    _check_share(config, overwrite=overwrite)
    since, root = time.time(), folder_at(output).path
    with reporting(progress) as progress, open_inputs(inputs, output, config) as files:
        job = open_job(config, files, root, progress, overwrite=overwrite)
        _check_read(job.files, since)
        with open_for_writing(job.root, job.plan, overwrite=overwrite, shared=config.shards is not None) as writer:
            _finish(job, writer, progress, since)
    return open_store(output, allow_incomplete=config.shards is not None)


def append(
    store: str | Path | Store,
    inputs: Inputs,
    *,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
    **settings: Unpack[ExtractSettings],
) -> Store:
    """Add the documents of further inputs to a finished store: its next version has new shards after the old ones.

    Rows are numbered on, and ids must be new. The model and all settings are the store's; new versions of the libraries
    need a new store. Readers see the old version until the append is done, and then the new one. The same call resumes
    an append that was interrupted. An input whose bytes the store has is left out, so a call that was done does
    nothing. Damaged shards that `verify` has found are repeated first.

    Args:
        store: The store, its folder or its URL.
        inputs: Files, globs, `-`, a data frame or texts; see `extract`.
        overwrite: Replace an append that has not finished.
        progress: See `extract`.
        **settings: Where to run (`workers`, `device`, `runner`, ...) and where the model is now (`model`); others must
            be those of the store.

    Returns:
        The grown store.

    Raises:
        UserError: There is no finished store, or the inputs or settings do not fit it; the store has not changed.
        RunError: The run failed; the same call resumes it.

    Examples:
        >>> store = extract("examples/data/peps.txt", tmp / "growing", levels="sentence", layers="-1")
        >>> _ = (tmp / "later.txt").write_text("One more text.")
        >>> len(append(store, tmp / "later.txt"))
        207
    """
    path = store.path if isinstance(store, Store) else as_path(store)
    grown, config = open_growing(path, settings)
    _check_share(config, overwrite=overwrite)
    since = time.time()
    with reporting(progress) as progress, open_inputs(inputs, path, config) as files:
        for job in append_jobs(grown, config, files, progress):
            _check_read(files, since)
            is_new = job.plan.plan_hash not in grown.manifest.plan_hashes
            shared = config.shards is not None
            with open_for_writing(path, job.plan, overwrite=overwrite and is_new, shared=shared) as writer:
                _finish(job, writer, progress, since)
    return open_store(path)


def _check_share(config: ExtractConfig, *, overwrite: bool) -> None:
    if overwrite and config.shards is not None:
        raise ConfigError("`overwrite` does not go with `shards`, because other processes write too; pass one of them")


def _finish(job: Job, writer: StoreWriter, progress: Progress, since: float) -> None:
    """Run the shards that remain of this share; whoever finds that all are done makes the next version."""
    if writer.is_complete:
        return
    if job.config.cache is not None:
        with VectorCache(job.config.cache, job.config.cache_size, job.root) as cache:
            cache.begin(job.run_name, is_new=not writer.receipts())
    share, n_shares = job.config.share or (1, 1)
    pending = tuple(shard for shard in writer.pending() if shard.index % n_shares == share - 1)
    mine = tuple(shard for shard in writer.plan.shards if shard.index % n_shares == share - 1)
    with job.for_workers() as sent:
        progress.start(dataclasses.replace(writer.plan, shards=mine), writer.receipts())
        try:
            run_shards(partial(task_of, sent), pending, job.workers, progress)
        except TokenizingError as error:
            raise RunError(f"{error}; the same command resumes the run") from error
    _check_encoded(job.files, pending, writer, since)
    if job.config.share is None or not writer.pending():
        writer.complete()


def task_of(job: Job, worker: int, n_workers: int) -> Task[Any]:
    """Return the task of a worker, behind the cache if there is one."""
    task = ShardTask(job, worker, n_workers)
    if job.config.cache is None:
        return task
    from bertfeat.extraction.caching import CachedTask

    return CachedTask(task)


class ShardTask:
    """The work on a shard in three stages, which a runner may overlap; made once per worker.

    The task is deterministic and idempotent: it reads only the slice of its shard, so the bytes are the same on every
    worker and in every run.
    """

    def __init__(self, job: Job, worker: int = 0, n_workers: int = 1) -> None:
        """Load the tokenizer and the encoder; workers take the devices in turn and share the threads of the machine."""
        # torch is imported here: a finished store and a user's mistake are reported without it.
        from bertfeat.extraction.flow import Flow, Network

        if n_workers > 1:
            share_threads(n_workers)
        config = job.config
        checkpoint = open_checkpoint(config.model, config.revision)
        _check_plan(job, checkpoint)
        devices = resolve_device(config.device)
        device = devices[worker % len(devices)]
        tokenizer = open_tokenizer(checkpoint, given_words=gives_words(job.files, config))
        tokenizer = tokenizer.with_prompt(job.resolved.prompt)
        network = Network(checkpoint, config, job.resolved, device)
        network.load()
        self.job = job
        self.corpus = Corpus(job.files, config)
        self.flow = Flow(config, job.plan.schemas, job.resolved, tokenizer, network)
        self.n_writers = writers_for(device.type)

    def prepare(self, shard: ShardSpec) -> PreparedText:
        """Read the rows of a shard and make packs of them."""
        return self.flow.prepare(self.corpus.read(shard))

    def encode(self, prepared: PreparedText, report: Report) -> Encoded:
        """Encode the packs and make the tables, rows in corpus order."""
        return self.flow.encode(prepared, report)

    def commit(self, shard: ShardSpec, encoded: Encoded) -> Receipt:
        """Write the parts and, once they are safe on disk, the receipt."""
        return commit_shard(self.job.root, self.job.plan, shard, encoded.finish())


def _check_read(files: Sequence[InputFile], since: float) -> None:
    """Refuse a file that changed between its digest and the end of planning: it would not be that of the plan."""
    for file in files:
        if has_changed(file, since):
            raise InputError("changes while it is read; wait until it is whole", path=shown_path(file.path))


def _check_encoded(files: Sequence[InputFile], shards: Sequence[ShardSpec], writer: StoreWriter, since: float) -> None:
    """Refuse the shards of a file whose planned bytes changed while they were encoded."""
    numbers = sorted({piece.file for shard in shards for piece in shard.slices})
    changed = [number for number in numbers if has_changed(files[number], since, may_grow=True)]
    if changed:
        writer.withdraw(s for s in shards if not {piece.file for piece in s.slices}.isdisjoint(changed))
        raise RunError(
            f"{files[changed[0]].path}: changed while its rows were encoded; the same command repeats them with the "
            "old file, or pass `overwrite` to take the new one"
        )


def _check_plan(job: Job, checkpoint: Checkpoint) -> None:
    """Check that this process gives the bytes of the plan: its model and, on another machine, its libraries."""
    sentence = checkpoint.sentence_model() if job.resolved.sentence is not None else None
    found = fields_of_process(checkpoint.info(), checkpoint.config_sha256, sentence)
    if not job.on_cluster:
        found = {name: value for name, value in found.items() if name not in VERSION_NAMES}
    if (spans := span_file(job.config)) is not None:
        found[SPANS_DIGEST] = spans.digest
    if fields := differing({name: job.plan.fields.get(name) for name in found}, found):
        remedy = "install the same on every machine" if job.on_cluster else "start the run again"
        here = f"{socket.gethostname()}: {checkpoint.folder}"
        raise RunError(f"{here}: not as in the plan of the run: {changes(fields)}; {remedy}")
