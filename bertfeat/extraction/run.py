"""`extract` and `append`: the plan, the flow for every shard on the workers, and the manifest."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

from bertfeat.config import ExtractConfig
from bertfeat.corpus import Inputs
from bertfeat.corpus.inputs import has_changed, shown_path
from bertfeat.errors import InputError, RunError, TokenizingError
from bertfeat.extraction.appending import open_append, open_growing
from bertfeat.extraction.job import Job, open_inputs, open_job
from bertfeat.extraction.vectorcache import VectorCache, check_cache
from bertfeat.progress import Progress, reporting
from bertfeat.records import InputFile, ShardSpec
from bertfeat.runners.dispatch import run_shards
from bertfeat.runners.fence import end_earlier_runs
from bertfeat.settings import ExtractSettings
from bertfeat.storage import ObjectPath, as_path
from bertfeat.store.reader import Store, open_store
from bertfeat.store.writer import StoreWriter, open_for_writing


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
        inputs: Files, globs, or `-` for standard input; files and globs may be URLs of objects (`s3://`, `gs://`). Or
            one data frame: any object with `__arrow_c_stream__` (of polars, pandas, pyarrow, DuckDB, ...), a polars
            `LazyFrame` or a `datasets.Dataset`. It is read like the Parquet file that bertfeat writes of it. Or texts:
            a Series, a dict of columns, a list of dicts, or a list of strings. Strings are texts if at least one has a
            space, and neither a slash nor a file ending, and none names a file or has an ending that is read.
        output: The store's folder, or its URL in an object store.
        config: The settings as one object; or pass them by name in `settings`, not both.
        overwrite: Replace a store that is already there.
        progress: True draws a bar with the time left, documents, tokens and bytes; False draws none; None draws it in a
            terminal and in a notebook. Or a `bertfeat.Progress`, which receives the reports.
        **settings: The fields of `ExtractConfig`: `model`, `levels`, `layers`, `limit`, ...

    Returns:
        The finished store.

    Raises:
        UserError: The inputs, the settings or the output folder cannot be used; nothing was written.
        RunError: The run failed; the same call resumes it.

    Examples:
        >>> store = extract("examples/data/peps.txt", tmp / "features", levels="sentence", layers="-1")
        >>> store.numpy("sentence", "layer_06").shape
        (206, 384)
    """
    config = ExtractConfig.of(config, settings)
    if config.cache is not None:
        check_cache(config.cache, config.cache_size, as_path(output))
    since = time.time()
    with reporting(progress) as progress, open_inputs(inputs, output, config) as files:
        job = open_job(config, files, as_path(output), progress, overwrite=overwrite)
        _check_read(job.files, since)
        end_earlier_runs(job.root)
        with open_for_writing(job.root, job.plan, overwrite=overwrite) as writer:
            _finish(job, writer, progress, since)
    return open_store(output)


def append(
    store: str | Path | Store,
    inputs: Inputs,
    *,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
    **settings: Unpack[ExtractSettings],
) -> Store:
    """Add the documents of further inputs to a finished store: new shards after the old ones, which stay as they are.

    Rows are numbered on, and ids must be new. The model and all settings are the store's; new versions of the libraries
    need a new store. Readers see the old store until the append is done, and then the new one. The same call resumes an
    append that was interrupted. An input whose bytes the store has is left out, so a call that was done does nothing.

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
    growing = open_growing(path, settings, overwrite=overwrite)
    if growing.config.cache is not None:
        check_cache(growing.config.cache, growing.config.cache_size, path)
    since = time.time()
    with reporting(progress) as progress, open_inputs(inputs, path, growing.config) as files:
        is_last = False
        while not is_last:
            growth = open_append(growing, files, progress)
            _check_read(files, since)
            end_earlier_runs(path)
            with open_for_writing(path, growth.job.plan, drop_unfinished=overwrite) as writer:
                if growth.ids is not None:
                    writer.keep_ids(growth.finished, growth.ids)
                _finish(growth.job, writer, progress, since)
            is_last = growth.is_last
            growing = growing if is_last else open_growing(path, settings, overwrite=False)
    return open_store(path)


def _finish(job: Job, writer: StoreWriter, progress: Progress, since: float) -> None:
    """Run the shards that remain, and write the manifest; `since` is a time before the inputs were read."""
    if writer.is_complete:
        return
    open_plan = dataclasses.replace(job.plan, shards=writer.open_shards)
    job = _with_cache(job, is_new=writer.is_new).for_workers(writer.lease)
    # torch is imported here: a finished store and a user's mistake are reported without it.
    from bertfeat.extraction.shardtask import ShardTask

    progress.start(open_plan, writer.receipts())
    task, pending = partial(ShardTask, job), writer.pending()
    try:
        run_shards(task, pending, job.workers, progress)
    except TokenizingError as error:
        raise RunError(f"{error}; the same command resumes the run") from error
    _check_encoded(job.files, pending, writer, since)
    writer.complete()


def _check_read(files: Sequence[InputFile], since: float) -> None:
    """Refuse a file that changed between its digest and the end of planning: the plan would not be that of its bytes.

    Raises:
        InputError: The message names the file.
    """
    for file in files:
        if has_changed(file, since):
            raise InputError("changes while it is read; wait until it is whole", path=shown_path(file.path))


def _check_encoded(files: Sequence[InputFile], shards: Sequence[ShardSpec], writer: StoreWriter, since: float) -> None:
    """Refuse the shards of a file whose planned bytes changed while they were encoded.

    Raises:
        RunError: The message names the file.
    """
    numbers = sorted({piece.file for shard in shards for piece in shard.slices})
    changed = [number for number in numbers if has_changed(files[number], since, may_grow=True)]
    if changed:
        writer.withdraw(s for s in shards if not {piece.file for piece in s.slices}.isdisjoint(changed))
        raise RunError(
            f"{files[changed[0]].path}: changed while its rows were encoded; the same command repeats them with the "
            "old file, or pass `overwrite` to take the new one"
        )


def _with_cache(job: Job, *, is_new: bool) -> Job:
    """Begin to use the cache, if there is one; a store that is not new is resumed."""
    config = job.config
    if config.cache is None:
        return job
    place = job.root if isinstance(job.root, ObjectPath) else job.root.absolute()
    with contextlib.closing(VectorCache(config.cache, config.cache_size)) as cache:
        return dataclasses.replace(job, cache_token=cache.begin(f"{job.plan.plan_hash} {place}", is_new=is_new))
