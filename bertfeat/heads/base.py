"""Base of all probes: classes and their order, checks of labels, and a state of arrays and JSON that can be saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError, require
from bertfeat.records import Float64Array, IntArray

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.class_weight import compute_class_weight
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError:
    require("sklearn")
    raise

Labels = npt.NDArray[Any]  # strings, integers or booleans


class Probe(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of all probes: a scikit-learn estimator whose fitted state is arrays and JSON, never a pickle.

    A subclass names its `head`, and sets `classes_` and `_report` in `fit`.
    """

    #: The name on the command line.
    head: ClassVar[str]
    #: Whether it learns from sequences (`Sequences`, or a list of arrays) and not from rows.
    is_tagger: ClassVar[bool] = False
    #: Whether `predict_proba` gives probabilities.
    has_probabilities: ClassVar[bool] = True
    #: Whether another seed gives another result.
    is_random: ClassVar[bool] = False
    #: Whether it can weigh layers in a scalar mix.
    has_mix: ClassVar[bool] = False
    #: The parameter that may be a list of values to choose from on dev, if there is one.
    penalty_name: ClassVar[str | None] = None
    #: Whether vectors may come as a stream, larger than memory.
    streams: ClassVar[bool] = True

    classes_: Labels
    _report: dict[str, Any]

    def get_state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return the fitted state: arrays by name, and JSON values by name.

        `classes_` and the parameters are not in it; `probefolder` keeps them.
        """
        raise NotImplementedError

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> Self:
        """Restore a fitted state as `get_state` returns it; `classes_` must be set."""
        raise NotImplementedError

    @property
    def n_features_in_(self) -> int:
        """Width of the vectors that it was fitted on."""
        raise NotImplementedError

    def fit_report(self) -> dict[str, Any]:
        """Return the results of fitting as JSON values: the score on dev, the chosen C, epochs, weights of a mix."""
        check_is_fitted(self, "_report")
        return dict(self._report)


def encode_labels(y: npt.ArrayLike, *, what: str = "y") -> tuple[Labels, IntArray]:
    """Return the classes, sorted, and each label's index among them.

    Raises:
        UserError: A label is null or a fraction, or there are fewer than two classes.
    """
    labels = check_labels(y, what=what)
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) == 0:
        raise UserError(f"{what} holds no labels; there is nothing to learn from")
    if len(classes) == 1:
        raise UserError(f"{what} holds one class alone, {classes.tolist()[0]!r}; a classifier needs two or more")
    return classes, codes.astype(np.int64)


def check_labels(y: npt.ArrayLike, *, what: str = "y") -> Labels:
    """Return labels as an array (n_rows,) of strings, integers or booleans.

    Raises:
        UserError: A label is null, or a number with a fraction, or the labels are of several kinds.
    """
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise UserError(f"{what} has shape {labels.shape}; pass one label per row")
    if labels.dtype.kind == "U" and not isinstance(y, np.ndarray):
        # NumPy would turn every value of a list with text into text.
        labels = np.asarray(list(y), dtype=object)  # type: ignore[arg-type]
    if labels.dtype.kind == "O":
        labels = np.array([v.item() if isinstance(v, np.generic) else v for v in labels.tolist()], dtype=object)
        kinds = {bool if isinstance(v, bool) else int if isinstance(v, int) else type(v) for v in labels.tolist()}
        if type(None) in kinds:
            raise UserError(f"{what}[{labels.tolist().index(None)}] is null; leave out rows without a label")
        if len(kinds) > 1 or not kinds <= {str, int, bool}:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise UserError(f"{what} holds values of type {names}; labels are strings or integers, all of one kind")
        labels = np.asarray(labels.tolist())
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
    """Check that labels of two sources can be equal.

    Raises:
        UserError: Only one of the sources has text.
    """
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


def class_weights(codes: IntArray, n_classes: int, how: object) -> Float64Array:
    """Return the weight of each class, (n_classes,).

    Args:
        codes: Indices of classes, (n_rows,); each class occurs.
        n_classes: The number of classes.
        how: None for 1 each, or "balanced": n_rows / (n_classes * rows of the class).

    Raises:
        UserError: `how` is neither of them.
    """
    if how not in (None, "balanced"):
        raise UserError(f"class_weight {how!r} is neither None nor 'balanced'")
    return np.asarray(compute_class_weight(how, classes=np.arange(n_classes), y=codes), dtype=np.float64)
