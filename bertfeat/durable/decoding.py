"""Checked decoding of JSON values into records: a mistyped value or a missing key is one error, with its place."""

from __future__ import annotations

import base64
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar, cast

from bertfeat.errors import StoreError

_T = TypeVar("_T")
_Read = Callable[[Any], Any]
_MAX_INT = 2**63


class Mistyped(ValueError):
    """A JSON value has the wrong type for its place."""

    def __init__(self, reason: str, *place: str) -> None:
        super().__init__(f"{'.'.join(place)}: {reason}" if place else reason)
        self.reason = reason
        self.place = place

    def within(self, name: object) -> Mistyped:
        """Return the same error inside an entry of this name."""
        return Mistyped(self.reason, str(name), *self.place)


def decode(kind: type[_T], value: Any, *place: str) -> _T:
    """Return a JSON value as a record or another type.

    Args:
        kind: A dataclass, an enum, `int` (0 to 2**63 - 1), `float`, `str`, `bool`, `bytes` (base64), `Any`, a union
            with None, or `tuple[X, ...]` or `Mapping[X, Y]` of these. Objects become dataclasses, lists tuples.
        value: The JSON value.
        place: The names of the entries that hold it, for the message.

    Raises:
        ValueError: The value has the wrong type, or a key is missing or unknown; the message has its place.

    Examples:
        >>> decode(tuple[int, ...], [1, "2"])
        Traceback (most recent call last):
        ...
        bertfeat.durable.decoding.Mistyped: 1: '2' is not a whole number from 0 on
    """
    read = _reader(cast("Any", kind))
    for name in reversed(place):
        read = functools.partial(_at, name, read)
    return cast("_T", read(value))


def check_version(where: object, content: Mapping[str, Any], newest: int) -> None:
    """Refuse a file that a newer bertfeat wrote.

    Args:
        where: The file, for the message.
        content: Its JSON object.
        newest: The newest format that this version reads.

    Raises:
        StoreError: The format is newer.
        ValueError: There is no format version.
    """
    version = content.get("format_version")
    if type(version) is not int:
        raise ValueError("it has no format_version")
    if version > newest:
        raise StoreError(f"{where}: format_version {version}, this bertfeat reads up to {newest}; upgrade bertfeat")


@functools.cache
def _reader(kind: Any) -> _Read:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin in (types.UnionType, typing.Union):
        inner = _reader(next(argument for argument in arguments if argument is not types.NoneType))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return functools.partial(_list, _reader(arguments[0]))
    if origin is Mapping:
        return functools.partial(_mapping, _reader(arguments[0]), _reader(arguments[1]))
    if dataclasses.is_dataclass(kind):
        return _record(kind)
    if issubclass(kind, Enum):
        return functools.partial(_member, kind)
    return _PLAIN[kind]


def _plain(kinds: tuple[type, ...], what: str) -> _Read:
    def read(value: Any) -> Any:
        if type(value) not in kinds:
            raise Mistyped(f"{value!r:.60} is not {what}")
        return value

    return read


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX_INT:
        raise Mistyped(f"{value!r:.60} is not a whole number from 0 on")
    return value


_string = _plain((str,), "a string")


def _base64(value: Any) -> bytes:
    text = _string(value)
    try:
        return base64.b64decode(text)
    except ValueError:
        raise Mistyped(f"{text!r:.60} is not base64") from None


_PLAIN: dict[type, _Read] = {
    int: _whole,
    float: _plain((int, float), "a number"),
    str: _string,
    bool: _plain((bool,), "true or false"),
    bytes: _base64,
}
_object = _plain((dict,), "an object")
_array = _plain((list, tuple), "a list")


def _member(kind: type[Enum], value: Any) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise Mistyped(f"{value!r:.60} is not one of {', '.join(str(member.value) for member in kind)}") from None


def _at(name: object, read: _Read, value: Any) -> Any:
    """Read the entry with this name of a list or object."""
    try:
        return read(value)
    except Mistyped as error:
        raise error.within(name) from None


def _list(inner: _Read, value: Any) -> tuple[Any, ...]:
    items, found = _array(value), []
    try:
        for item in items:
            found.append(inner(item))  # noqa: PERF401
    except Mistyped as error:
        raise error.within(len(found)) from None
    return tuple(found)


def _mapping(keys: _Read, inner: _Read, value: Any) -> dict[Any, Any]:
    return {_at(name, keys, name): _at(name, inner, item) for name, item in _object(value).items()}


def _record(kind: Any) -> _Read:
    hints = typing.get_type_hints(kind)
    fields = {field.name: _reader(hints[field.name]) for field in dataclasses.fields(kind)}
    no_default = (dataclasses.MISSING, dataclasses.MISSING)
    required = {f.name for f in dataclasses.fields(kind) if (f.default, f.default_factory) == no_default}

    def read(value: Any) -> Any:
        content = _object(value)
        if content.keys() != fields.keys() and (odd := required - content.keys() | content.keys() - fields.keys()):
            raise Mistyped(f"missing or unknown keys: {', '.join(map(ascii, sorted(odd)))}")
        try:
            return kind(**{name: fields[name](item) for name, item in content.items()})
        except Mistyped:
            # Read again for the place, which would cost a call for each entry.
            return kind(**{name: _at(name, fields[name], item) for name, item in content.items()})

    return read
