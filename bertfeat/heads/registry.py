"""Heads by name. Their modules load when a head is asked for; torch loads for neural heads only."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from bertfeat import extensions, heads
from bertfeat.choices import Task
from bertfeat.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from bertfeat.heads.base import Probe

#: The heads that label rows, and the taggers of the words or tokens of a document: the class of each.
HEADS = {
    "logreg": "LogisticRegressionProbe",
    "svm": "LinearSVMProbe",
    "ridge": "RidgeProbe",
    "centroid": "CentroidProbe",
    "knn": "KNNProbe",
    "mlp": "MLPProbe",
    "linear": "LinearTagger",
    "bilstm": "BiLSTMTagger",
}
_CLASSES = HEADS | {"mean": "MeanRegressor"}
#: The heads of each task.
OF_TASK: dict[Task, tuple[str, ...]] = {
    Task.CLASSIFY: tuple(HEADS),
    Task.REGRESS: ("ridge", "knn", "mlp", "mean"),
    Task.MULTILABEL: ("logreg", "svm", "mlp"),
}
#: The head that learns each task if none is named.
DEFAULT_HEADS = {Task.CLASSIFY: "logreg", Task.REGRESS: "ridge", Task.MULTILABEL: "logreg"}


def check_head(name: str) -> None:
    """Raise a UserError if no head has a name, without loading a head."""
    if name not in _CLASSES and name not in (added := extensions.names("heads")):
        known = [*_CLASSES, *added]
        there = did_you_mean(name, known) or f"heads are {', '.join(known)}"
        raise UserError(f"no head {name!r}; {there}")


def head_class(name: str, task: Task = Task.CLASSIFY) -> type[Probe]:
    """Return the class of a head for a task; a UserError names the heads that learn the task if this one cannot."""
    check_head(name)
    if name in OF_TASK[task]:
        found: type[Probe] = getattr(heads, _CLASSES[name])
        return found
    if name in extensions.names("heads"):
        found = extensions.load("heads", name)
        if found.task == task:
            return found
    raise UserError(f"head {name} does not go with `task={task.value!r}`; heads of it are {', '.join(OF_TASK[task])}")


def make_head(name: str, task: Task = Task.CLASSIFY, **params: Any) -> Probe:
    """Return an unfitted probe; the values of its parameters are checked when it is fitted."""
    cls = head_class(name, task)
    taken = inspect.signature(cls).parameters
    known = [param for param in taken if param != "task"]
    for param in params:
        if param not in known:
            there = did_you_mean(param, known) or f"it has {', '.join(known)}"
            raise UserError(f"head {name} has no parameter {param!r}; {there}")
    return cls(**params, **({"task": task} if "task" in taken else {}))


def heads_with(attribute: str) -> str:
    """Return the names of the heads that have a parameter, such as `mix`, or a method, for messages."""
    *names, last = (name for name in HEADS if hasattr(head_class(name), attribute))
    return f"{', '.join(names)} and {last}"


class HeadSettings(TypedDict, total=False):
    """The parameters of all heads, as `fit_probe` and `sweep_probes` take them; each head uses some of them."""

    C: float | Sequence[float]
    alpha: float | Sequence[float]
    class_weight: str | None
    standardize: bool
    metric: str
    n_components: int | None
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
