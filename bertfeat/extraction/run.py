"""The whole flow, top to bottom.

corpus -> documents -> tokens -> windows -> packs -> encoder -> hidden states -> pooled features -> part -> receipt
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

from bertfeat.config import ExtractConfig
from bertfeat.encoder.encoder import memory_errors
from bertfeat.encoder.lanes import encode_packs, pack_budget
from bertfeat.encoder.transfers import Fetches
from bertfeat.errors import RunError, TokenizingError
from bertfeat.extraction.job import Job, load_worker, open_inputs, open_job
from bertfeat.extraction.leveltables import ShardText, align, level_table, make_buffers
from bertfeat.progress import Progress, Stopwatch, reporting
from bertfeat.records import BadRow, Document, Pack, Receipt, ShardResult, ShardSpec
from bertfeat.runners import end_earlier_runs, run_shards
from bertfeat.runners.task import writers_for
from bertfeat.settings import ExtractSettings
from bertfeat.storage import as_path
from bertfeat.store.commit import commit_shard
from bertfeat.store.reader import Store, open_store
from bertfeat.store.writer import open_for_writing
from bertfeat.text.packing import pack_windows
from bertfeat.text.windows import cut_windows


@dataclass(frozen=True, slots=True)
class PreparedShard:
    """A shard as text, ready for the encoder."""

    shard: ShardSpec
    text: ShardText
    packs: Sequence[Pack]
    bad_rows: Sequence[BadRow]
    clock: Stopwatch


def extract(
    inputs: str | Path | Sequence[str | Path],
    output: str | Path,
    config: ExtractConfig | None = None,
    *,
    overwrite: bool = False,
    progress: bool | Progress = False,
    **settings: Unpack[ExtractSettings],
) -> Store:
    """Run an encoder over a corpus once and keep its hidden states as Parquet.

    Called again with the same inputs and settings it continues where it broke off; on a finished store it does
    nothing. The plan is made first and checks every input row; then each shard is a task of its own, and its receipt
    says that it is done; the manifest comes last.

    Args:
        inputs: Files, globs, or `-` for standard input; files and globs may be URLs of objects (`s3://`, `gs://`).
        output: The store's folder, or its URL in an object store.
        config: The settings as one object; or pass them by name in `settings`, not both.
        overwrite: Replace a store that is already there.
        progress: See `bertfeat.progress.Progress`; True draws documents, tokens per second and the time left.
        **settings: The fields of `ExtractConfig`: `model`, `levels`, `layers`, ...

    Returns:
        The finished store.

    Raises:
        UserError: The inputs, the settings or the output folder cannot be used; nothing is left behind.
        RunError: The run failed; the same call resumes it.

    Example:
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
                progress.start(job.plan, writer.receipts())
                task = partial(ShardTask, job.for_workers(writer.lease))
                try:
                    run_shards(task, writer.pending(), job.workers, progress)
                except TokenizingError as error:
                    raise RunError(f"{error}; the same command resumes the run") from error
                writer.complete()
    return open_store(output)


class ShardTask:
    """The work on one shard in three stages, which a runner may overlap; made once a worker.

    Deterministic and idempotent: a shard reads its own slice and nothing of another, so it gives the same bytes
    whichever worker runs it, and however often.
    """

    def __init__(self, job: Job, worker: int = 0, n_workers: int = 1) -> None:
        """Load the tokenizer and the encoder, on the device and with the share of threads of worker `worker`."""
        self.job = job
        self.worker = load_worker(job, worker, n_workers)
        self.n_writers = writers_for(self.worker.encoder.device.type)

    def prepare(self, shard: ShardSpec) -> PreparedShard:
        """Read a shard's documents, tokenize them, cut windows, find the rows of every level, and pack the windows."""
        job, worker, clock = self.job, self.worker, Stopwatch()
        with clock.time("read"):
            rows = list(worker.corpus.read(shard))
        documents = [row for row in rows if isinstance(row, Document)]
        with clock.time("tokenize"):
            max_tokens = job.limits.max_tokens(job.config.levels)
            tokens = worker.tokenizer.encode(documents, max_tokens=max_tokens)
        with clock.time("align"):
            windows = cut_windows(tokens, worker.tokenizer, job.limits, documents, context=job.config.document_context)
            text = align(documents, tokens, windows, worker.tokenizer, job.config)
        with clock.time("pack"):
            budget = pack_budget(int(windows.lengths.sum()), job.max_batch_tokens, worker.encoder.device)
            packs = list(pack_windows(windows, budget))
        return PreparedShard(shard, text, packs, [row for row in rows if isinstance(row, BadRow)], clock)

    def encode(self, prepared: PreparedShard, progress: Progress) -> ShardResult:
        """Run the encoder, pool every level from the same states, rows in corpus order."""
        job, worker, text, clock = self.job, self.worker, prepared.text, prepared.clock
        buffers = make_buffers(text, job.plan.schemas, job.config, worker.encoder.device)
        n_encoded_tokens = n_repeated = 0
        n_halvings = worker.encoder.n_halvings
        fetches = Fetches(worker.encoder.device)
        for pack, states in clock.each("encode", encode_packs(worker.encoder, prepared.packs)):
            with clock.time("pool"), memory_errors(worker.encoder.device):
                for buffer in buffers.values():
                    buffer.add(pack, states)
            del states
            n_encoded_tokens += pack.n_tokens
            n_repeated += len(pack.copies)
            progress.encoded(pack.n_tokens)
        tables = {
            level: level_table(level, text, buffer, job.plan.schemas[level], worker.tokenizer, fetches)
            for level, buffer in buffers.items()
        }
        counts = {"n_documents": len(text.documents), **text.counts(), "n_packs": len(prepared.packs)}
        counts |= {"n_encoded_tokens": n_encoded_tokens, "n_repeated_windows": n_repeated}
        notes = {"n_halvings": worker.encoder.n_halvings - n_halvings}
        return ShardResult(tables, prepared.bad_rows, counts, dict(clock.seconds), notes, fetches.wait)

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        """Write the parts and, when they are safely on disk, the receipt."""
        seconds = result.wait()
        result = dataclasses.replace(result, seconds={**result.seconds, **seconds})
        return commit_shard(self.job.root, self.job.plan, shard, result, self.job.lease)
