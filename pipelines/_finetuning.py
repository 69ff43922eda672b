"""Fine-tuning of a model on labelled texts, pairs or words, and linear heads on features, scored as probes are."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import polars as pl
import transformers

from bertfeat.choices import Task
from bertfeat.display import printable
from bertfeat.errors import InputError, UserError
from bertfeat.heads.base import Labels, check_labels, require_same_kind
from bertfeat.heads.registry import make_head
from bertfeat.heads.targets import encode
from bertfeat.pipelines import _training
from bertfeat.pipelines._training import NO_LABEL, TASKS, History, Settings, TaskModel
from bertfeat.probes.scoring import ProbeScore, score_predicted
from bertfeat.probes.targets import is_given
from bertfeat.records import BoolArray, Document

# The strengths of the L2 penalty that are tried on dev.
_C = (0.001, 0.01, 0.1, 1.0, 10.0)
_ALPHA = (1.0, 10.0, 100.0, 1000.0, 10000.0)


def score_outputs(truth: Labels, guesses: Labels, classes: Labels, **how: Any) -> ProbeScore:
    """Score predictions of rows; without classes they are quantities, whose main score is Spearman's correlation."""
    found = score_predicted(truth, guesses, classes, task=Task.CLASSIFY if len(classes) else Task.REGRESS, **how)
    if len(classes):
        return found
    # A correlation with equal numbers is undefined, which counts as 0.
    scores = {"spearman": 0.0, **found.scores.values}
    return replace(found, scores=replace(found.scores, scores=scores))


