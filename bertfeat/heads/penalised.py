"""What linear probes share: a penalty chosen on dev, scores from weights, and a state of a few arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from bertfeat.errors import UserError
from bertfeat.heads.base import class_weights
from bertfeat.heads.hyperparameters import choice, is_list, positive, positive_integer, positive_values
from bertfeat.heads.objectives import Minimum
from bertfeat.heads.rowprobe import (
    METRICS,
    RowProbe,
    TrainingRows,
    check_dev,
    check_training,
    dev_score,
)
from bertfeat.records import Float64Array


class LinearProbe(RowProbe):
    """Base of the linear probes: scores are `coef_` times the standardised vectors, plus `intercept_`.

    Attributes:
        coef_: float32 (n_classes, dim), or (1, dim) where there are two classes.
        intercept_: float32 (n_classes,) or (1,).
        classes_: The classes, sorted.
        scaling_: What vectors are standardised with.
    """

    #: The parameter that says how much large weights cost: one number, or a list to choose from on dev.
    penalty_name: ClassVar[str] = "C"
    #: Whether a larger number costs more.
    larger_is_stronger: ClassVar[bool] = False

    class_weight: str | None
    metric: str
    coef_: npt.NDArray[np.float32]
    intercept_: npt.NDArray[np.float32]

    def fit(self, X: object, y: npt.ArrayLike, *, dev: tuple[Any, Any] | None = None) -> Self:  # noqa: N803
        """Fit to vectors and labels.

        Where the penalty is a list, each value is tried, from the strongest on, and the one that labels dev best is
        kept; the stronger one of equals.

        Args:
            X: Vectors (n_rows, dim), in memory or as a stream.
            y: Labels (n_rows,): strings, integers or booleans.
            dev: Vectors and labels to choose the penalty on; with one penalty alone they are scored only.

        Raises:
            UserError: A parameter, the data or dev cannot be used; the message says why.
        """
        values = self._penalties(dev is not None)
        self._check_parameters()
        rows = check_training(X, y)
        dev_rows = None if dev is None else check_dev(dev, rows.X.shape[1], rows.classes)
        weights = class_weights(rows.codes, len(rows.classes), self.class_weight)
        self.classes_ = rows.classes
        self.scaling_ = self._fit_scaling(rows.X)
        tried: list[dict[str, Any]] = []
        points = []
        for value, minimum in zip(values, self._path(rows, weights, values), strict=True):
            entry = {self.penalty_name: value, "converged": minimum.converged, "n_iter": minimum.n_iter}
            if dev_rows is not None:
                self._take(minimum.point)
                entry["dev_score"] = dev_score(self, dev_rows, self._metric())
            tried.append(entry)
            points.append(minimum.point)
        best = max(range(len(tried)), key=lambda n: (tried[n].get("dev_score", 0.0), -n))
        self._take(points[best])
        self._report = self._write_report(tried, best)
        return self

    def decision_function(self, X: object) -> npt.NDArray[np.float32]:  # noqa: N803
        """Return the scores of the classes, float32 (n_rows, n_classes), or that of the second, (n_rows,), of two.

        Args:
            X: Vectors (n_rows, dim), in memory or as a stream.

        Raises:
            UserError: X has another width than it was fitted on, or a vector holds NaN or infinity.
        """
        return self._walk(X, self._scores, np.float32)

    def fit_report(self) -> dict[str, Any]:
        """Return the penalty that was kept, whether the fit converged, and what every value tried scored on dev."""
        check_is_fitted(self, "coef_")
        return dict(self._report)

    def _shapes(self, dim: int | None) -> dict[str, tuple[int | None, ...]]:
        n_outputs = 1 if len(self.classes_) == 2 else len(self.classes_)
        return {"coef": (n_outputs, dim), "intercept": (n_outputs,)}

    def _path(self, rows: TrainingRows, weights: Float64Array, values: Sequence[float]) -> Iterator[Minimum]:
        """Yield the solution for each value of the penalty, strongest first.

        Args:
            rows: What to learn from; its vectors are not standardised yet.
            weights: The weight of each class.
            values: The penalties.
        """
        raise NotImplementedError

    def _scores(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        scores = self.scaling_.apply(vectors) @ self.coef_.T + self.intercept_
        return np.asarray(scores[:, 0] if scores.shape[1] == 1 else scores, dtype=np.float32)

    def _take(self, point: Float64Array) -> None:
        self.coef_ = point[:, :-1].astype(np.float32)
        self.intercept_ = point[:, -1].astype(np.float32)

    def _penalties(self, has_dev: bool) -> list[float]:
        """Return the values of the penalty to try, strongest first."""
        name = self.penalty_name
        given = getattr(self, name)
        values = positive_values(name, given)
        if is_list(given) and not has_dev:
            raise UserError(f"{name} is a list and there is no dev split to choose from it by; pass dev or one {name}")
        return values[::-1] if self.larger_is_stronger else values

    def _check_parameters(self) -> None:
        choice("metric", self.metric, METRICS)

    def _metric(self) -> str:
        return "accuracy" if self.metric == "auto" else self.metric

    def _write_report(self, tried: list[dict[str, Any]], best: int) -> dict[str, Any]:
        report = dict(tried[best])
        if "dev_score" in report:
            report |= {"metric": self._metric(), "tried": tried}
        if not report["converged"]:
            where = f"{self.head} stopped after {report['n_iter']} iterations before it converged"
            what = f"at {self.penalty_name} {report[self.penalty_name]:g}"
            report["warnings"] = [f"{where} {what}; raise max_iter, or use a stronger penalty"]
        return report


@dataclass(kw_only=True, eq=False, repr=False)
class SearchedProbe(LinearProbe):
    """Base of the linear probes whose minimum is searched for, step by step.

    Args:
        C: The inverse of the penalty, or a list of values to choose from on dev.
        class_weight: None, or "balanced" for classes to count alike whatever their number of rows.
        standardize: Whether vectors are standardised first.
        metric: What dev is scored by: "accuracy" ("auto" is the same) or "macro_f1".
        max_iter: The most iterations for one value of C.
        tol: The largest entry of the mean loss's gradient at which the search ends.
    """

    C: float | Sequence[float] = 1.0
    class_weight: str | None = None
    standardize: bool = True
    metric: str = "auto"
    max_iter: int = 1000
    tol: float = 1e-4

    @property
    def n_iter_(self) -> int:
        """Iterations of the search that was kept."""
        return int(self._report["n_iter"])

    def _check_parameters(self) -> None:
        super()._check_parameters()
        positive_integer("max_iter", self.max_iter)
        positive("tol", self.tol)
