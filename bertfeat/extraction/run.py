"""`extract`: the plan, the flow for every shard on the workers, and the manifest."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Unpack

from bertfeat.config import ExtractConfig
from bertfeat.corpus import Inputs
from bertfeat.errors import RunError, TokenizingError
from bertfeat.extraction.job import open_inputs, open_job
from bertfeat.progress import Progress, reporting
from bertfeat.runners import end_earlier_runs, run_shards
from bertfeat.settings import ExtractSettings
from bertfeat.storage import as_path
from bertfeat.store.reader import Store, open_store
from bertfeat.store.writer import open_for_writing


def extract(
    inputs: Inputs,
    output: str | Path,
    config: ExtractConfig | None = None,
    *,
    overwrite: bool = False,
    progress: bool | Progress = False,
    **settings: Unpack[ExtractSettings],
) -> Store:
    """Run an encoder over a corpus once and store its hidden states as Parquet.

    The same call resumes an interrupted run, and does nothing on a finished store. The plan comes first and checks
    every input row. Then each shard is a separate task, which ends with a receipt. The manifest comes last.

    Args:
        inputs: Files, globs, or `-` for standard input; files and globs may be URLs of objects (`s3://`, `gs://`). Or
            one data frame: any object with `__arrow_c_stream__` (of polars, pandas, pyarrow, DuckDB, ...) or a
            `datasets.Dataset`. It is read like the Parquet file that bertfeat writes of it.
        output: The store's folder, or its URL in an object store.
        config: The settings as one object; or pass them by name in `settings`, not both.
        overwrite: Replace a store that is already there.
        progress: True for a bar with documents, tokens per second and the time left, or a `bertfeat.Progress`.
        **settings: The fields of `ExtractConfig`: `model`, `levels`, `layers`, ...

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
    with reporting(progress) as progress, open_inputs(inputs, output, config) as files:
        job = open_job(config, files, as_path(output), progress, overwrite=overwrite)
        end_earlier_runs(job.root)
        with open_for_writing(output, job.plan, overwrite=overwrite) as writer:
            if not writer.is_complete:
                # torch is imported here: a finished store and a user's mistake are reported without it.
                from bertfeat.extraction.shardtask import ShardTask

                progress.start(job.plan, writer.receipts())
                task = partial(ShardTask, job.for_workers(writer.lease))
                try:
                    run_shards(task, writer.pending(), job.workers, progress)
                except TokenizingError as error:
                    raise RunError(f"{error}; the same command resumes the run") from error
                writer.complete()
    return open_store(output)
