"""Linear probes: logistic regression, linear SVM, ridge. In memory or streamed, they find the same solution."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.special import expit, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from bertfeat.errors import UserError
from bertfeat.heads.matrices import VectorStream, chunks_of
from bertfeat.heads.objectives import LogisticLoss, Minimum, SquaredHingeLoss, minimise_path
from bertfeat.heads.penalised import LinearProbe, SearchedProbe
from bertfeat.heads.rowprobe import TrainingRows
from bertfeat.heads.scaling import Scaling, standardised
from bertfeat.records import Float64Array, IntArray

# Rows that are turned to float64 and multiplied at a time.
_BLOCK_ROWS = 2048


class LogisticRegressionProbe(SearchedProbe):
    """Multinomial logistic regression with an L2 penalty; the intercept is free.

    In memory it is scikit-learn's LogisticRegression; a stream is fitted to the same objective with the same optimiser
    (L-BFGS), one pass over the stream for each evaluation. See `SearchedProbe` for the parameters.

    Examples:
        >>> X = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.2]])
        >>> LogisticRegressionProbe().fit(X, ["left", "left", "right", "right"]).predict(X).tolist()
        ['left', 'left', 'right', 'right']
    """

    head = "logreg"

    def predict_proba(self, X: object) -> npt.NDArray[np.float32]:  # noqa: N803
        """Return the probabilities of the classes, float32 (n_rows, n_classes).

        Args:
            X: Vectors (n_rows, dim), in memory or as a stream.

        Raises:
            UserError: X has another width than it was fitted on, or a vector holds NaN or infinity.
        """
        return self._walk(X, lambda vectors: _probabilities(self._scores(vectors)), np.float32)

    def _path(self, rows: TrainingRows, weights: Float64Array, values: Sequence[float]) -> Iterator[Minimum]:
        scaled = standardised(rows.X, self.scaling_)
        if isinstance(scaled, VectorStream):
            loss = LogisticLoss(rows.codes, weights)
            minima = minimise_path(
                scaled, loss, values, penalises_intercept=False, max_iter=self.max_iter, tol=self.tol
            )
        else:
            minima = self._path_in_memory(scaled, rows.codes, values)
        for minimum in minima:
            # The softmax does not change when all intercepts move alike: their sum is fixed at 0.
            if len(minimum.point) > 1:
                minimum.point[:, -1] -= minimum.point[:, -1].mean()
            yield minimum

    def _path_in_memory(
        self,
        X: npt.NDArray[np.float32],  # noqa: N803
        codes: IntArray,
        values: Sequence[float],
    ) -> Iterator[Minimum]:
        model = LogisticRegression(
            class_weight=self.class_weight, tol=self.tol, max_iter=self.max_iter, warm_start=True
        )
        for value in values:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model.set_params(C=value).fit(X, codes)
            converged = True
            for warning in caught:
                if issubclass(warning.category, ConvergenceWarning):
                    converged = False
                else:
                    warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            point = np.hstack([model.coef_, model.intercept_[:, None]]).astype(np.float64)
            yield Minimum(point, converged, int(model.n_iter_.max()))


class LinearSVMProbe(SearchedProbe):
    """Linear support vector machine, one class against the rest: scikit-learn's LinearSVC with its default loss.

    The squared hinge is smooth, so that the search of a streamed logistic regression finds the minimum, in memory too
    and for all classes at once; liblinear, which scikit-learn uses, takes one class at a time, on a float64 copy of the
    vectors. As there, the intercept is penalised like a weight. See `SearchedProbe` for the parameters.
    """

    head = "svm"
    has_probabilities = False

    def _path(self, rows: TrainingRows, weights: Float64Array, values: Sequence[float]) -> Iterator[Minimum]:
        return minimise_path(
            standardised(rows.X, self.scaling_),
            SquaredHingeLoss(rows.codes, weights),
            values,
            penalises_intercept=True,
            max_iter=self.max_iter,
            tol=self.tol,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class RidgeProbe(LinearProbe):
    """Least squares on +1 for a row's class and -1 for the others, with an L2 penalty: scikit-learn's RidgeClassifier.

    It solves the normal equations, gathered in one pass in float64, in memory and streamed alike; a list of penalties
    costs no further pass.

    Args:
        alpha: The penalty, or a list of values to choose from on dev.
        class_weight: None, or "balanced" for classes to count alike whatever their number of rows.
        standardize: Whether vectors are standardised first.
        metric: What dev is scored by: "accuracy" ("auto" is the same) or "macro_f1".
    """

    head = "ridge"
    has_probabilities = False
    penalty_name = "alpha"
    larger_is_stronger = True

    alpha: float | Sequence[float] = 1.0
    class_weight: str | None = None
    standardize: bool = True
    metric: str = "auto"

    def _path(self, rows: TrainingRows, weights: Float64Array, values: Sequence[float]) -> Iterator[Minimum]:
        gram, products, mean, target_mean = _normal_equations(rows, self.scaling_, weights)
        for value in values:
            penalised = gram.copy()
            np.fill_diagonal(penalised, penalised.diagonal() + value)
            try:
                coef = cho_solve(cho_factor(penalised, overwrite_a=True), products).T
            except LinAlgError:
                raise UserError(f"alpha {value:g} is too small for these vectors; use a larger one") from None
            intercept = target_mean - coef @ mean
            yield Minimum(np.hstack([coef, intercept[:, None]]), converged=True, n_iter=1)


def _normal_equations(
    rows: TrainingRows, scaling: Scaling, weights: Float64Array
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
    """Return the centred products that ridge needs: (dim, dim), (dim, n_outputs), and the means of both sides."""
    dim = rows.X.shape[1]
    n_outputs = 1 if len(weights) == 2 else len(weights)
    gram = np.zeros((dim, dim))
    products = np.zeros((dim, n_outputs))
    vector_sum = np.zeros(dim)
    target_sum = np.zeros(n_outputs)
    for chunk, vectors in chunks_of(rows.X):
        for start in range(0, len(vectors), _BLOCK_ROWS):
            block = scaling.apply(vectors[start : start + _BLOCK_ROWS]).astype(np.float64)
            codes = rows.codes[chunk.start + start :][: len(block)]
            roots = np.sqrt(weights[codes])[:, None]
            targets = np.where(codes[:, None] == np.arange(n_outputs) + (n_outputs == 1), roots, -roots)
            block *= roots
            gram += block.T @ block
            products += block.T @ targets
            vector_sum += roots[:, 0] @ block
            target_sum += roots[:, 0] @ targets
    total = weights[rows.codes].sum()
    mean, target_mean = vector_sum / total, target_sum / total
    gram -= total * np.outer(mean, mean)
    products -= total * np.outer(mean, target_mean)
    return gram, products, mean, target_mean


def _probabilities(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the softmax of scores (n_rows, n_classes), or the logistic function of (n_rows,) for both classes."""
    if scores.ndim == 1:
        positive = expit(scores.astype(np.float64))
        return np.stack([1 - positive, positive], axis=1)
    return np.asarray(softmax(scores.astype(np.float64), axis=1))
