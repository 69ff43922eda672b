"""Targets of heads: classes, numbers, or several labels per row, and what the scores of rows say of them."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.class_weight import compute_class_weight

from bertfeat.choices import Task
from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, check_labels
from bertfeat.records import BoolArray, Float64Array

# Of each row its class as an index, int64 (n_rows,); numbers, float64 (n_rows, n_targets); or which classes it has,
# bool (n_rows, n_classes).
Targets = npt.NDArray[Any]


def check_truth(task: str, y: Any, what: str = "y") -> Labels:
    """Return labels as heads and scores take them, a UserError for others.

    Classes are strings, integers or booleans, (n_rows,). Numbers are finite float64, (n_rows,) or (n_rows, n_targets).
    Several labels are a list per row, as an object array (n_rows,) of tuples; or a matrix of 0 and 1 whose classes are
    the numbers of its columns.
    """
    if task == Task.CLASSIFY:
        return check_labels(y, what=what)
    if task == Task.REGRESS:
        try:
            numbers = np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError):
            raise UserError(f"{what} holds {list(y)[:3]}; give one number per row, or as many in each row") from None
        if numbers.ndim not in (1, 2) or not np.isfinite(numbers).all():
            raise UserError(f"{what} has shape {numbers.shape}, or NaN or infinity; give finite numbers per row")
        return numbers
    if isinstance(y, np.ndarray) and y.ndim == 2:
        y = [np.flatnonzero(row).tolist() for row in y]
    found = np.empty(len(y), dtype=object)
    for row, labels in enumerate(y):
        if not isinstance(labels, list | tuple | set | frozenset | np.ndarray):
            raise UserError(f"{what}[{row}] is {labels!r}, not a list of labels")
        found[row] = tuple(labels)
    check_labels(list(chain.from_iterable(found)), what=what)
    return found


def encode(task: str, y: Any, *, what: str = "y") -> tuple[Labels, Targets]:
    """Return the classes, sorted (none for numbers), and what a head learns of each row; see `Targets`."""
    truth = check_truth(task, y, what)
    if not len(truth):
        raise UserError(f"{what} holds no labels; there is nothing to learn from")
    if task == Task.CLASSIFY:
        classes, codes = np.unique(truth, return_inverse=True)
        if len(classes) == 1:
            raise UserError(f"{what} holds one class alone, {classes.tolist()[0]!r}; a classifier needs two or more")
        return classes, codes.astype(np.int64)
    if task == Task.REGRESS:
        return np.empty(0), truth.reshape(len(truth), -1)
    flat = list(chain.from_iterable(truth))
    if not flat:
        raise UserError(f"{what} holds empty lists alone; there is nothing to learn from")
    classes = np.unique(check_labels(flat, what=what))
    return classes, indicators(truth, classes)


def indicators(truth: Labels, classes: Labels) -> BoolArray:
    """Return which of the classes each row has, bool (n_rows, n_classes); other labels are left out."""
    place = {label: number for number, label in enumerate(classes.tolist())}
    found = np.zeros((len(truth), len(classes)), dtype=np.bool_)
    for row, labels in enumerate(truth):
        found[row, [place[label] for label in labels if label in place]] = True
    return found


def weights_of(targets: Targets, n_classes: int, how: object) -> Float64Array:
    """Return the weight of each class, (n_classes,); of several labels those without and with it, (n_classes, 2).

    None is 1 each, "balanced" n_rows / (n_classes * its rows).
    """
    if targets.dtype == np.float64:
        return np.ones(0)
    if how not in (None, "balanced"):
        raise UserError(f"class_weight {how!r} is neither None nor 'balanced'")
    if targets.dtype == np.bool_:
        counts = np.stack([(~targets).sum(axis=0), targets.sum(axis=0)], axis=1)
        return np.ones(counts.shape) if how is None else len(targets) / (2 * np.maximum(counts, 1))
    return np.asarray(compute_class_weight(how, classes=np.arange(n_classes), y=targets), dtype=np.float64)


def decide(task: str, scores: npt.NDArray[Any], classes: Labels) -> npt.NDArray[Any]:
    """Return what the scores of rows, (n_rows, n_outputs), or (n_rows,) of two classes, say: see `Probe.predict`."""
    if task == Task.MULTILABEL:
        return scores > 0
    if task == Task.REGRESS:
        numbers = scores.astype(np.float64)
        return numbers[:, 0] if numbers.shape[1] == 1 else numbers
    return np.asarray(classes[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)])
