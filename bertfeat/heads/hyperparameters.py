"""Checks of the parameters of probes. They run when a probe is fitted, as scikit-learn's conventions ask.

Each check returns the value, or raises a `UserError` with the name, the value and what it must be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from bertfeat.errors import UserError, did_you_mean


def positive(name: str, value: object) -> float:
    """Return a number above 0."""
    return float(_checked(name, value, Real, lambda number: 0 < number < math.inf, "a number above 0"))


def not_negative(name: str, value: object) -> float:
    """Return a number of 0 or more."""
    return float(_checked(name, value, Real, lambda number: 0 <= number < math.inf, "a number of 0 or more"))


def share(name: str, value: object) -> float:
    """Return a number of 0 or more and below 1."""
    return float(_checked(name, value, Real, lambda number: 0 <= number < 1, "a number of 0 or more and below 1"))


def fraction(name: str, value: object) -> float:
    """Return a number between 0 and 1."""
    return float(_checked(name, value, Real, lambda number: 0 < number < 1, "a number between 0 and 1"))


def positive_integer(name: str, value: object) -> int:
    """Return a whole number of 1 or more."""
    return int(_checked(name, value, Integral, lambda number: number >= 1, "a whole number of 1 or more"))


def seed_number(name: str, value: object) -> int:
    """Return a whole number that torch takes as a seed."""
    fits = lambda number: 0 <= number < 1 << 63  # noqa: E731
    return int(_checked(name, value, Integral, fits, "a whole number of 0 or more and below 2**63"))


def choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return one of the choices."""
    if not isinstance(value, str) or value not in choices:
        near = did_you_mean(value, choices)
        raise UserError(f"{name} {value!r} must be one of {', '.join(choices)}" + (f"; {near}" if near else ""))
    return value


def flag(name: str, value: object) -> bool:
    """Return True or False."""
    if not isinstance(value, bool | np.bool_):
        raise UserError(f"{name} {value!r} is neither True nor False")
    return bool(value)


def is_list(value: object) -> bool:
    """Return whether a parameter is a list of values, and not one value."""
    return isinstance(value, list | tuple | np.ndarray)


def penalties(name: str, given: Any, check: Callable[[str, object], float], *, has_dev: bool) -> list[float]:
    """Return the values of a penalty to try: one number, or each number of a list once, ascending.

    Args:
        name: The parameter.
        given: Its value.
        check: Checks one number.
        has_dev: Whether there is a dev split; a list needs one.
    """
    if not is_list(given):
        return [check(name, given)]
    if not has_dev:
        raise UserError(f"{name} is a list and there is no dev split to choose from it; pass dev, or one number")
    if not len(given):
        raise UserError(f"{name} is an empty list; give one number or more")
    return sorted({check(name, value) for value in given})


def _checked(name: str, value: Any, kind: type, fits: Callable[[Any], bool], what: str) -> Any:
    if isinstance(value, bool | np.bool_) or not isinstance(value, kind) or not fits(value):
        raise UserError(f"{name} {value!r} is not {what}")
    return value
