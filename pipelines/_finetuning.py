"""Fine-tuning of a model on labelled texts, pairs or words, scored as probes are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from bertfeat.display import printable
from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, codes_of, encode_labels, require_same_kind
from bertfeat.pipelines._correlations import Score, correlate
from bertfeat.pipelines._models import (
    MODEL,
    TaskModel,
    check_model_place,
    freeze,
    open_task_model,
    replace_model,
)
from bertfeat.pipelines._taskbatches import Padding, batches_of, check_ends, outputs_of
from bertfeat.pipelines._taskexamples import Examples, LabelledTexts, cut_examples, label_texts, label_words
from bertfeat.pipelines._training import TASKS, History, Settings, digest_of, train
from bertfeat.probes.scoring import score_predicted
from bertfeat.progress import reporting
from bertfeat.records import Document
from bertfeat.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class FineTuned:
    """A fine-tuned model and what it reached.

    Attributes:
        folder: The model's folder, which `--model` takes.
        history: The course of the training.
        scores: The score of each split but train.
        report: Counts and settings of the training, as JSON values.
        n_bytes: The size of the model's folder.
    """

    folder: Path
    history: History
    scores: Mapping[str, Score]
    report: Mapping[str, Any]
    n_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            **self.report,
            "training": self.history.report(),
            "scores": {name: score.to_dict() for name, score in self.scores.items()},
            "seconds": self.history.seconds,
            "n_bytes": self.n_bytes,
        }


def finetune(
    task: str,
    splits: Mapping[str, Sequence[Document]],
    label: str,
    model: str,
    settings: Settings,
    folder: Path,
    *,
    frozen: str | None = None,
    context: bool = False,
) -> FineTuned:
    """Fine-tune a model with a head of transformers, score it, and save it in the folder `model`.

    The weights of the best epoch on dev are kept, by the main score of probes: entity F1 for tags, else accuracy; for
    quantities, Spearman's correlation. Texts and pairs that are longer than a window are cut to it and counted.
    Sentences of words are cut into windows as in an extraction, and a word is labelled at its first sub-token (Devlin
    et al. 2019, section 5.3). The checkpoint stays, so that the same call gives the same result without a training:
    `discard` it when the result is written.

    Args:
        task: One of `TASKS`.
        splits: The documents of train, dev and, if there is one, test.
        label: The column with the labels, kept with each document; for `tag`, that of its words.
        model: Installed model package, folder, or hub id.
        settings: The settings of training.
        folder: Where the checkpoint and the model are written.
        frozen: Layers that keep their weights, such as `0..4`.
        context: Whether the sentences of `tag` are read with their neighbours, as with `document_context`.

    Raises:
        UserError: The model, the labels or a setting cannot be used.
        StoreError: The folder has an unfinished training with other settings.
        RunError: The loss is not finite.
    """
    target = folder / MODEL
    texts = {name: _labelled(task, documents, label, name) for name, documents in splits.items()}
    classes, codes = encode_splits(texts, label)
    opened = _open(task, model, classes, settings.seed)
    check_model_place(opened, target)
    layers = () if frozen is None else freeze(opened, frozen)
    tokenizer = Tokenizer.load(opened.checkpoint.folder, given_words=task == "tag", n_ids=opened.checkpoint.n_ids)
    examples = {
        name: cut_examples(split, opened.checkpoint, tokenizer, context=context) for name, split in texts.items()
    }
    for name, split in examples.items():
        check_ends(split, opened, name)
    report = {**_report(task, opened, texts, examples, classes, layers), "settings": asdict(settings)}
    _warn(report)
    run = _Run(opened, Padding.of(opened), settings, classes, texts, examples)
    history = run.train(codes, folder, _identity(task, opened, texts, layers, context=context))
    scores = {name: run.score(name, bootstrap=True) for name in splits if name != "train"}
    n_bytes = replace_model(opened, target)
    return FineTuned(target, history, scores, report, n_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A model, and the splits that it learns from and is scored on; quantities have no classes."""

    opened: TaskModel
    padding: Padding
    settings: Settings
    classes: Labels
    texts: Mapping[str, LabelledTexts]
    examples: Mapping[str, Examples]

    def train(self, codes: npt.NDArray[Any], folder: Path, identity: Mapping[str, Any]) -> History:
        """Train on the windows that have a label, and keep the best weights on dev."""
        examples = self.examples["train"]
        make_batch, usable = batches_of(examples, codes, self.padding)
        with reporting(None) as progress:
            return train(
                self.opened.model,
                examples.windows.lengths[usable].tolist(),
                make_batch,
                self.settings,
                folder,
                identity=identity,
                evaluate=lambda: self.score("dev", bootstrap=False).value,
                progress=progress,
            )

    def score(self, split: str, *, bootstrap: bool) -> Score:
        """Predict a split and score it."""
        texts, examples = self.texts[split], self.examples[split]
        outputs, predicted = outputs_of(self.opened.model, examples, self.padding, self.settings)
        n_without = texts.n_without_label
        if not len(self.classes):
            quantities = outputs[:, 0].astype(np.float64)
            return correlate(texts.labels, quantities, n_without_label=n_without, bootstrap=bootstrap)
        return score_predicted(
            texts.labels,
            self.classes[outputs.argmax(axis=1)],
            self.classes,
            lengths=examples.lengths,
            predicted=predicted,
            n_without_label=n_without,
            bootstrap=bootstrap,
        )


