"""The parts that targets share which keep one layer and a linear head: refusals, the cut config, and a comparison."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertfeat.choices import Combine, Level, Task
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.entry_points import build_config
from bertfeat.encoder.hub import TOKENIZER_FILES
from bertfeat.errors import UserError, checkpoint_errors
from bertfeat.extraction.documents import documents_of
from bertfeat.extraction.flow import Flow
from bertfeat.records import Float32Array
from bertfeat.shipping.linear_map import LinearMap
from bertfeat.store.provenance import FeatureSpec

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

# What a shipped model is compared with bertfeat on; texts that do not fit a window are left out.
_TEXTS = (
    "Rain",
    "It rains in Berlin.",
    "Ana bought 42 old books at the market, and her brother carried them home.",
    "The committee has not decided yet. Some members asked for more time; others, such as Dr. Okoye, left early!",
)
# The largest difference of scores, as a share of the largest score if that is above 1.
_MAX_DIFFERENCE = 1e-4


class NotExpressed(UserError):
    """A model was built, and its scores are not those of the probe."""


def refusal_of_feature(probe: FittedProbe, checkpoint: Checkpoint) -> str | None:
    """Return why a model that keeps one layer and a linear head cannot express a probe; None if it can."""
    spec, mix = probe.spec, probe.probe.get_params().get("mix")
    if checkpoint.facts is None:
        return f"{spec.model} holds static vectors, not a model with blocks"
    if spec.document_context:
        return "it reads sentences together with their neighbors (`document_context`), and a model reads one text"
    if mix is not None or len(spec.layers) > 1 or spec.combine is not Combine.NONE:
        return f"{spec.feature} is made of several layers, and the target keeps one"
    if LinearMap.of(probe.probe) is None:
        return f"head {probe.probe.head} is not linear, and the target has one linear layer"
    return None


def cut_config(probe: FittedProbe, checkpoint: Checkpoint) -> Any:
    """Return the config of a model with the blocks up to the probe's layer, with its labels."""
    (n_blocks,) = probe.spec.layers
    config = build_config(checkpoint.folder, checkpoint.config)
    with checkpoint_errors(checkpoint.folder, f"transformers takes no config with {n_blocks} blocks"):
        for name, value in list(vars(config).items()):
            # Such as the types of the blocks.
            if isinstance(value, list) and len(value) == checkpoint.n_layers:
                setattr(config, name, value[:n_blocks])
        config.num_hidden_layers = n_blocks
        config.id2label = dict(enumerate(labels_of(probe)))
        config.label2id = {label: number for number, label in config.id2label.items()}
    kinds = {Task.CLASSIFY: "single_label", Task.MULTILABEL: "multi_label"}
    config.problem_type = f"{kinds[task]}_classification" if (task := probe.probe.task) in kinds else "regression"
    return config


def labels_of(probe: FittedProbe) -> list[str]:
    """Return the names of a probe's outputs: its classes, or its label for each number."""
    if probe.probe.task is not Task.REGRESS:
        return [str(label) for label in probe.probe.classes_.tolist()]
    found = LinearMap.of(probe.probe)
    n_outputs = 1 if found is None else len(found.bias)
    return [probe.label] if n_outputs == 1 else [f"{probe.label}_{number}" for number in range(n_outputs)]


def copy_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """Copy the files of a model's tokenizer as they are."""
    for name in TOKENIZER_FILES:
        if (checkpoint.folder / name).is_file():
            shutil.copyfile(checkpoint.folder / name, folder / name)


class Comparison:
    """The scores of a probe for a few texts, computed by bertfeat in float32, to compare a shipped model with.

    Attributes:
        texts: The texts.
        scores: The scores of each text, float32 (n_rows, n_outputs): a row for the text or, at the token level and for
            words by their first tokens, for each token, special ones included.
    """

    def __init__(self, probe: FittedProbe, checkpoint: Checkpoint, linear: LinearMap) -> None:
        spec = probe.spec
        level = Level.SENTENCE if spec.level is Level.SENTENCE else Level.TOKEN
        pooling = spec.pooling if level is Level.SENTENCE else None
        own = dataclasses.replace(
            spec, level=level, pooling=pooling, store_dtype="float32", compute_dtype="float32", unknown_words="null"
        )
        flow = Flow.of(own.extract_config(device="cpu"), checkpoint)
        self.texts = [text for text in _TEXTS if _fits(flow, text)]
        self.scores = [linear.scores(_vectors(flow, own, text)) for text in self.texts]

    def _difference(self, found: Sequence[Float32Array]) -> float:
        """Return the largest difference of scores, one array for each text, as a share of scores above 1."""
        pairs = list(zip(self.scores, found, strict=True))
        if any(mine.shape != theirs.shape for mine, theirs in pairs):
            return float("inf")
        largest = max(1.0, *(float(np.abs(mine).max(initial=0)) for mine in self.scores))
        return max(float(np.abs(mine - theirs).max(initial=0)) for mine, theirs in pairs) / largest

    def choose(self, ways: Iterable[Callable[[], Sequence[Float32Array]]]) -> None:
        """Stop at the first of the ways to build a model whose scores are the probe's; refuse it if none is."""
        differences = []
        for run in ways:
            differences.append(self._difference(run()))
            if differences[-1] <= _MAX_DIFFERENCE:
                return
        raise NotExpressed(
            f"the scores of the built model differ by {min(differences):.2g}, at most {_MAX_DIFFERENCE:g} is allowed"
        )


def _fits(flow: Flow, text: str) -> bool:
    return len(flow.prepare(documents_of([text])).text.windows.lengths) <= 1


def _vectors(flow: Flow, spec: FeatureSpec, text: str) -> Float32Array:
    (table,) = flow.run(documents_of([text])).values()
    return np.asarray(spec.vectors_in(table), dtype=np.float32)
