"""The weights of a linear head, with the standardization of its vectors folded in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from bertfeat.choices import Task
from bertfeat.heads.base import Probe
from bertfeat.records import Float32Array, Float64Array

# The heads that are linear, and the names of their arrays.
_LINEAR = {
    **dict.fromkeys(("logreg", "svm", "ridge"), ("coef", "intercept")),
    "linear": ("body.output.weight", "body.output.bias"),
    **dict.fromkeys(("centroid", "mean"), ("", "")),
}


@dataclass(frozen=True, slots=True, eq=False)
class LinearMap:
    """Scores of a linear head: `weight @ vector + bias`.

    A softmax of the scores gives the probabilities of classes, the logistic function those of several labels; numbers
    are the scores themselves. The scores of svm, ridge and centroid say which class is the best, and nothing more.

    Attributes:
        weight: float32 (n_outputs, dim).
        bias: float32 (n_outputs,).
    """

    weight: Float32Array
    bias: Float32Array

    @classmethod
    def of(cls, probe: Probe) -> Self | None:
        """Return the map of a fitted head; None for a head that is not linear in the vectors.

        Two classes have two outputs: 0, and the score of the second.
        """
        found = _of_scaled(probe)
        if found is None:
            return None
        mean, scale = _moments(probe)
        weight = found[0] / scale
        return cls(weight.astype(np.float32), (found[1] - weight @ mean).astype(np.float32))


def exact_scores(probe: Probe, vectors: Float32Array) -> Float64Array:
    """Return the scores of a linear head for vectors (n_rows, dim), nothing folded: float64 (n_rows, n_outputs)."""
    found = _of_scaled(probe)
    assert found is not None
    mean, scale = _moments(probe)
    return np.asarray((vectors - mean) / scale @ found[0].T + found[1])


def _moments(probe: Probe) -> tuple[Float64Array, Float64Array]:
    """Return mean and scale of the standardization of a head, float64 (dim,) each."""
    state = probe.get_state()
    return state["mean"].astype(np.float64), state["scale"].astype(np.float64)


def _of_scaled(probe: Probe) -> tuple[Float64Array, Float64Array] | None:
    """Return weight and bias of a head for standardized vectors, as float64; None if it is not linear."""
    if probe.head not in _LINEAR or probe.get_params().get("mix") is not None:
        return None
    state = {name: array.astype(np.float64) for name, array in probe.get_state().items()}
    if probe.head == "mean":
        return np.zeros((len(state["means"]), len(state["mean"]))), state["means"]
    if probe.head != "centroid":
        weight, bias = (state[name] for name in _LINEAR[probe.head])
        if probe.task == Task.CLASSIFY and len(weight) == 1:
            weight, bias = np.vstack([np.zeros_like(weight), weight]), np.append(0.0, bias)
        return weight, bias
    centroids = state["centroids"]
    squares = (centroids**2).sum(axis=1)
    if probe.get_params()["metric"] == "euclidean":
        return centroids, -squares / 2
    # The length of the vector itself divides all cosines alike.
    return centroids / np.sqrt(np.where(squares == 0, 1, squares))[:, None], np.zeros(len(squares))
