"""The task of one shard, from its rows in the corpus to its receipt."""

from __future__ import annotations

import socket

from bertfeat.corpus import Corpus
from bertfeat.devices import resolve_device, share_threads
from bertfeat.durable.differences import differing, named
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.sentencemodel import SentenceModel
from bertfeat.errors import RunError
from bertfeat.extraction.flow import Encoded, Flow, Network, PreparedText
from bertfeat.extraction.job import Job, gives_words
from bertfeat.extraction.plan import versions
from bertfeat.extraction.staticmodels import open_tokenizer
from bertfeat.progress import Report
from bertfeat.records import ModelInfo, Receipt, ShardSpec
from bertfeat.runners.task import writers_for
from bertfeat.store.commit import commit_shard


class ShardTask:
    """The work on a shard in three stages, which a runner may overlap; made once per worker.

    The task is deterministic and idempotent: it reads only the slice of its shard, so the bytes are the same on every
    worker and in every run.
    """

    def __init__(self, job: Job, worker: int = 0, n_workers: int = 1) -> None:
        """Load the tokenizer and the encoder; workers take the devices in turn and share the threads of the machine."""
        if n_workers > 1:
            share_threads(n_workers)
        config = job.config
        checkpoint = open_checkpoint(config.model, config.revision)
        _check_plan(job, checkpoint)
        devices = resolve_device(config.device)
        device = devices[worker % len(devices)]
        tokenizer = open_tokenizer(checkpoint, given_words=gives_words(job.files, config), prompt=job.resolved.prompt)
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


def _check_plan(job: Job, checkpoint: Checkpoint) -> None:
    """Check that this process gives the bytes of the plan.

    Raises:
        RunError: The model, or a library of another machine, is not that of the plan.
    """
    sentence = checkpoint.sentence_model() if job.resolved.sentence is not None else None
    planned = _model_digests(job.resolved.model, job.resolved.config_sha256, job.resolved.sentence)
    found = _model_digests(checkpoint.info(), checkpoint.config_sha256, sentence)
    if job.on_cluster:
        planned, found = {**job.plan.metadata["versions"], **planned}, {**versions(), **found}
    if not (fields := differing(planned, found)):
        return
    if not job.on_cluster:
        raise RunError(f"{checkpoint.folder}: {', '.join(fields)} changed since the run was planned; start it again")
    differences = named(fields, "{} is {} in the plan, {} here")
    raise RunError(f"{socket.gethostname()}: differs from the plan: {differences}; install the same on every machine")


def _model_digests(model: ModelInfo, config_sha256: str, sentence: SentenceModel | None) -> dict[str, str]:
    """Return the digests of all files of a model that decide vectors."""
    return {
        "weights": model.weights_sha256,
        "tokenizer": model.tokenizer_sha256,
        "config.json": config_sha256,
        "sentence embedding": "none" if sentence is None else sentence.sha256,
    }
