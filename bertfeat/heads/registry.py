"""Heads by name. Their modules load when a head is asked for; torch loads for neural heads only."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from bertfeat import extensions
from bertfeat.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from bertfeat.heads.base import Probe

#: The heads that label rows: head -> the module and the class that make it.
ROW_HEADS: dict[str, tuple[str, str]] = {
    "logreg": ("bertfeat.heads.linear", "LogisticRegressionProbe"),
    "svm": ("bertfeat.heads.linear", "LinearSVMProbe"),
    "ridge": ("bertfeat.heads.linear", "RidgeProbe"),
    "centroid": ("bertfeat.heads.neighbors", "CentroidProbe"),
    "knn": ("bertfeat.heads.neighbors", "KNNProbe"),
    "mlp": ("bertfeat.heads.neural", "MLPProbe"),
}
#: The heads that label the words or tokens of a document.
TAGGERS: dict[str, tuple[str, str]] = {
    "linear": ("bertfeat.heads.neural", "LinearTagger"),
    "bilstm": ("bertfeat.heads.neural", "BiLSTMTagger"),
}
HEADS = ROW_HEADS | TAGGERS


def check_head(name: str) -> None:
    """Raise a UserError if no head has a name, without loading a head."""
    if name not in HEADS and name not in (added := extensions.names("heads")):
        known = [*HEADS, *added]
        there = did_you_mean(name, known) or f"heads are {', '.join(known)}"
        raise UserError(f"no head {name!r}; {there}")


def head_class(name: str) -> type[Probe]:
    """Return the class of a head."""
    check_head(name)
    if name in HEADS:
        module, class_name = HEADS[name]
        found: type[Probe] = getattr(importlib.import_module(module), class_name)
    else:
        found = extensions.load("heads", name)
    return found


def make_head(name: str, **params: Any) -> Probe:
    """Return an unfitted probe; the values of its parameters are checked when it is fitted."""
    cls = head_class(name)
    known = inspect.signature(cls).parameters
    for param in params:
        if param not in known:
            there = did_you_mean(param, known) or f"it has {', '.join(known)}"
            raise UserError(f"head {name} has no parameter {param!r}; {there}")
    return cls(**params)


def heads_with_mix() -> str:
    """Return the names of the heads that have a scalar mix, for messages."""
    *names, last = (name for name in HEADS if head_class(name).has_mix)
    return f"{', '.join(names)} and {last}"


class HeadSettings(TypedDict, total=False):
    """The parameters of all heads, as `fit_probe` and `sweep_probes` take them; each head uses some of them."""

    C: float | Sequence[float]
    alpha: float | Sequence[float]
    class_weight: str | None
    standardize: bool
    metric: str
    max_iter: int
    tol: float
    k: int
    weights: str
    hidden_size: int
    n_layers: int
    dropout: float
    lr: float
    weight_decay: float | Sequence[float]
    batch_size: int
    batch_tokens: int
    max_epochs: int
    patience: int
    validation_fraction: float
    early_stopping: bool
    device: str
