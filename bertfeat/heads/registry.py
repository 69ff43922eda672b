"""Heads by name. Their modules load when a head is asked for; torch loads for neural heads only."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from bertfeat.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from bertfeat.heads.base import Probe

#: The heads that label rows: head -> the module and the class that make it.
ROW_HEADS: dict[str, tuple[str, str]] = {
    "logreg": ("bertfeat.heads.linear", "LogisticRegressionProbe"),
    "svm": ("bertfeat.heads.linear", "LinearSVMProbe"),
    "ridge": ("bertfeat.heads.linear", "RidgeProbe"),
    "centroid": ("bertfeat.heads.neighbours", "CentroidProbe"),
    "knn": ("bertfeat.heads.neighbours", "KNNProbe"),
    "mlp": ("bertfeat.heads.mlp", "MLPProbe"),
}
#: The heads that label the words or tokens of a document.
TAGGERS: dict[str, tuple[str, str]] = {
    "linear": ("bertfeat.heads.taggers", "LinearTagger"),
    "bilstm": ("bertfeat.heads.taggers", "BiLSTMTagger"),
}
HEADS = ROW_HEADS | TAGGERS
# Heads that torch trains, and those that choose a penalty on dev, if there is one.
_TRAINED = ("mlp", *TAGGERS)
_SEARCHED = ("logreg", "svm", "ridge")


def check_head(name: str) -> None:
    """Refuse a name that no head has, without loading a head.

    Raises:
        UserError: There is no such head.
    """
    if name not in HEADS:
        there = did_you_mean(name, HEADS) or f"heads are {', '.join(HEADS)}"
        raise UserError(f"no head {name!r}; {there}")


def check_params(head: str, params: Mapping[str, Any], *, has_dev: bool) -> None:
    """Raise if a parameter has no effect in this combination, with or without dev; no head is loaded.

    The heads themselves accept them, as estimators of scikit-learn do, whose parameters a search sets one by one.

    Raises:
        UserError: The message names the first one.
    """
    is_trained, stops = head in _TRAINED, params.get("early_stopping", True) is not False
    is_judged = has_dev or (is_trained and stops) or head not in (*_SEARCHED, *_TRAINED)
    no_stop = "without early_stopping; leave it out"
    rules = (
        ("metric", not is_judged, "without `dev`; add it"),
        ("patience", is_trained and not stops, no_stop),
        ("validation_fraction", is_trained and has_dev, "with dev, so that nothing is held out; leave it out"),
        ("validation_fraction", is_trained and not stops, no_stop),
    )
    for name, is_ignored, reason in rules:
        if is_ignored and name in params:
            # On the command line, the other two have no flag of their own.
            shown = f"`metric='{params[name]}'`" if name == "metric" else f"parameter {name}={params[name]!r}"
            raise UserError(f"{shown} has no effect for head {head} {reason}")


def head_class(name: str) -> type[Probe]:
    """Return the class of a head.

    Raises:
        UserError: There is no such head.

    Examples:
        >>> head_class("ridge").__name__
        'RidgeProbe'
    """
    check_head(name)
    module, class_name = HEADS[name]
    found: type[Probe] = getattr(importlib.import_module(module), class_name)
    return found


def make_head(name: str, **params: Any) -> Probe:
    """Return an unfitted probe.

    Args:
        name: The head.
        params: Parameters of the head; their values are checked when it is fitted.

    Raises:
        UserError: There is no such head, or the head has no such parameter.

    Examples:
        >>> make_head("logreg", C=0.1)
        LogisticRegressionProbe(C=0.1)
    """
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
