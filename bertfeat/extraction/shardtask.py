"""The work on one shard, from its rows in the corpus to its receipt."""

from __future__ import annotations

import dataclasses
import socket

from bertfeat.corpus import Corpus
from bertfeat.devices import resolve_device, share_threads
from bertfeat.durable.differences import differing, named
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.errors import RunError
from bertfeat.extraction.flow import PreparedText
from bertfeat.extraction.job import Job, load_flow, load_tokenizer
from bertfeat.extraction.plan import versions
from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardResult, ShardSpec
from bertfeat.runners.task import writers_for
from bertfeat.store.commit import commit_shard


class ShardTask:
    """The work on one shard in three stages, which a runner may overlap; made once per worker.

    Deterministic and idempotent: a shard reads its own slice and nothing of another, so it gives the same bytes
    whichever worker runs it, and however often.
    """

    def __init__(self, job: Job, worker: int = 0, n_workers: int = 1) -> None:
        """Load the tokenizer and the encoder; workers take the devices in turn and share this machine's threads."""
        if n_workers > 1:
            share_threads(n_workers)
        config = job.config
        checkpoint = open_checkpoint(config.model, config.revision)
        if job.on_cluster:
            _check_machine(job, checkpoint)
        devices = resolve_device(config.device)
        device, tokenizer = devices[worker % len(devices)], load_tokenizer(checkpoint, job.files, config)
        self.job = job
        self.corpus = Corpus(job.files, config)
        self.flow = load_flow(config, job.plan.schemas, job.resolved, checkpoint, tokenizer, device)
        self.n_writers = writers_for(device.type)

    def prepare(self, shard: ShardSpec) -> PreparedText:
        """Take a shard's rows from the corpus as far as the packs."""
        return self.flow.prepare(self.corpus.read(shard))

    def encode(self, prepared: PreparedText, progress: Progress) -> ShardResult:
        """Take the packs through the encoder to the tables, rows in corpus order."""
        return self.flow.encode(prepared, progress)

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        """Write the parts and, when they are safely on disk, the receipt."""
        seconds = result.wait()
        result = dataclasses.replace(result, seconds={**result.seconds, **seconds})
        return commit_shard(self.job.root, self.job.plan, shard, result, self.job.lease)


def _check_machine(job: Job, checkpoint: Checkpoint) -> None:
    """Refuse to work on a machine that would not give the plan's bytes.

    Raises:
        RunError: Its libraries or its model are others.
    """
    expected: dict[str, str] = {**job.plan.metadata["versions"], "weights": job.plan.model.weights_sha256}
    found = {**versions(), "weights": checkpoint.info().weights_sha256}
    if fields := differing(expected, found):
        host = socket.gethostname()
        raise RunError(f"{host}: differs from the plan: {named(fields)}; install the same on every machine")