def fit_and_score(vectors: Mapping[str, Any], labels: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fit a linear head on train, with the best penalty on dev, for classes or float64; return it and the scores."""
    probe: Any
    if labels["train"].dtype.kind == "f":
        penalty, probe = "alpha", make_head("ridge", Task.REGRESS, alpha=list(_ALPHA), metric="spearman")
    else:
        penalty, probe = "C", make_head("logreg", C=list(_C))
    probe.fit(vectors["train"], labels["train"], dev=(vectors["dev"], labels["dev"]))
    scores = {
        split: score_outputs(labels[split], probe.predict(vectors[split]), probe.classes_, bootstrap=True)
        for split in vectors
        if split != "train"
    }
    return {"head": probe.head, penalty: probe.fit_report()[penalty]}, scores


@dataclass(frozen=True, slots=True)
class FineTuned:
    """The course of a fine-tuning, the scores of each split but train, and everything as JSON values."""

    history: History
    scores: Mapping[str, ProbeScore]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class LabelledTexts:
    """The labelled rows of a split, documents or their words: `labels` (n_rows,) are classes, or float64 quantities."""

    documents: Sequence[Document]
    labels: Labels
    # (n_words,); None for whole texts.
    is_labelled: BoolArray | None
    n_without_label: int


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """What a model reads of a split, which rows (n_rows,) are in it, and how many texts are cut."""

    texts: LabelledTexts
    inputs: Sequence[dict[str, Any]]
    is_read: BoolArray
    n_cut: int

    def outputs(self, predicted: Any) -> Any:
        """Return the outputs of the head for the rows that are read, (n_read, n_outputs)."""
        is_tag = self.texts.is_labelled is not None
        return predicted.predictions[predicted.label_ids != NO_LABEL] if is_tag else predicted.predictions

    def score(self, predicted: Any, classes: Labels, *, bootstrap: bool) -> ProbeScore:
        """Score predictions; quantities have no classes."""
        texts, outputs, lengths = self.texts, self.outputs(predicted), None
        if len(classes):
            guesses = np.full(len(texts.labels), classes[0], classes.dtype)
            guesses[self.is_read] = classes[outputs.argmax(axis=1)]
        else:
            guesses = outputs[:, 0].astype(np.float64)
        if texts.is_labelled is not None:
            n_words = [len(document.words or ()) for document in texts.documents]
            lengths = np.unique(np.repeat(np.arange(len(n_words)), n_words)[texts.is_labelled], return_counts=True)[1]
        return score_outputs(
            texts.labels,
            guesses,
            classes,
            lengths=lengths,
            predicted=self.is_read,
            n_without_label=texts.n_without_label,
            bootstrap=bootstrap,
        )


def finetune(
    task: str,
    splits: Mapping[str, Sequence[Document]],
    label: str,
    model: str,
    settings: Settings,
    output: Path,
    place: str = "model",
    *,
    frozen: str | None = None,
    context: bool = False,
) -> FineTuned:
    """Fine-tune a model, score its best epoch on dev on all splits but train, and save it in a place in the output."""
    texts = {name: find_labels(task, documents, label, name) for name, documents in splits.items()}
    classes, codes = encode_splits(texts, label)
    opened = _training.open_task_model(model, TASKS[task], seed=settings.seed, **_head_config(task, classes))
    _training.check_model_place(opened, output / place)
    layers = () if frozen is None else _training.freeze(opened, frozen)
    examples = {
        name: make_examples(split, opened, codes if name == "train" else None, context=context)
        for name, split in texts.items()
    }
    for name, split in examples.items():
        if split.n_cut:
            n_rows = len(split.texts.labels)
            click.echo(f"{name}: {split.n_cut} of {n_rows} texts are cut to the model's window", err=True)
    pads = transformers.DataCollatorForTokenClassification if task == "tag" else transformers.DataCollatorWithPadding
    read = {name: [list(one.values()) for one in examples[name].inputs] for name in ("train", "dev")}
    trainer = _training.make_trainer(
        opened.model,
        [one for one in examples["train"].inputs if np.max(one["labels"]) != NO_LABEL],
        settings,
        output,
        collator=pads(opened.tokenizer),
        made_of=[opened.checkpoint.weights_sha256, layers, read],
        dev=examples["dev"].inputs,
        score=lambda predicted: examples["dev"].score(predicted, classes, bootstrap=False).value,
    )
    history = _training.train(trainer)
    scores = {}
    for name, split in examples.items():
        if name == "train":
            continue
        predicted = trainer.predict(split.inputs)
        scores[name] = split.score(predicted, classes, bootstrap=True)
        guessed = np.unique(split.outputs(predicted).argmax(axis=1))
        if len(classes) and len(guessed) == 1:
            click.echo(
                f"{name}: the trained model predicts {printable(str(classes[guessed[0]]))} alone; raise --epochs "
                f"({settings.epochs}) or --learning-rate ({history.learning_rate:g}), or use more rows",
                err=True,
            )
    values = {
        "task": task,
        "model": opened.checkpoint.name,
        "weights_sha256": opened.checkpoint.weights_sha256,
        "n_classes": len(classes) or None,
        "n_rows": {name: len(split.labels) for name, split in texts.items()},
        "n_without_label": {name: split.n_without_label for name, split in texts.items()},
        "frozen_layers": list(layers),
        "settings": asdict(settings),
        "training": asdict(history),
        "scores": {name: score.to_dict() for name, score in scores.items()},
        "seconds": history.seconds,
        "n_bytes": _training.replace_model(opened, output / place),
    }
    return FineTuned(history, scores, values)


def find_labels(task: str, documents: Sequence[Document], label: str, where: str) -> LabelledTexts:
    """Find the labels of texts or words; those without one are left out."""
    is_tag, has_pair = task == "tag", {document.text_pair is not None for document in documents}
    if task == "pair" and has_pair != {True}:
        raise UserError(f"{where}: its rows have one text; --task pair needs --text-pair-column, without nulls")
    if task == "classify" and has_pair == {True}:
        raise UserError(f"{where}: its rows have two texts; use --task pair, or drop --text-pair-column")
    if is_tag and any(document.words is None for document in documents):
        raise UserError(f"{where}: its rows are texts; --task tag takes words with labels, such as CoNLL files")
    if is_tag:
        values = pl.Series([tag for document in documents for tag in document.annotations[label]], dtype=pl.String)
    else:
        values = pl.Series([document.kept.get(label) for document in documents], strict=False)
    given = is_given(values)
    if not given.any():
        raise UserError(f"{where}: none has a value in column {label!r}; name the column of the labels")
    known = values.filter(given)
    kept = documents if is_tag else [documents[row] for row in given.arg_true()]
    if task == "regress":
        labels = known.cast(pl.Float64, strict=False).to_numpy()
        for row in np.flatnonzero(~np.isfinite(labels)).tolist():
            reason = f"{label} {known[row]!r:.60} is not a number; --task regress takes numbers"
            raise InputError(reason, path=kept[row].path, row=kept[row].row)
    else:
        labels = check_labels(known.to_numpy(), what=f"{where}: column {label!r}")
    return LabelledTexts(kept, labels, given.to_numpy() if is_tag else None, len(values) - len(known))


def encode_splits(texts: Mapping[str, LabelledTexts], label: str) -> tuple[Labels, npt.NDArray[Any]]:
    """Return the classes, none for quantities, and the targets of train."""
    labels = texts["train"].labels
    if labels.dtype.kind == "f":
        return np.zeros(0, np.int64), labels
    classes, codes = encode(Task.CLASSIFY, labels, what=f"train: column {label!r}")
    for name, split in texts.items():
        require_same_kind(split.labels, name, classes, "train")
    return classes, codes


def _head_config(task: str, classes: Labels) -> dict[str, Any]:
    if task == "regress":
        return {"num_labels": 1, "problem_type": "regression"}
    names = [str(name) for name in classes.tolist()]
    problem = {} if task == "tag" else {"problem_type": "single_label_classification"}
    return {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}, **problem}


def make_examples(texts: LabelledTexts, opened: TaskModel, targets: Any, *, context: bool = False) -> Examples:
    """Tokenize a split: whole texts are cut to one window, words into several; `targets` (n_rows,) are learned."""
    tokenizer, max_length = opened.tokenizer, opened.checkpoint.max_length
    if targets is None:
        # Predictions are looked up where there is a label.
        targets = np.zeros(len(texts.labels), texts.labels.dtype if texts.labels.dtype.kind == "f" else np.int64)
    if texts.is_labelled is None:
        pairs = [document.text_pair for document in texts.documents]
        encoded = tokenizer(
            [document.text for document in texts.documents],
            None if None in pairs else pairs,
            truncation=True,
            max_length=max_length,
        )
        n_cut = sum(bool(one.overflowing) for one in encoded.encodings)
        encoded["labels"] = targets.tolist()
        return Examples(texts, _training.rows_of(encoded), np.ones(len(targets), np.bool_), n_cut)
    groups = itertools.groupby(texts.documents, lambda document: document.group if context else document.index)
    sentences = [[word for document in group for word in document.words or ()] for _, group in groups]
    encoded = tokenizer(
        sentences,
        is_split_into_words=True,
        truncation=True,
        max_length=max_length,
        stride=max_length // 4,
        return_overflowing_tokens=True,
    )
    of_words = np.full(len(texts.is_labelled), NO_LABEL)
    of_words[texts.is_labelled] = targets
    labels = [[NO_LABEL] * len(ids) for ids in encoded["input_ids"]]
    is_read = np.zeros(len(of_words), np.bool_)
    for word, (_, window, place) in _places(encoded, sentences).items():
        labels[window][place] = int(of_words[word])
        is_read[word] = True
    encoded["labels"] = labels
    del encoded["overflow_to_sample_mapping"]
    return Examples(texts, _training.rows_of(encoded), is_read[texts.is_labelled], 0)


def _places(encoded: Any, sentences: Sequence[Sequence[str]]) -> dict[int, tuple[int, int, int]]:
    """Return where each word begins: the tokens around it, the window in which they are most, and the place there."""
    starts = [0, *itertools.accumulate(map(len, sentences))]
    found: dict[int, tuple[int, int, int]] = {}
    for window, sentence in enumerate(encoded["overflow_to_sample_mapping"]):
        words = encoded.word_ids(window)
        for place, word in enumerate(words):
            if word is not None and word not in words[:place][-1:]:
                context = min(place, len(words) - 1 - place)
                if context > found.get(starts[sentence] + word, (-1, 0, 0))[0]:
                    found[starts[sentence] + word] = context, window, place
    return found
