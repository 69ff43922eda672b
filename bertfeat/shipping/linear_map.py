"""The weights of a linear head, with the standardization of its vectors folded in."""

from __future__ import annotations

import numpy as np
import torch

from bertfeat.choices import Task
from bertfeat.heads.base import Probe

# The heads that are linear, and the names of their arrays.
_LINEAR = {
    **dict.fromkeys(("logreg", "svm", "ridge"), ("coef", "intercept")),
    "linear": ("body.output.weight", "body.output.bias"),
    "centroid": ("centroids", ""),
}


def is_linear(probe: Probe) -> bool:
    """Return whether the scores of a head are a linear map of the vectors."""
    return probe.head in _LINEAR and probe.get_params().get("mix") is None


def linear_map(probe: Probe) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight (n_outputs, dim) and bias (n_outputs,) of a fitted linear head, float64.

    Two classes have two outputs: 0, and the score of the second. A softmax of the scores, `weight @ vector + bias`,
    gives the probabilities of classes, the logistic function those of several labels; numbers are the scores
    themselves. The scores of svm, ridge and centroid say which class is the best, and nothing more.
    """
    state = {name: array.astype(np.float64) for name, array in probe.get_state().items()}
    weight, bias = (state.get(name, np.zeros(len(probe.classes_))) for name in _LINEAR[probe.head])
    if probe.head == "centroid":
        squares = (weight**2).sum(axis=1)
        if probe.get_params()["metric"] == "euclidean":
            bias = -squares / 2
        else:
            # The length of the vector itself divides all cosines alike.
            weight = weight / np.sqrt(np.where(squares == 0, 1, squares))[:, None]
    elif probe.task == Task.CLASSIFY and len(weight) == 1:
        weight, bias = np.vstack([np.zeros_like(weight), weight]), np.append(0.0, bias)
    weight = weight / state["scale"]
    return torch.from_numpy(weight), torch.from_numpy(bias - weight @ state["mean"])
