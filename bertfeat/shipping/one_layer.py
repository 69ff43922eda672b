"""The parts of targets that keep one layer and a linear head: refusals, the cut model, and a comparison."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bertfeat.choices import Level, OnOverlong, Task
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.entry_points import build_config
from bertfeat.encoder.hub import TOKENIZER_FILES
from bertfeat.encoder.loading import no_progress_bars
from bertfeat.encoder.weights import read_tokenizer_config
from bertfeat.errors import UserError, checkpoint_errors
from bertfeat.extraction.documents import documents_of
from bertfeat.extraction.flow import Flow
from bertfeat.shipping.linear_map import linear_map

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

#: What a model is compared with bertfeat on.
TEXTS = (
    "Rain",
    "It rains in Berlin.",
    "Ana bought 42 old books at the market, and her brother carried them home.",
    "The committee has not decided yet. Some members asked for more time; others, such as Dr. Okoye, left early!",
)
# The largest difference of scores, as a share of the largest score if that is above 1; and one that shows that the head
# magnifies what float32 rounds off.
_MAX_DIFFERENCE, _ROUNDING = 1e-4, 0.05


class NotExpressed(UserError):
    """A model was built, and it does not give the scores of the probe."""


def reasons_of_one_layer(probe: FittedProbe) -> dict[str, bool]:
    """Return reasons why a target with one layer and a linear head cannot express a probe, and which are true."""
    spec, head = probe.spec, probe.probe
    return {
        f"{spec.feature} has {len(spec.layers)} layers, and the target one": len(spec.layers) > 1,
        f"head {head.head} is not linear (fit logreg, svm, ridge or centroid)": linear_map(head) is None,
    }


def load_cut(probe: FittedProbe, checkpoint: Checkpoint, auto_class: Any) -> Any:
    """Load a model of transformers with the blocks up to the probe's layer and the probe's labels, as float32."""
    (n_blocks,), task = probe.spec.layers, probe.probe.task
    labels = [str(label) for label in probe.probe.classes_.tolist()] or [probe.label]
    if task == Task.REGRESS and (linear := linear_map(probe.probe)) and len(linear[1]) > 1:
        labels = [f"{probe.label}_{number}" for number in range(len(linear[1]))]
    config = build_config(checkpoint.folder, checkpoint.config)
    with checkpoint_errors(checkpoint.folder, f"transformers cannot load {n_blocks} blocks of it"), no_progress_bars():
        for name, value in list(vars(config).items()):
            # Such as the types of the blocks.
            if isinstance(value, list) and len(value) == checkpoint.n_layers:
                setattr(config, name, value[:n_blocks])
        config.num_hidden_layers = n_blocks
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
        kinds = {Task.CLASSIFY: "single_label_classification", Task.MULTILABEL: "multi_label_classification"}
        config.problem_type = kinds.get(Task(task), "regression")
        options = {"dtype": torch.float32, "use_safetensors": True, "local_files_only": True}
        return auto_class.from_pretrained(checkpoint.folder, config=config, **options).eval()


def copy_tokenizer(probe: FittedProbe, checkpoint: Checkpoint, folder: Path) -> None:
    """Copy the files of a model's tokenizer, with the probe's window as the limit of a text."""
    for name in TOKENIZER_FILES:
        if (checkpoint.folder / name).is_file():
            shutil.copyfile(checkpoint.folder / name, folder / name)
    settings = {**read_tokenizer_config(checkpoint.folder), "model_max_length": probe.spec.max_length}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, ensure_ascii=False, indent=1), encoding="utf-8")


def require_scores(probe: FittedProbe, checkpoint: Checkpoint, ways: Iterable[Sequence[Any]]) -> None:
    """Stop at the first way to build a model whose scores for `TEXTS` are the probe's; refuse it if none is.

    A way has the scores of each text, (n_rows, n_outputs): a row for the text or, at the token level and for words by
    their first tokens, for each token, special ones included. Those of the probe are of vectors in float32.
    """
    spec = dataclasses.replace(probe.spec, store_dtype="float32", compute_dtype="float32")
    if spec.level is Level.WORD:
        spec = dataclasses.replace(spec, level=Level.TOKEN, pooling=None)
    flow = Flow.of(spec.extract_config(device="cpu", on_overlong=OnOverlong.TRUNCATE), checkpoint)
    linear = linear_map(probe.probe)
    assert linear is not None
    tables = [table for text in TEXTS for table in flow.run(documents_of([text])).values()]
    expected = [spec.vectors_in(table) @ linear[0].T + linear[1] for table in tables]
    largest, least = max(1.0, *(float(np.abs(mine).max()) for mine in expected)), np.inf
    for found in ways:
        differences = [float(np.abs(mine - theirs).max()) for mine, theirs in zip(expected, found, strict=True)]
        least = min(least, max(differences) / largest)
        if least <= _MAX_DIFFERENCE:
            return
    text = f"scores of the model that was built differ by {least:.2g}, more than {_MAX_DIFFERENCE:g}"
    remedy = "; float32 is too coarse for this head, fit it with `standardize=False`"
    raise NotExpressed(text + (remedy if least < _ROUNDING else ""))
