"""The parts of targets that keep one layer and a linear head: refusals, the cut model, and a comparison."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bertfeat.choices import Level, Task
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.entry_points import build_config
from bertfeat.encoder.hub import TOKENIZER_FILES
from bertfeat.encoder.loading import no_progress_bars
from bertfeat.encoder.weights import read_tokenizer_config
from bertfeat.errors import UserError, checkpoint_errors
from bertfeat.extraction.documents import documents_of
from bertfeat.extraction.flow import Flow
from bertfeat.records import Float64Array
from bertfeat.shipping.linear_map import LinearMap, exact_scores

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

# What a model is compared with bertfeat on; texts that do not fit a window are left out.
_TEXTS = (
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


def first_reason(probe: FittedProbe, checkpoint: Checkpoint, of_target: Mapping[str, bool]) -> str | None:
    """Return the first reason that is true why a target with one layer and a linear head cannot express a probe."""
    spec, head = probe.spec, probe.probe
    reasons = {
        f"{spec.model} holds static vectors, not a model with blocks": checkpoint.facts is None,
        "it reads sentences together with their neighbors (`document_context`)": spec.document_context,
        f"{spec.feature} has {len(spec.layers)} layers, and the target one": len(spec.layers) > 1,
        f"head {head.head} is not linear (fit logreg, svm, ridge or centroid)": LinearMap.of(head) is None,
        **of_target,
    }
    return next((said for said, is_true in reasons.items() if is_true), None)


def load_cut(probe: FittedProbe, checkpoint: Checkpoint, auto_class: Any) -> Any:
    """Load a model of transformers with the blocks up to the probe's layer and the probe's labels, as float32."""
    (n_blocks,), task = probe.spec.layers, probe.probe.task
    labels = [str(label) for label in probe.probe.classes_.tolist()] or [probe.label]
    if task == Task.REGRESS and (linear := LinearMap.of(probe.probe)) and len(linear.bias) > 1:
        labels = [f"{probe.label}_{number}" for number in range(len(linear.bias))]
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


class Comparison:
    """The scores of a probe for a few texts, from vectors that bertfeat computes in float32.

    Attributes:
        texts: The texts.
        scores: The scores of each text, float64 (n_rows, n_outputs): a row for the text or, at the token level and for
            words by their first tokens, for each token, special ones included.
    """

    def __init__(self, probe: FittedProbe, checkpoint: Checkpoint) -> None:
        spec = dataclasses.replace(probe.spec, store_dtype="float32", compute_dtype="float32")
        if spec.level is Level.WORD:
            spec = dataclasses.replace(spec, level=Level.TOKEN, pooling=None)
        flow = Flow.of(spec.extract_config(device="cpu"), checkpoint)
        self.texts: list[str] = []
        self.scores: list[Float64Array] = []
        for text in _TEXTS:
            prepared = flow.prepare(documents_of([text]))
            if len(prepared.packs) == 1 and len(prepared.text.windows.lengths) == 1:
                (table,) = flow.run(documents_of([text])).values()
                self.texts.append(text)
                self.scores.append(exact_scores(probe.probe, spec.vectors_in(table)))

    def choose(self, ways: Iterable[Callable[[], Sequence[Any]]]) -> None:
        """Stop at the first way to build a model whose scores for the texts are the probe's; refuse it if none is."""
        largest = max(1.0, *(float(np.abs(mine).max()) for mine in self.scores))
        found = []
        for run in ways:
            pairs = zip(self.scores, run(), strict=True)
            found.append(max(float(np.abs(mine - theirs).max()) for mine, theirs in pairs) / largest)
            if found[-1] <= _MAX_DIFFERENCE:
                return
        text = f"scores of the model that was built differ by {min(found):.2g}, more than {_MAX_DIFFERENCE:g}"
        remedy = "; float32 is too coarse for this head, fit it with `standardize=False`"
        raise NotExpressed(text + (remedy if min(found) < _ROUNDING else ""))
