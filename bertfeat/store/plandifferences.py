"""Words for the differences between two plans: settings under their names, inputs under theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from bertfeat.config import ExtractConfig
from bertfeat.durable.differences import ABSENT, Fields, listed_texts, shown
from bertfeat.records import InputFile

#: The name under which differing inputs are listed.
INPUTS = "inputs"

_SETTINGS = {field.name for field in dataclasses.fields(ExtractConfig)}
_WORDS = {
    "model.weights_sha256": "the digest of the model's weights",
    "model.tokenizer_sha256": "the digest of the model's tokenizer",
    "model.config_sha256": "the digest of the model's config.json",
    "model.sentence_sha256": "the digest of the model's sentence embedding",
    "own_columns": "the list of the format's own columns",
    "device_kind": "the kind of device",
    "format_version": "the version of the format",
    "vector_columns": "`vector_columns`",
}
_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_MAX_FILES = 3
# Inputs without a path, as plans name them.
_UNNAMED = {"-": "standard input", "<frame>": "the data frame"}


def changes(fields: Fields, before: Sequence[InputFile] = (), now: Sequence[InputFile] = ()) -> str:
    """Return the differing fields of two plans as text, the stored value first.

    Args:
        fields: The fields, as `differing` returns them.
        before: The inputs of the stored plan.
        now: The inputs of the other plan.

    Examples:
        >>> changes({"shard_bytes": (256_000_000, 500_000), "id_column": (None, "key")})
        "`shard_bytes` was 256MB, now 500kB; `id_column` was not set, now 'key'"
    """
    settings = (_changed(name, *pair) for name, pair in fields.items() if name != INPUTS)
    return listed_texts([*(_inputs(before, now) if INPUTS in fields else ()), *settings])


def _changed(name: str, old: object, new: object) -> str:
    label = f"`{name}`" if name in _SETTINGS else _WORDS.get(name, name.replace("versions.", "the version of "))
    return f"{label} was {_value(name, old)}, now {_value(name, new)}"


def _value(name: str, value: object) -> str:
    if value is ABSENT or value is None or value == []:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(map(str, value))
    if name == "shard_bytes" and isinstance(value, int):
        return next((f"{value // size}{unit}" for unit, size in _UNITS if value % size == 0), str(value))
    return shown(value)


def _inputs(before: Sequence[InputFile], now: Sequence[InputFile]) -> Iterator[str]:
    """Yield what is different about the inputs."""
    if len(before) != len(now):
        yield f"the inputs were {_named(before)}, now {_named(now)}"
    for number, (old, new) in enumerate(zip(before, now, strict=False)):
        path = _path(new)
        if old.digest != new.digest and old.path == new.path:
            yield f"{path} has changed since the store was made"
        elif old.digest != new.digest and len(before) == len(now):
            yield f"input {number + 1} was {_path(old)}, now {path}"
        if old.format != new.format:
            yield f"{path} was read as {old.format}, now as {new.format}"


def _named(files: Sequence[InputFile]) -> str:
    more = len(files) - _MAX_FILES
    return ", ".join(map(_path, files[:_MAX_FILES])) + (f" and {more} more" if more > 0 else "")


def _path(file: InputFile) -> str:
    return _UNNAMED.get(file.path, file.path)


def only_adds(fields: Mapping[str, object], before: Sequence[InputFile], now: Sequence[InputFile]) -> bool:
    """Return whether two plans differ only in further inputs after the same ones."""
    same = [file.digest for file in now[: len(before)]] == [file.digest for file in before]
    return same and len(now) > len(before) and [*fields] == [INPUTS]
