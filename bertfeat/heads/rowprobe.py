"""What all probes of rows share: checks of what they are fitted on, a walk over chunks, and checks of a saved state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score, f1_score
from sklearn.utils.validation import check_is_fitted

from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, Probe, check_labels, encode_labels
from bertfeat.heads.hyperparameters import flag
from bertfeat.heads.matrices import Matrix, as_matrix, chunks_of
from bertfeat.heads.scaling import Scaling, fit_scaling
from bertfeat.records import IntArray

#: What a list of values can be judged by on a dev split.
METRICS = ("auto", "accuracy", "macro_f1")


class RowProbe(ClassifierMixin, Probe):  # type: ignore[misc]  # scikit-learn has no types
    """Base of the probes that label rows one by one, with the vectors standardised first.

    A subclass sets `classes_`, `scaling_` and its own arrays in `fit`, names these in `_shapes`, and says what each row
    scores.
    """

    standardize: bool
    scaling_: Scaling
    _report: dict[str, Any]

    @property
    def n_features_in_(self) -> int:
        """Width of the vectors that it was fitted on."""
        if not hasattr(self, "scaling_"):
            raise AttributeError(f"{type(self).__name__} is not fitted, so it has no n_features_in_")
        return len(self.scaling_.mean)

    def fit_report(self) -> dict[str, Any]:
        """Return what fitting found out: the score on dev, if there was one."""
        check_is_fitted(self, "scaling_")
        return dict(self._report)

    def predict(self, X: object) -> Labels:  # noqa: N803
        """Return the class of each row, (n_rows,), of the labels' own type.

        Args:
            X: Vectors (n_rows, dim), in memory or as a stream.

        Raises:
            UserError: X has another width than it was fitted on, or a vector holds NaN or infinity.
        """
        codes = self._walk(X, lambda vectors: _best(self._scores(vectors)), np.int64)
        return np.asarray(self.classes_[codes])

    def get_state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return the fitted state: arrays by name, and JSON values by name."""
        arrays = {name: getattr(self, f"{name}_") for name in self._shapes(None)}
        return arrays | {"mean": self.scaling_.mean, "scale": self.scaling_.scale}, {"report": self._report}

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> Self:
        """Take over a fitted state as `get_state` returns it; `classes_` must stand.

        Raises:
            UserError: Something is missing or has the wrong shape.
        """
        self._check_parameters()
        first = next(iter(self._shapes(None)))
        # Without the first array, `take_arrays` refuses the others whatever the width.
        dim = arrays[first].shape[-1] if first in arrays and arrays[first].ndim else None
        checked = take_arrays(arrays, {**self._shapes(dim), "mean": (dim,), "scale": (dim,)})
        self._check_state(checked)
        self._report = take_report(values)
        self.scaling_ = take_scaling(checked)
        for name in self._shapes(None):
            setattr(self, f"{name}_", checked[name])
        return self

    def _shapes(self, dim: int | None) -> dict[str, tuple[int | None, ...]]:
        """Return the shapes of the fitted arrays by name, without the underscore, None where any length will do."""
        raise NotImplementedError

    def _check_parameters(self) -> None:
        """Check the parameters.

        Raises:
            UserError: One has a value that cannot be used.
        """
        raise NotImplementedError

    def _check_state(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Check arrays of a saved state beyond their shapes: they are float32.

        Raises:
            UserError: One is of another type.
        """
        for name in self._shapes(None):
            if arrays[name].dtype != np.float32:
                raise UserError(f"the saved array {name} is {arrays[name].dtype}, not float32")

    def _scores(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Return the scores of rows, (n_rows, n_classes), or (n_rows,) of two classes.

        Args:
            vectors: float32 (n_rows, dim), not standardised yet.
        """
        raise NotImplementedError

    def _walk(
        self,
        X: object,  # noqa: N803
        per_chunk: Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]],
        dtype: npt.DTypeLike,
    ) -> npt.NDArray[Any]:
        """Return what a function gives for each chunk of rows, end to end."""
        check_is_fitted(self, "scaling_")
        matrix = as_matrix(X)
        check_width(matrix, self.n_features_in_, "X")
        pieces = [per_chunk(vectors).astype(dtype, copy=False) for _, vectors in chunks_of(matrix)]
        if not pieces:
            return per_chunk(np.empty((0, self.n_features_in_), np.float32)).astype(dtype, copy=False)
        return np.concatenate(pieces)

    def _fit_scaling(self, X: Matrix) -> Scaling:  # noqa: N803
        return fit_scaling(X) if flag("standardize", self.standardize) else Scaling.identity(X.shape[1])


