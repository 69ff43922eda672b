"""Base of all probes, with the checks of their parameters, which run in `fit`; classes of labels and their order."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from bertfeat.choices import Task
from bertfeat.errors import BertfeatWarning, UserError, require
from bertfeat.records import IntArray

try:
    from sklearn.base import BaseEstimator
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.utils import ClassifierTags, RegressorTags
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError:
    require("sklearn")
    raise

Labels = npt.NDArray[Any]  # strings, integers or booleans
#: The scores that can judge fits of each task, the main one first; more is better.
DEV_METRICS: Mapping[str, tuple[str, ...]] = {
    Task.CLASSIFY: ("accuracy", "macro_f1", "entity_f1"),
    Task.REGRESS: ("r2", "pearson", "spearman"),
    Task.MULTILABEL: ("macro_f1", "micro_f1", "subset_accuracy"),
}

# Checks of parameters by their names.
_Rule = tuple[type, Callable[[Any], bool], str]
_POSITIVE: _Rule = (Real, lambda number: 0 < number < math.inf, "a number above 0")
_COUNT: _Rule = (Integral, lambda number: number >= 1, "a whole number of 1 or more")
_COUNTS = ("k", "hidden_size", "n_layers", "batch_size", "batch_tokens", "max_epochs", "max_iter", "patience")
_OPTIONAL_COUNTS = ("mix", "n_components")
_NUMBERS: dict[str, _Rule] = {
    **dict.fromkeys(("C", "alpha", "lr", "tol"), _POSITIVE),
    **dict.fromkeys((*_COUNTS, *_OPTIONAL_COUNTS), _COUNT),
    "weight_decay": (Real, lambda number: 0 <= number < math.inf, "a number of 0 or more"),
    "dropout": (Real, lambda number: 0 <= number < 1, "a number of 0 or more and below 1"),
    "validation_fraction": (Real, lambda number: 0 < number < 1, "a number between 0 and 1"),
    # The seeds that torch takes.
    "seed": (Integral, lambda number: 0 <= number < 1 << 63, "a whole number of 0 or more and below 2**63"),
}
_FLAGS = ("standardize", "early_stopping")


class Probe(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of all probes: a scikit-learn estimator whose fitted state is arrays and JSON, never a pickle."""

    #: The name on the command line.
    head: ClassVar[str]
    #: What it learns: a parameter of heads that learn several tasks.
    task: str = Task.CLASSIFY
    #: Whether it learns from sequences (`Sequences`, or a list of arrays) and not from rows.
    is_tagger: ClassVar[bool] = False
    #: Whether another seed gives another result.
    is_random: ClassVar[bool] = False
    #: The parameter that may be a list of values to choose from on dev, if there is one.
    penalty_name: ClassVar[str | None] = None
    #: The values of each parameter that is a name; those of the `metric` that chooses a penalty follow from the task.
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    classes_: Labels  # sorted
    report_: dict[str, Any]  # the results of fitting as JSON values

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn asks an estimator: whether it is a classifier or a regressor."""
        tags = super().__sklearn_tags__()
        if not self.is_tagger:
            tags.estimator_type = "regressor" if self.task == Task.REGRESS else "classifier"
            tags.classifier_tags, tags.regressor_tags = ClassifierTags(), RegressorTags()
            tags.target_tags.required = True
        return tags

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy on vectors and labels, or R2 of numbers, as scikit-learn's estimators do."""
        measure = r2_score if self.task == Task.REGRESS else accuracy_score
        return float(measure(y, self.predict(X)))

    @property
    def settings(self) -> dict[str, Any]:
        """The parameters, without the task."""
        return {name: value for name, value in self.get_params(deep=False).items() if name != "task"}

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the fitted arrays by name; with the parameters, `classes_` and `report_` they are the whole state."""
        raise NotImplementedError

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Restore fitted arrays as `get_state` returns them; `classes_` must be set."""
        raise NotImplementedError

    def fit_report(self) -> dict[str, Any]:
        """Return the results of fitting as JSON values: the score on dev, the chosen C, epochs, weights of a mix."""
        check_is_fitted(self, "report_")
        return dict(self.report_)

    def _check_parameters(self, dev: object) -> None:
        """Check the parameters, before anything is read; warn of each that is set and has no effect."""
        has_dev, params = dev is not None, self.get_params(deep=False)
        if has_dev and (not isinstance(dev, tuple | list) or len(dev) != 2):
            raise UserError(f"dev is a {type(dev).__name__}; pass a pair of vectors and labels, dev=(X_dev, y_dev)")
        choices = self.choices
        if self.penalty_name is not None:
            penalties(self.penalty_name, params.pop(self.penalty_name), has_dev=has_dev)
            of_task = [name for name in DEV_METRICS.get(self.task, ()) if self.is_tagger or name != "entity_f1"]
            choices = {"metric": ("auto", *of_task, *(["loss"] if self.is_random else [])), **choices}
        for name, value in params.items():
            if name in choices and (not isinstance(value, str) or value not in choices[name]):
                raise UserError(f"{name} {value!r} must be one of {', '.join(choices[name])}")
            if name in _FLAGS and not isinstance(value, bool | np.bool_):
                raise UserError(f"{name} {value!r} is neither True nor False")
            if name in _NUMBERS and not (name in _OPTIONAL_COUNTS and value is None):
                _check_number(name, value)
        for name, reason in self._ignored(has_dev=has_dev):
            value = getattr(self, name)
            if value != getattr(type(self), name):
                text = f"`{name}={value!r}` has no effect for head {self.head} {reason}"
                warnings.warn(BertfeatWarning(text), stacklevel=3)

    def _ignored(self, *, has_dev: bool) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """Yield the parameters that have no effect, with or without dev, and why."""
        if self.task == Task.REGRESS and hasattr(self, "class_weight"):
            yield "class_weight", "of numbers"


