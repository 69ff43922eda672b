"""Base of the probes of rows: checks of vectors and labels, fitting and predicting in chunks, and a saved state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from bertfeat.choices import Task
from bertfeat.errors import UserError
from bertfeat.heads.base import DEV_METRICS, Labels, Probe, require_same_kind
from bertfeat.heads.scores import score_by
from bertfeat.heads.targets import Targets, check_truth, decide, encode
from bertfeat.vectors.array import FloatArray, Vectors, as_vectors, chunks_of
from bertfeat.vectors.standardized import Scaling, fit_scaling

Dev: TypeAlias = tuple[Vectors, Labels]


class RowProbe(Probe):
    """Base of the probes that label rows one by one, with the vectors standardized first.

    A subclass sets its own arrays in `_fit`, names them in `_arrays`, and computes the scores of rows in `_scores`.
    """

    #: The names of the fitted arrays, without the underscore.
    _arrays: ClassVar[tuple[str, ...]]
    standardize: bool
    scaling_: Scaling

    @property
    def n_features_in_(self) -> int:
        """Width of the vectors that it was fitted on."""
        return len(self.scaling_.mean)

    def fit(self, X: object, y: npt.ArrayLike, *, dev: tuple[Any, Any] | None = None) -> Self:
        """Fit to vectors and labels.

        Args:
            X: Numbers (n_rows, dim), or `Vectors`, which are read in chunks.
            y: Labels (n_rows,), as `check_truth` takes them for the task: strings, integers or booleans; numbers,
                (n_rows,) or (n_rows, n_targets); or lists of labels.
            dev: Vectors and labels to score, for the report; a list of penalties is chosen from by this score.

        Raises:
            UserError: A parameter, the data or dev cannot be used; the message says why.
        """
        self._check_parameters(dev)
        classes, targets = encode(self.task, y)
        source = with_labels(X, targets, "X", "y")
        dim = source.shape[1]
        dev_rows = None if dev is None else check_dev(*dev, dim, classes, self.task)
        self.scaling_ = fit_scaling(source) if self.standardize else Scaling.identity(dim)
        self.classes_ = classes
        self.report_ = self._fit(source, targets, dev_rows)
        if dev_rows is not None and not self.report_:
            metric = DEV_METRICS[self.task][0]
            self.report_ = {"metric": metric, "dev_score": dev_score(self, dev_rows, metric)}
        return self

    def predict(self, X: object) -> Labels:
        """Return the class of each row, (n_rows,), of the labels' own type.

        Numbers are float64 (n_rows,) or (n_rows, n_targets); several labels are bool (n_rows, n_classes).

        Raises:
            UserError: X has another width than it was fitted on, or a vector holds NaN or infinity.
        """
        return self._walk(X, lambda vectors: decide(self.task, self._scores(vectors), self.classes_), None)

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the fitted arrays by name; see `Probe`."""
        arrays = {name: getattr(self, f"{name}_") for name in self._arrays}
        return arrays | {"mean": self.scaling_.mean, "scale": self.scaling_.scale}

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Restore fitted arrays; see `Probe`."""
        self.scaling_ = Scaling(arrays["mean"], arrays["scale"])
        for name in self._arrays:
            setattr(self, f"{name}_", arrays[name])
        return self

    def _fit(self, X: Vectors, targets: Targets, dev: Dev | None) -> dict[str, Any]:
        """Fit to vectors (n_rows, dim), not standardized, and what each is labelled with; return a report, or {}."""
        raise NotImplementedError

    def _scores(self, vectors: FloatArray) -> npt.NDArray[Any]:
        """Return the scores of vectors (n_rows, dim), not standardized: (n_rows, n_classes), or (n_rows,) of two."""
        raise NotImplementedError

    def _walk(
        self, X: object, per_chunk: Callable[[FloatArray], npt.NDArray[Any]], dtype: npt.DTypeLike | None
    ) -> npt.NDArray[Any]:
        """Return the results of a function for the chunks of rows, end to end."""
        check_is_fitted(self, "scaling_")
        source = as_vectors(X)
        check_width(source, self.n_features_in_, "X")
        pieces = [per_chunk(vectors) for _, vectors in chunks_of(source)]
        # `concatenate` takes no empty list.
        pieces = pieces or [per_chunk(np.empty((0, self.n_features_in_), np.float32))]
        return np.concatenate(pieces, dtype=dtype, casting="same_kind")


def check_dev(X: object, y: Any, width: int, classes: Labels, task: str = Task.CLASSIFY) -> Dev:
    """Return the vectors and labels of a dev split; labels that train has not seen may be among them."""
    labels = check_truth(task, y, "dev's y")
    source = with_labels(X, labels, "dev's X", "dev's y")
    if len(labels) == 0:
        raise UserError("dev has no rows; give a dev split with labelled rows or none")
    check_width(source, width, "dev's X")
    if task == Task.CLASSIFY:
        require_same_kind(labels, "dev", classes, "train")
    return source, labels


def dev_score(probe: RowProbe, dev: Dev, metric: str) -> float:
    """Return a score of a probe on a dev split; macro F1 is over all classes, true or predicted."""
    try:
        return score_by(metric, dev[1], probe.predict(dev[0]), classes=probe.classes_)
    except UserError as error:
        raise UserError(f"dev: {error}") from None


def check_width(X: Vectors, width: int, what: str) -> None:
    """Raise a UserError if vectors have another width."""
    if X.shape[1] != width:
        raise UserError(f"{what} has vectors {X.shape[1]} wide; the probe was fitted on vectors {width} wide")


def with_labels(X: object, y: npt.NDArray[Any], name: str, labels_name: str) -> Vectors:
    """Return vectors, or raise a UserError if there are more or fewer labels."""
    source = as_vectors(X)
    if source.shape[0] != len(y):
        raise UserError(f"{name} has {source.shape[0]} rows and {labels_name} {len(y)} labels; pass one label per row")
    return source