def _labelled(task: str, documents: Sequence[Document], label: str, where: str) -> LabelledTexts:
    if task == "tag":
        return label_words(documents, label, where)
    has_pair = {document.text_pair is not None for document in documents}
    if task == "pair" and has_pair != {True}:
        some = "some of " if True in has_pair else ""
        raise UserError(f"{where}: {some}its rows have one text; --task pair needs --text-pair-column")
    if task == "classify" and has_pair == {True}:
        raise UserError(f"{where}: its rows have two texts; use --task pair, or drop --text-pair-column")
    return label_texts(documents, label, where, quantities=task == "regress")


def encode_splits(texts: Mapping[str, LabelledTexts], label: str) -> tuple[Labels, npt.NDArray[Any]]:
    """Return the classes, none for quantities, and the targets of train.

    Raises:
        UserError: Train has one class alone or all its quantities are equal, or labels of splits differ in kind.
    """
    labels = texts["train"].labels
    if labels.dtype.kind == "f":
        for name, split in texts.items():
            if len(np.unique(split.labels)) == 1:
                raise UserError(f"{name}: all values of column {label!r} are {split.labels[0]:g}; they must differ")
        return np.zeros(0, np.int64), labels.astype(np.float32)
    classes, codes = encode_labels(labels, what=f"train: column {label!r}")
    for name, split in texts.items():
        require_same_kind(split.labels, name, classes, "train")
    return classes, codes


def _open(task: str, model: str, classes: Labels, seed: int) -> TaskModel:
    names = dict(enumerate(map(str, classes.tolist())))
    if not names:
        return open_task_model(model, TASKS[task], seed=seed, num_labels=1, problem_type="regression")
    config: dict[str, Any] = {"id2label": names, "label2id": {name: place for place, name in names.items()}}
    if task != "tag":
        config["problem_type"] = "single_label_classification"
    return open_task_model(model, TASKS[task], seed=seed, num_labels=len(names), **config)


def _identity(
    task: str, opened: TaskModel, texts: Mapping[str, LabelledTexts], layers: Sequence[int], *, context: bool
) -> dict[str, Any]:
    """Return what decides the weights, beside the settings of training."""
    learned = [
        [[(document.text, document.text_pair, document.words) for document in split.documents], split.labels.tolist()]
        for split in (texts["train"], texts["dev"])
    ]
    return {
        "task": task,
        "model": opened.checkpoint.weights_sha256,
        "tokenizer": opened.checkpoint.tokenizer_sha256,
        "frozen": list(layers),
        "document_context": context,
        "data": digest_of(learned),
    }


def _report(
    task: str,
    opened: TaskModel,
    texts: Mapping[str, LabelledTexts],
    examples: Mapping[str, Examples],
    classes: Labels,
    layers: Sequence[int],
) -> dict[str, Any]:
    unseen = {}
    for name, split in texts.items():
        if len(classes):
            names, counts = np.unique(split.labels[codes_of(split.labels, classes) < 0], return_counts=True)
            unseen[name] = dict(zip(map(str, names.tolist()), counts.tolist(), strict=True))
    return {
        "task": task,
        "model": opened.checkpoint.name,
        "weights_sha256": opened.checkpoint.weights_sha256,
        "n_classes": len(classes) or None,
        "n_rows": {name: len(split.labels) for name, split in texts.items()},
        "n_windows": {name: len(split.windows) for name, split in examples.items()},
        "n_without_label": {name: split.n_without_label for name, split in texts.items()},
        "n_cut": {name: split.n_cut for name, split in examples.items()},
        "unseen_labels": {name: labels for name, labels in unseen.items() if labels},
        "frozen_layers": list(layers),
    }


def _warn(report: Mapping[str, Any]) -> None:
    """Name what is left out or cannot be learned, one line each."""
    for split, n_cut in report["n_cut"].items():
        if n_cut:
            click.echo(f"{split}: {n_cut} of {report['n_rows'][split]} texts are cut to the model's window", err=True)
    for split, labels in report["unseen_labels"].items():
        named = ", ".join(f"{printable(name)} ({count} rows)" for name, count in labels.items())
        click.echo(f"{split}: labels that train does not have, counted as errors: {named}", err=True)