def check_labels(y: npt.ArrayLike, *, what: str = "y") -> Labels:
    """Return labels as an array (n_rows,) of strings, integers or booleans, all of one kind and none null."""
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise UserError(f"{what} has shape {labels.shape}; pass one label per row")
    if labels.dtype.kind == "U" and not isinstance(y, np.ndarray):
        # NumPy would turn every value of a list with text into text.
        labels = np.asarray(list(y), dtype=object)  # type: ignore[arg-type]
    if labels.dtype.kind == "O":
        values = [value.item() if isinstance(value, np.generic) else value for value in labels.tolist()]
        kinds = {bool if isinstance(v, bool) else int if isinstance(v, int) else type(v) for v in values}
        if type(None) in kinds:
            raise UserError(f"{what}[{values.index(None)}] is null; leave out rows without a label")
        if len(kinds) > 1 or not kinds <= {str, int, bool}:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise UserError(f"{what} holds values of type {names}; labels are strings or integers, all of one kind")
        labels = np.asarray(values)
    if labels.dtype.kind == "f":
        is_odd = ~np.isfinite(labels) | (labels != np.round(labels))
        if is_odd.any():
            bad = labels[is_odd].tolist()[0]
            raise UserError(f"{what} holds {bad!r}; labels are classes, not quantities: strings or integers")
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "Uiub":
        raise UserError(f"{what} holds {labels.dtype}; labels are strings or integers")
    return labels


def are_same_kind(labels: Labels, others: Labels) -> bool:
    """Return whether both or neither hold text: 3 and "3" are not the same label."""
    return (labels.dtype.kind == "U") == (others.dtype.kind == "U")


def require_same_kind(labels: Labels, source: str, others: Labels, other_source: str) -> None:
    """Raise a UserError if only one of two sources of labels has text, so that no labels can be equal."""
    if not are_same_kind(labels, others):
        raise UserError(
            f"{source} holds labels such as {labels.tolist()[0]!r}, {other_source} such as {others.tolist()[0]!r}; "
            "give the label column the same type in all data"
        )


def codes_of(labels: Labels, classes: Labels) -> IntArray:
    """Return each label's index among sorted classes, and -1 for a label that is not among them."""
    if not are_same_kind(labels, classes):
        return np.full(len(labels), -1, dtype=np.int64)
    places = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[places] == labels, places, -1).astype(np.int64)


def is_list(value: object) -> bool:
    """Return whether a parameter is a list of values, and not one value."""
    return isinstance(value, list | tuple | np.ndarray)


def penalties(name: str, given: Any, *, has_dev: bool) -> list[float]:
    """Return the values of a penalty to try: one number, or each number of a list once, ascending."""
    if is_list(given) and not has_dev:
        raise UserError(f"{name} is a list and there is no dev split to choose from it; pass dev, or one number")
    values = list(given) if is_list(given) else [given]
    if not values:
        raise UserError(f"{name} is an empty list; give one number or more")
    for value in values:
        _check_number(name, value)
    return sorted({float(value) for value in values})


def _check_number(name: str, value: Any) -> None:
    kind, fits, what = _NUMBERS[name]
    if isinstance(value, bool | np.bool_) or not isinstance(value, kind) or not fits(value):
        raise UserError(f"{name} {value!r} is not {what}")
