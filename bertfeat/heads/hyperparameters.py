"""Checks of the parameters of probes, made when they are fitted, as scikit-learn's conventions want it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np

from bertfeat.errors import UserError


def positive(name: str, value: object) -> float:
    """Return a number above 0.

    Raises:
        UserError: It is something else.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise UserError(f"{name} {value!r} is no number above 0")
    return float(value)


def positive_integer(name: str, value: object) -> int:
    """Return a whole number of 1 or more.

    Raises:
        UserError: It is something else.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral) or value < 1:
        raise UserError(f"{name} {value!r} is no whole number of 1 or more")
    return int(value)


def choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return one of the choices.

    Raises:
        UserError: It is none of them.
    """
    if not isinstance(value, str) or value not in choices:
        raise UserError(f"{name} {value!r} is none of {', '.join(choices)}")
    return value


def flag(name: str, value: object) -> bool:
    """Return True or False.

    Raises:
        UserError: It is something else.
    """
    if not isinstance(value, bool | np.bool_):
        raise UserError(f"{name} {value!r} is neither True nor False")
    return bool(value)


def is_list(value: object) -> bool:
    """Return whether a parameter is a list of values, and not one value."""
    return isinstance(value, list | tuple | np.ndarray)


def positive_values(name: str, value: object) -> list[float]:
    """Return one number above 0 as a list of it, or a list of them, ascending, each once.

    Raises:
        UserError: It is neither, or the list is empty.
    """
    if not is_list(value):
        return [positive(name, value)]
    values = sorted({positive(name, item) for item in value})  # type: ignore[attr-defined]
    if not values:
        raise UserError(f"{name} is an empty list; give one number or more")
    return values
