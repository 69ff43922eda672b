"""Linear probes: logistic regression, linear SVM, ridge, and a mean. In memory or streamed, they find the same."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import expit, logsumexp, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from bertfeat.choices import Task
from bertfeat.errors import UserError
from bertfeat.heads.base import DEV_METRICS, penalties
from bertfeat.heads.row_probe import Dev, RowProbe, dev_score
from bertfeat.heads.targets import Targets, weights_of
from bertfeat.records import Float32Array, Float64Array, IntArray
from bertfeat.vectors.array import ArrayVectors, FloatArray, Vectors, chunks_of
from bertfeat.vectors.standardized import Moments, Projection, Scaling, principal_axes, standardized

# Rows that are turned to float64 and multiplied at a time: by ridge, and by a search, whose blocks fit the cache.
_BLOCK_ROWS = 2048
_SEARCH_BLOCK_ROWS = 1024
# A search whose matrix products have fewer multiplications runs in one thread. It takes thousands of them, and several
# threads wait for each other as long as they compute; where other programs compute too, many times as long.
_SHORT_PRODUCT = 1 << 29


class Minimum(NamedTuple):
    """The end of a search: `point` (n_outputs, dim + 1), whether it converged, and the number of iterations."""

    point: Float64Array
    converged: bool
    n_iter: int


@dataclass(kw_only=True, eq=False, repr=False)
class LinearProbe(RowProbe):
    """Base of the linear probes: scores are `coef_` times the standardized vectors, plus `intercept_`.

    If the penalty is a list, each value is tried, the strongest first. The value with the best score on dev is kept; of
    equal scores the stronger penalty.

    Args:
        task: What it learns: "classify", a class per row; "regress", one or several numbers (ridge); or "multilabel", a
            list of labels (logreg and svm).
        class_weight: None, or "balanced" to weight classes inversely to their number of rows; not of numbers.
        standardize: Whether vectors are standardized first.
        metric: The score on dev; "auto" is the first of those of the task: accuracy and macro_f1; for numbers r2,
            pearson and spearman; for several labels macro_f1, micro_f1 and subset_accuracy.
        n_components: The number of principal axes of the standardized vectors to fit to, as after scikit-learn's PCA;
            `coef_` is of the vectors themselves again. None is without PCA.

    Attributes:
        coef_: float32 (n_outputs, dim): an output for each class, or one for two; for each number; or for each label.
        intercept_: float32 (n_outputs,).
    """

    penalty_name: ClassVar[str] = "C"
    _arrays = ("coef", "intercept")

    task: str = "classify"
    class_weight: str | None = None
    standardize: bool = True
    metric: str = "auto"
    n_components: int | None = None
    coef_: Float32Array = field(init=False)
    intercept_: Float32Array = field(init=False)

    def decision_function(self, X: object) -> Float32Array:
        """Return the scores of the classes, float32 (n_rows, n_classes), or that of the second, (n_rows,), of two."""
        return self._walk(X, self._scores, np.float32)

    def _fit(self, X: Vectors, targets: Targets, dev: Dev | None) -> dict[str, Any]:
        values = penalties(self.penalty_name, getattr(self, self.penalty_name), has_dev=dev is not None)
        strongest_first = values if self.penalty_name == "C" else values[::-1]
        weights = weights_of(targets, len(self.classes_), self.class_weight)
        metric = DEV_METRICS[self.task][0] if self.metric == "auto" else self.metric
        tried = []
        for value, minimum in zip(strongest_first, self._minima(X, targets, weights, strongest_first), strict=True):
            self._take(minimum.point)
            entry = {self.penalty_name: value, "converged": minimum.converged, "n_iter": minimum.n_iter}
            if dev is not None:
                entry["dev_score"] = dev_score(self, dev, metric)
            tried.append((entry, minimum.point))
        # The first one of those with equal scores, which has the stronger penalty.
        kept, point = max(tried, key=lambda one: one[0].get("dev_score", 0))
        self._take(point)
        report: dict[str, Any] = dict(kept)
        if dev is not None:
            report |= {"metric": metric, "tried": [entry for entry, _ in tried]}
        if not report["converged"]:
            where = f"{self.head} stopped after {report['n_iter']} iterations before it converged"
            what = f"at {self.penalty_name} {report[self.penalty_name]:g}"
            report["warnings"] = [f"{where} {what}; raise max_iter, or use a stronger penalty"]
        return report

    def _minima(
        self, X: Vectors, targets: Targets, weights: Float64Array, values: Sequence[float]
    ) -> Iterator[Minimum]:
        """Yield what `_path` does; of a fit to principal axes as weights of all dimensions."""
        if self.n_components is None:
            yield from self._path(X, targets, weights, values)
            return
        if self.n_components > min(X.shape):
            raise UserError(f"n_components {self.n_components} is too many for {X.shape[0]} vectors {X.shape[1]} wide")
        scaling, moments = self.scaling_, Moments(X.shape[1], "scatter")
        for _, vectors in chunks_of(X):
            moments.add(vectors)
        scale = scaling.scale.astype(np.float64)
        moments.squares /= np.outer(scale, scale)
        axes = principal_axes(moments, self.n_components)[1]
        projected = standardized(X, Projection(moments.mean, (axes / scale[:, None]).astype(np.float32)))
        self.scaling_ = Scaling.identity(self.n_components)
        minima = list(self._path(projected, targets, weights, values))
        self.scaling_ = scaling
        center = (moments.mean - scaling.mean) / scale
        for minimum in minima:
            coef = minimum.point[:, :-1] @ axes.T
            yield minimum._replace(point=np.column_stack([coef, minimum.point[:, -1] - coef @ center]))

    def _path(self, X: Vectors, targets: Targets, weights: Float64Array, values: Sequence[float]) -> Iterator[Minimum]:
        """Yield the solution for each value of the penalty, the strongest first, given the weights of classes."""
        raise NotImplementedError

    def _scores(self, vectors: FloatArray) -> Float32Array:
        scores = self.scaling_.apply(vectors) @ self.coef_.T + self.intercept_
        is_binary = self.task == Task.CLASSIFY and scores.shape[1] == 1
        return np.asarray(scores[:, 0] if is_binary else scores, dtype=np.float32)

    def _take(self, point: Float64Array) -> None:
        self.coef_ = point[:, :-1].astype(np.float32)
        self.intercept_ = point[:, -1].astype(np.float32)

    def _ignored(self, *, has_dev: bool) -> Iterator[tuple[str, str]]:
        yield from super()._ignored(has_dev=has_dev)
        if not has_dev:
            yield "metric", "without `dev`; add it"


@dataclass(kw_only=True, eq=False, repr=False)
class SearchedProbe(LinearProbe):
    """Base of the linear probes whose minimum is found by steps, with L-BFGS.

    Further parameters are those of `LinearProbe`.

    Args:
        C: The inverse of the penalty, or a list of values to choose from on dev.
        max_iter: The most iterations for one value of C.
        tol: The search ends when no entry of the mean loss's gradient is larger.
    """

    choices: ClassVar = {"task": (Task.CLASSIFY, Task.MULTILABEL)}
    #: Whether the penalty includes the intercept.
    _penalizes_intercept: ClassVar[bool] = False

    C: float | Sequence[float] = 1.0
    max_iter: int = 1000
    tol: float = 1e-4

    @property
    def n_iter_(self) -> int:
        """Number of iterations of the kept search."""
        return int(self.report_["n_iter"])

    @staticmethod
    def loss_of_rows(targets: Targets, weights: Float64Array, scores: Float64Array) -> tuple[float, Float64Array]:
        """Return the summed loss of rows, and its gradient by their scores (n_rows, n_outputs).

        `weights` are those of rows without and with the class or label of each output, (n_outputs, 2).
        """
        raise NotImplementedError

    def _path(self, X: Vectors, targets: Targets, weights: Float64Array, values: Sequence[float]) -> Iterator[Minimum]:
        # The settings of scikit-learn's LogisticRegression.
        options = {"maxiter": self.max_iter, "maxfun": 50 * self.max_iter, "maxls": 50, "gtol": self.tol}
        options["ftol"] = 64 * np.finfo(float).eps
        of_outputs, total = weights, float(len(targets))
        if self.task == Task.CLASSIFY:
            total = float(weights[targets].sum())
            # As in liblinear: the weight of a class counts in the score of that class, and for two classes always.
            of_outputs = weights[None] if len(weights) == 2 else np.stack([np.ones(len(weights)), weights], axis=1)
        scaled = standardized(X, self.scaling_)

        def objective(flat: Float64Array, strength: float) -> tuple[float, Float64Array]:
            """Return `strength` / 2 * |w|^2 + mean loss at a flat point, and its gradient.

            It is scikit-learn's objective, divided by C and the sum of the rows' weights, so that the same tolerance
            means the same.
            """
            point = flat.reshape(len(of_outputs), -1)
            loss, gradient = 0.0, np.zeros(point.shape)
            for rows, vectors in chunks_of(scaled):
                for start in range(0, len(vectors), _SEARCH_BLOCK_ROWS):
                    block = vectors[start : start + _SEARCH_BLOCK_ROWS].astype(np.float64)
                    own = targets[rows.start + start :][: len(block)]
                    added, slopes = self.loss_of_rows(own, of_outputs, block @ point[:, :-1].T + point[:, -1])
                    loss += added
                    gradient[:, :-1] += slopes.T @ block
                    gradient[:, -1] += slopes.sum(axis=0)
            n_penalized = point.shape[1] - (not self._penalizes_intercept)
            penalized = point[:, :n_penalized]
            gradient /= total
            gradient[:, :n_penalized] += strength * penalized
            return loss / total + strength / 2 * float((penalized**2).sum()), gradient.ravel()

        flat = np.zeros(len(of_outputs) * (X.shape[1] + 1))
        # Every search starts where the one before it ended.
        for value in values:
            strength = 1 / (value * total)
            with _threads_for(_SEARCH_BLOCK_ROWS * flat.size):
                found = minimize(objective, flat, (strength,), method="L-BFGS-B", jac=True, options=options)
            flat = found.x
            yield Minimum(flat.reshape(len(of_outputs), -1), bool(found.success), int(found.nit))


class LogisticRegressionProbe(SearchedProbe):
    """Multinomial logistic regression with an L2 penalty; the intercept is free.

    In memory it is scikit-learn's LogisticRegression; a stream is fitted to the same objective with the same optimizer
    (L-BFGS), one pass over the stream for each evaluation. Several labels have a regression each, all solved at once:
    scikit-learn's OneVsRestClassifier(LogisticRegression()). See `SearchedProbe` for the parameters.

    Examples:
        >>> X = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.2]])
        >>> LogisticRegressionProbe().fit(X, ["left", "left", "right", "right"]).predict(X).tolist()
        ['left', 'left', 'right', 'right']
        >>> probe = LogisticRegressionProbe(task="multilabel", C=100.0).fit(X, [["up"], ["up"], [], ["up", "right"]])
        >>> probe.predict(X).astype(int).tolist()  # of the classes right and up
        [[0, 1], [0, 1], [0, 0], [1, 1]]
    """

    head = "logreg"

    def predict_proba(self, X: object) -> Float32Array:
        """Return the probabilities of the classes, float32 (n_rows, n_classes); see `predict`."""
        probabilities = _probabilities if self.task == Task.CLASSIFY else expit
        return self._walk(X, lambda vectors: probabilities(self._scores(vectors)), np.float32)

    def _path(self, X: Vectors, targets: Targets, weights: Float64Array, values: Sequence[float]) -> Iterator[Minimum]:
        is_classes = self.task == Task.CLASSIFY
        # A few components take float64, in which scikit-learn would need a copy of them.
        if is_classes and isinstance(X, ArrayVectors) and self.n_components is None:
            minima = self._path_in_memory(self.scaling_.apply(X.whole()), targets, values)
        else:
            minima = super()._path(X, targets, weights, values)
        for minimum in minima:
            # The softmax does not change if the same number is added to all intercepts: their sum is set to 0.
            if is_classes and len(minimum.point) > 1:
                minimum.point[:, -1] -= minimum.point[:, -1].mean()
            yield minimum

    @staticmethod
    def loss_of_rows(targets: Targets, weights: Float64Array, scores: Float64Array) -> tuple[float, Float64Array]:
        """Return the cross-entropy of the softmax, or of logistic functions for two classes and for several labels."""
        if scores.shape[1] == 1 or targets.ndim == 2:
            is_own = _members(targets, scores.shape[1])
            of_rows = np.where(is_own, weights[:, 1], weights[:, 0])
            losses = np.logaddexp(0, scores) - is_own * scores
            return float((of_rows * losses).sum()), of_rows * (expit(scores) - is_own)
        normalizer = logsumexp(scores, axis=1, keepdims=True)
        own, of_own = (np.arange(len(targets)), targets), weights[targets, 1]
        slopes = np.exp(scores - normalizer)
        slopes[own] -= 1
        slopes *= of_own[:, None]
        return float(of_own @ (normalizer[:, 0] - scores[own])), slopes

    def _path_in_memory(self, X: FloatArray, codes: IntArray, values: Sequence[float]) -> Iterator[Minimum]:
        model = LogisticRegression(
            class_weight=self.class_weight, tol=self.tol, max_iter=self.max_iter, warm_start=True
        )
        for value in values:
            with warnings.catch_warnings(record=True) as caught:
                warnings.filterwarnings("ignore", "The number of unique classes")
                warnings.simplefilter("always", ConvergenceWarning)
                with _threads_for(X.size * len(self.classes_)):
                    model.set_params(C=value).fit(X, codes)
            converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
            point = np.hstack([model.coef_, model.intercept_[:, None]]).astype(np.float64)
            yield Minimum(point, converged, int(model.n_iter_.max()))


class LinearSVMProbe(SearchedProbe):
    """Linear support vector machine, one class or label against the rest: scikit-learn's LinearSVC, its default loss.

    The squared hinge is smooth, so that L-BFGS finds the minimum, in memory and streamed, for all classes at once.
    scikit-learn uses liblinear, which takes one class at a time and a float64 copy of the vectors. As there, the
    penalty includes the intercept. See `SearchedProbe` for the parameters.
    """

    head = "svm"
    _penalizes_intercept = True

    @staticmethod
    def loss_of_rows(targets: Targets, weights: Float64Array, scores: Float64Array) -> tuple[float, Float64Array]:
        """Return the squared hinge of one class or label against the rest, summed over them; see `SearchedProbe`."""
        is_own = _members(targets, scores.shape[1])
        signs = np.where(is_own, 1.0, -1.0)
        gaps = np.maximum(0, 1 - signs * scores)
        pulls = np.where(is_own, weights[:, 1], weights[:, 0]) * gaps
        return float((pulls * gaps).sum()), -2 * signs * pulls


@dataclass(kw_only=True, eq=False, repr=False)
class RidgeProbe(LinearProbe):
    """Least squares with an L2 penalty: scikit-learn's RidgeClassifier (on +1 for a row's class, else -1), and Ridge.

    It solves the normal equations, which one pass over the vectors gathers in float64. A list of penalties needs no
    further pass. Further parameters are those of `LinearProbe`.

    Args:
        alpha: The penalty, or a list of values to choose from on dev.

    Examples:
        >>> X = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.2]])
        >>> RidgeProbe(task="regress", alpha=0.01).fit(X, [1.5, 1.6, 2.5, 2.4]).predict(X).round(1).tolist()
        [1.5, 1.6, 2.5, 2.4]
    """

    head = "ridge"
    choices: ClassVar = {"task": (Task.CLASSIFY, Task.REGRESS)}
    penalty_name = "alpha"

    alpha: float | Sequence[float] = 1.0

    def _path(self, X: Vectors, targets: Targets, weights: Float64Array, values: Sequence[float]) -> Iterator[Minimum]:
        is_classes = self.task == Task.CLASSIFY
        row_weights = weights[targets] if is_classes else np.ones(len(targets))
        dim, n_outputs = X.shape[1], 1 if len(weights) == 2 else len(weights)
        n_outputs = n_outputs if is_classes else targets.shape[1]
        gram, products = np.zeros((dim, dim)), np.zeros((dim, n_outputs))
        vector_sum, target_sum = np.zeros(dim), np.zeros(n_outputs)
        for rows, vectors in chunks_of(X):
            for start in range(0, len(vectors), _BLOCK_ROWS):
                block = self.scaling_.apply(vectors[start : start + _BLOCK_ROWS]).astype(np.float64)
                part = slice(rows.start + start, rows.start + start + len(block))
                own, roots = _members(targets[part], n_outputs), np.sqrt(row_weights[part])[:, None]
                wanted = np.where(own, roots, -roots) if is_classes else own
                block *= roots
                gram += block.T @ block
                products += block.T @ wanted
                vector_sum += roots[:, 0] @ block
                target_sum += roots[:, 0] @ wanted
        total = row_weights.sum()
        mean, target_mean = vector_sum / total, target_sum / total
        gram -= total * np.outer(mean, mean)
        products -= total * np.outer(mean, target_mean)
        for value in values:
            penalized = gram.copy()
            np.fill_diagonal(penalized, penalized.diagonal() + value)
            try:
                coef = cho_solve(cho_factor(penalized, overwrite_a=True), products).T
            except LinAlgError:
                raise UserError(f"alpha {value:g} is too small for these vectors; use a larger one") from None
            intercept = target_mean - coef @ mean
            yield Minimum(np.hstack([coef, intercept[:, None]]), converged=True, n_iter=1)


@dataclass(kw_only=True, eq=False, repr=False)
class MeanRegressor(RowProbe):
    """The mean of the numbers in training, whatever the vector: the score that a probe has to beat.

    Attributes:
        means_: float64 (n_targets,).
    """

    head = "mean"
    task = Task.REGRESS
    # Not a parameter: the vectors do not matter.
    standardize = False
    _arrays = ("means",)
    means_: Float64Array = field(init=False)

    def _fit(self, X: Vectors, targets: Targets, dev: Dev | None) -> dict[str, Any]:  # noqa: ARG002
        self.means_ = targets.mean(axis=0)
        return {}

    def _scores(self, vectors: FloatArray) -> Float64Array:
        return np.tile(self.means_, (len(vectors), 1))


def _threads_for(n_products: int) -> threadpool_limits:
    """Keep the matrix products of a search in one thread if they are short."""
    return threadpool_limits(1 if n_products < _SHORT_PRODUCT else None, user_api="blas")


def _members(targets: Targets, n_outputs: int) -> Targets:
    """Return which rows have the class of each output, (n_rows, n_outputs), one for two classes; others as they are."""
    if targets.dtype != np.int64:
        return targets
    return np.asarray(targets[:, None] == (np.arange(n_outputs) if n_outputs > 1 else 1))


def _probabilities(scores: Float32Array) -> Float64Array:
    """Return the softmax of scores (n_rows, n_classes), or the logistic function of (n_rows,) for both classes."""
    if scores.ndim == 1:
        positive = expit(scores.astype(np.float64))
        return np.stack([1 - positive, positive], axis=1)
    return np.asarray(softmax(scores.astype(np.float64), axis=1))
