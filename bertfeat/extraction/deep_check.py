"""The deep check: documents of the original inputs, encoded again and compared with the vectors of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.choices import Level
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, Inputs
from bertfeat.corpus.corpus import FRAME, STDIN
from bertfeat.corpus.data_frames import Paths, parquet_frame, resolve_kind
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import InputError, PlanMismatch
from bertfeat.extraction.estimation import spread
from bertfeat.extraction.flow import Flow, Network
from bertfeat.extraction.job import gives_words, open_inputs
from bertfeat.extraction.plan import FINISHED_NAMES, config_of, plan_differences, plan_fields, recorded
from bertfeat.extraction.resolution import resolve
from bertfeat.records import Document, InputFile, LevelTable, Plan, ShardSpec
from bertfeat.store.plan_file import INPUTS, changes
from bertfeat.store.reader import Store, open_store
from bertfeat.store.verification import Problem, VerifyReport

# Relative to the length of a vector. In another pack, the states of a text differ in the last bits: by 1e-5 in float32,
# by 1e-2 in bfloat16 and float16.
_FLOAT32_TOLERANCE = 1e-4
_HALF_TOLERANCE = 3e-2


def recheck(path: str | Path, inputs: Inputs | None = None, *, n_documents: int = 16) -> VerifyReport:
    """Encode documents from all over a finished store again, and compare their vectors with the stored ones.

    The plan alone decides which documents: `n_documents` or a few more, or as many groups of sentences. `inputs` says
    where the inputs are now, by default where they were; for a frame, an equal frame or its Parquet file.
    """
    store = open_store(path)
    store.require_model("a deep check", "check its digests only")
    plans = store.plans
    config = config_of(store.plan)
    problems: list[Problem] = []
    n_parts = n_rows = n_bytes = 0
    with open_inputs(_inputs(store, inputs, config), path, config) as files:
        flow = _flow(store, config, files)
        chosen = spread([(plan, shard) for plan in plans for shard in plan.shards], n_documents)
        corpora = _corpora(plans, config, files)
        for number, (plan, shard) in enumerate(chosen):
            share = n_documents // len(chosen) + (number < n_documents % len(chosen))
            part = store.shard(shard.index)
            sample = _sample(corpora[plan.plan_hash], shard, share)
            for level, table in flow.run(sample).items():
                problems += _compare(part, shard.index, level, table, _tolerance(plan))
                n_parts += 1
                n_rows += table.n_rows
                n_bytes += sum(array.nbytes for array in table.vectors.values())
    return VerifyReport(tuple(problems), n_parts, n_rows, n_bytes)


def _corpora(plans: Sequence[Plan], config: ExtractConfig, files: Sequence[InputFile]) -> dict[str, Corpus]:
    """Return the corpus of each plan, whose slices count its own files only."""
    found, first = {}, 0
    for plan in plans:
        found[plan.plan_hash] = Corpus(files[first : first + len(plan.inputs)], config)
        first += len(plan.inputs)
    return found


def _inputs(store: Store, inputs: Inputs | None, config: ExtractConfig) -> Inputs:
    """Return the inputs that were passed, or else those of the plan; a file that stands for a frame as a frame."""
    planned = [file.path for file in store.manifest.inputs]
    if inputs is not None:
        found = resolve_kind(inputs, config)
        return parquet_frame(str(found[0])) if planned == [FRAME] and isinstance(found, Paths) else found
    if STDIN in planned:
        raise InputError(f"{store.path}: made from standard input; name a file with the same text with `inputs`")
    if FRAME in planned:
        raise InputError(f"{store.path}: made from a data frame; write it as Parquet and name it with `inputs`")
    return planned


def _flow(store: Store, config: ExtractConfig, files: tuple[InputFile, ...]) -> Flow:
    plan = store.plan
    checkpoint = open_checkpoint(config.model, config.revision)
    tokenizer, resolved = resolve(config, checkpoint, given_words=gives_words(files, config))
    planned = tuple(recorded(files))
    fields = plan_differences(plan.fields, plan_fields(config, resolved, files), FINISHED_NAMES)
    if [file.digest for file in store.manifest.inputs] != [file.digest for file in planned]:
        fields[INPUTS] = (store.manifest.inputs, planned)
    if fields:
        changed = changes(fields, store.manifest.inputs, planned)
        text = f"{store.path}: cannot be encoded again, because the inputs or the model changed: {changed}"
        raise PlanMismatch(text, fields)
    return Flow(config, plan.schemas, resolved, tokenizer, Network(checkpoint, config, resolved))


def _tolerance(plan: Plan) -> float:
    if plan.fields["compute_dtype"] != "float32":
        return _HALF_TOLERANCE
    # Storing a value rounds it by up to half of `eps`.
    return max(_FLOAT32_TOLERANCE, 2 * float(np.finfo(plan.fields["store_dtype"]).eps))


def _sample(corpus: Corpus, shard: ShardSpec, n_wanted: int) -> list[Document]:
    """Return a few documents of a shard; with document context, all sentences of each group."""
    documents = [row for row in corpus.read(shard) if isinstance(row, Document)]
    keys = [row.group if corpus.config.document_context else row.index for row in documents]
    chosen = set(spread(list(dict.fromkeys(keys)), n_wanted))
    return [row for row, key in zip(documents, keys, strict=True) if key in chosen]


def _compare(part: Store, shard: int, level: Level, table: LevelTable, tolerance: float) -> Iterator[Problem]:
    name = part.parts(level)[0].path
    wanted = list(table.columns["doc_id"])
    stored_ids = np.array(part.arrow(level, ["doc_id"]).column(0).to_pylist(), dtype=object)
    rows = np.flatnonzero(np.isin(stored_ids, list(set(wanted)))) if wanted else np.zeros(0, np.int64)
    if stored_ids[rows].tolist() != wanted:
        yield Problem(shard, name, f"has {len(rows)} rows of the documents that were encoded again, not {len(wanted)}")
        return
    valid = np.ones(table.n_rows, np.bool_) if table.valid is None else table.valid
    for feature, vectors in table.vectors.items():
        if not np.array_equal(part.valid(level, feature)[rows], valid):
            yield Problem(shard, name, f"{feature} is null in the wrong rows")
            continue
        error = _worst(part.numpy(level, feature)[rows][valid], vectors[valid])
        if error > tolerance:
            yield Problem(shard, name, f"{feature} differs by {error:.2g} of its length, more than {tolerance:.2g}")


def _worst(stored: npt.NDArray[Any], again: npt.NDArray[Any]) -> float:
    """Return the largest distance between two vectors of the same row, relative to the length of the second."""
    if not len(again):
        return 0.0
    distance = np.linalg.norm(stored.astype(np.float64) - again.astype(np.float64), axis=1)
    length = np.linalg.norm(again.astype(np.float64), axis=1)
    return float((distance / np.maximum(length, np.finfo(np.float32).tiny)).max())