def _best(scores: npt.NDArray[Any]) -> IntArray:
    """Return the index of the best class of each row; the first one of equals."""
    return (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRows:
    """What to learn from: vectors `X` (n_rows, dim), sorted `classes`, and `codes`, each row's class as an index."""

    X: Matrix
    classes: Labels
    codes: IntArray


def check_training(X: object, y: npt.ArrayLike) -> TrainingRows:  # noqa: N803
    """Return vectors and labels as what to learn from.

    Raises:
        UserError: Vectors and labels do not fit together, or there is nothing to learn from them.
    """
    matrix = as_matrix(X)
    if matrix.shape[1] == 0:
        raise UserError(f"X has shape {tuple(matrix.shape)}; its vectors have no dimensions")
    classes, codes = encode_labels(y)
    check_lengths(matrix, codes, "X", "y")
    return TrainingRows(matrix, classes, codes)


def check_dev(dev: object, width: int, classes: Labels) -> tuple[Matrix, Labels]:
    """Return the vectors and labels of a dev split; labels that train has not seen are left in.

    Raises:
        UserError: It is no pair, is empty, or does not fit the training data.
    """
    if not isinstance(dev, tuple | list) or len(dev) != 2:
        raise UserError(f"dev is a {type(dev).__name__}; pass a pair of vectors and labels, dev=(X_dev, y_dev)")
    matrix = as_matrix(dev[0])
    labels = check_labels(dev[1], what="dev's y")
    check_lengths(matrix, labels, "dev's X", "dev's y")
    if len(labels) == 0:
        raise UserError("dev has no rows; give a dev split with labelled rows or none")
    check_width(matrix, width, "dev's X")
    if (labels.dtype.kind == "U") != (classes.dtype.kind == "U"):
        raise UserError(f"dev's labels are {labels.dtype} and those of train {classes.dtype}; both must be of one kind")
    return matrix, labels


def dev_score(probe: RowProbe, dev: tuple[Matrix, Labels], metric: str = "accuracy") -> float:
    """Return how well a probe labels a dev split: its accuracy or macro F1 (over all classes true or predicted).

    Raises:
        UserError: A vector holds NaN or infinity.
    """
    try:
        predicted = probe.predict(dev[0])
    except UserError as error:
        raise UserError(f"dev: {error}") from None
    if metric == "macro_f1":
        return float(f1_score(dev[1], predicted, average="macro", zero_division=0))
    return float(accuracy_score(dev[1], predicted))


def check_width(X: Matrix, width: int, what: str) -> None:  # noqa: N803
    """Check that vectors have a width.

    Raises:
        UserError: They have another.
    """
    if X.shape[1] != width:
        raise UserError(f"{what} has vectors {X.shape[1]} wide; the probe was fitted on vectors {width} wide")


def check_lengths(X: Matrix, y: npt.NDArray[Any], name: str, labels_name: str) -> None:  # noqa: N803
    """Check that there is one label for each vector.

    Raises:
        UserError: There is not.
    """
    if X.shape[0] != len(y):
        raise UserError(f"{name} has {X.shape[0]} rows and {labels_name} {len(y)} labels; pass one label a row")


def take_arrays(
    arrays: Mapping[str, npt.NDArray[Any]], shapes: Mapping[str, tuple[int | None, ...]]
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a saved state, checked to be those that are wanted and to hold finite numbers.

    Args:
        arrays: What was saved.
        shapes: The shape of each that must be there, None where any length will do.

    Raises:
        UserError: One is missing, unknown, of another shape, or holds NaN or infinity.
    """
    if set(arrays) != set(shapes):
        raise UserError(f"the saved probe holds arrays {sorted(arrays)}, but its head needs {sorted(shapes)}")
    for name, shape in shapes.items():
        array = arrays[name]
        fits = array.ndim == len(shape) and all(w in (None, n) for w, n in zip(shape, array.shape, strict=True))
        if not fits:
            raise UserError(f"the saved array {name} has shape {array.shape}, but the probe needs {shape}")
        if not np.isfinite(array).all():
            raise UserError(f"the saved array {name} holds NaN or infinity")
    return dict(arrays)


def take_scaling(arrays: Mapping[str, npt.NDArray[Any]]) -> Scaling:
    """Return the scaling among the arrays of a saved state.

    Raises:
        UserError: A scale is not above 0.
    """
    scale = arrays["scale"].astype(np.float32)
    if not (scale > 0).all():
        raise UserError("the saved array scale holds a number that is not above 0")
    return Scaling(arrays["mean"].astype(np.float32), scale)


def take_report(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fit report among the values of a saved state.

    Raises:
        UserError: There is none, or there is something else.
    """
    if set(values) != {"report"} or not isinstance(values["report"], dict):
        raise UserError(f"the saved probe holds the values {sorted(values)}; its head needs a report alone")
    return dict(values["report"])
