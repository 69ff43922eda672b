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
        weight, bias = found
        if probe.task == Task.CLASSIFY and len(weight) == 1:
            weight, bias = np.vstack([np.zeros_like(weight), weight]), np.append(0.0, bias)
        state = probe.get_state()
        weight = weight / state["scale"].astype(np.float64)
        bias = bias - weight @ state["mean"].astype(np.float64)
        return cls(weight.astype(np.float32), bias.astype(np.float32))

    def scores(self, vectors: Float32Array) -> Float32Array:
        """Return the scores of vectors, float32 (n_rows, dim), as float32 (n_rows, n_outputs)."""
        return np.asarray(vectors @ self.weight.T + self.bias, dtype=np.float32)


def _of_scaled(probe: Probe) -> tuple[Float64Array, Float64Array] | None:
    """Return weight and bias of a head for standardized vectors, as float64; None if it is not linear."""
    if probe.head not in _LINEAR or probe.get_params().get("mix") is not None:
        return None
    state = {name: array.astype(np.float64) for name, array in probe.get_state().items()}
    if probe.head == "mean":
        return np.zeros((len(state["means"]), len(state["mean"]))), state["means"]
    if probe.head != "centroid":
        weight, bias = _LINEAR[probe.head]
        return state[weight], state[bias]
    centroids = state["centroids"]
    squares = (centroids**2).sum(axis=1)
    if probe.get_params()["metric"] == "euclidean":
        return centroids, -squares / 2
    # The length of the vector itself divides all cosines alike.
    return centroids / np.sqrt(np.where(squares == 0, 1, squares))[:, None], np.zeros(len(squares))
