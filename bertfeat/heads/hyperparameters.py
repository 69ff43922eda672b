"""Checks of the parameters of probes by their names. They run in `fit`, as scikit-learn's conventions ask."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from bertfeat.errors import UserError

_Rule = tuple[type, Callable[[Any], bool], str]
_POSITIVE: _Rule = (Real, lambda number: 0 < number < math.inf, "a number above 0")
_COUNT: _Rule = (Integral, lambda number: number >= 1, "a whole number of 1 or more")
_COUNTS = ("k", "hidden_size", "n_layers", "mix", "batch_size", "batch_tokens", "max_epochs", "max_iter", "patience")
_NUMBERS: dict[str, _Rule] = {
    **dict.fromkeys(("C", "alpha", "lr", "tol"), _POSITIVE),
    **dict.fromkeys(_COUNTS, _COUNT),
    "weight_decay": (Real, lambda number: 0 <= number < math.inf, "a number of 0 or more"),
    "dropout": (Real, lambda number: 0 <= number < 1, "a number of 0 or more and below 1"),
    "validation_fraction": (Real, lambda number: 0 < number < 1, "a number between 0 and 1"),
    # The seeds that torch takes.
    "seed": (Integral, lambda number: 0 <= number < 1 << 63, "a whole number of 0 or more and below 2**63"),
}
_FLAGS = ("standardize", "early_stopping")


def check_parameters(params: Mapping[str, object], choices: Mapping[str, tuple[str, ...]]) -> None:
    """Check parameters; `choices` has the values of each that is a name. The error says what a value must be."""
    for name, value in params.items():
        if name in choices and (not isinstance(value, str) or value not in choices[name]):
            raise UserError(f"{name} {value!r} must be one of {', '.join(choices[name])}")
        if name in _FLAGS and not isinstance(value, bool | np.bool_):
            raise UserError(f"{name} {value!r} is neither True nor False")
        if name in _NUMBERS and not (name == "mix" and value is None):
            _check_number(name, value)


def is_list(value: object) -> bool:
    """Return whether a parameter is a list of values, and not one value."""
    return isinstance(value, list | tuple | np.ndarray)


def penalties(name: str, given: Any, *, has_dev: bool) -> list[float]:
    """Return the values of a penalty to try: one number, or each number of a list once, ascending."""
    if is_list(given) and not has_dev:
        raise UserError(f"{name} is a list and there is no dev split to choose from it; pass dev, or one number")
    values = list(given) if is_list(given) else [given]
    if not values:
        raise UserError(f"{name} is an empty list; give one number or more")
    for value in values:
        _check_number(name, value)
    return sorted({float(value) for value in values})


def _check_number(name: str, value: Any) -> None:
    kind, fits, what = _NUMBERS[name]
    if isinstance(value, bool | np.bool_) or not isinstance(value, kind) or not fits(value):
        raise UserError(f"{name} {value!r} is not {what}")
