"""Plan files of a store: read, written, and compared with the plan of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertfeat.config import ExtractConfig
from bertfeat.durable.differences import ABSENT, Fields, differing, listed_texts, shown
from bertfeat.durable.records import hash_of_json, seal, unseal
from bertfeat.errors import PlanMismatch, StoreError
from bertfeat.records import FORMAT_VERSION, InputFile, Plan, by_level
from bertfeat.storage import AnyPath, ObjectPath
from bertfeat.store import layout
from bertfeat.store.folder import Folder, folder_at
from bertfeat.store.manifest import COMPACTED, IMPORTED

#: Fields of a plan that name the model. The digests of the model decide the vectors; imported ones have none.
MODEL_NAMES = ("model", "revision")
#: The field of a plan with the digest of a file of spans, which decides in place of its path.
SPANS_DIGEST = "spans_digest"
#: The name under which differing inputs are listed.
INPUTS = "inputs"

_SETTINGS = {field.name for field in dataclasses.fields(ExtractConfig)}
_WORDS = {
    "model.weights_sha256": "the digest of the model's weights",
    "model.tokenizer_sha256": "the digest of the model's tokenizer",
    "model.config_sha256": "the digest of the model's config.json",
    "model.sentence_sha256": "the digest of the model's sentence embedding",
    SPANS_DIGEST: "the digest of the file of `spans`",
    "own_columns": "the list of the format's own columns",
    "device_kind": "the kind of device",
    "format_version": "the version of the format",
    "vector_columns": "`vector_columns`",
}
_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_MAX_FILES = 3
# Inputs without a path, as plans name them.
_UNNAMED = {"-": "standard input", "<frame>": "the data frame"}


class PlanDamaged(StoreError):
    """A plan exists and cannot be read."""


def hash_of_plan(fields: Mapping[str, Any], inputs: Sequence[InputFile]) -> str:
    """Return the hash of a plan. Inputs and the model are known by their bytes, not by their paths and names."""
    left_out = () if IMPORTED in fields else names_only(fields)
    decisive = {name: value for name, value in fields.items() if name not in left_out}
    return hash_of_json([decisive, [(file.format, file.digest) for file in inputs]])


def names_only(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields that only name what other fields decide by digests: the model, and a file of spans."""
    return (*MODEL_NAMES, *(("spans",) if SPANS_DIGEST in fields else ()))


def write_plan(folder: Folder, plan: Plan) -> None:
    """Write a plan."""
    folder.write(layout.plan_path(plan.plan_hash), seal(plan), "plan")


def read_plan(place: str | Path | ObjectPath | Folder, plan_hash: str) -> Plan | None:
    """Return a plan of the store at `place`, without locking it; None without one of this hash."""
    folder = place if isinstance(place, Folder) else folder_at(place)
    file = folder.path / layout.plan_path(plan_hash)
    try:
        plan = unseal(Plan, folder.read(layout.plan_path(plan_hash)), newest=FORMAT_VERSION)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except StoreError as error:
        raise StoreError(f"{file}: {error}") from error
    except (OSError, ValueError) as error:
        raise PlanDamaged(f"{file}: {error}; run the command that made the store again, or use `overwrite`") from error
    return dataclasses.replace(plan, schemas=by_level(plan.schemas))


def plan_hashes(folder: Folder) -> list[str]:
    """Return the hashes of the plans whose work lies in a store, sorted."""
    return sorted({work for work in map(layout.work_of, folder.listing()) if work is not None})


def check_same_plan(path: AnyPath, stored: Plan, plan: Plan, *, has_grown: bool = False) -> None:
    """Refuse to continue a store that was made with other settings or inputs."""
    if stored.plan_hash == plan.plan_hash:
        return
    left_out = {"base", COMPACTED, *names_only(plan.fields)} - {*MODEL_NAMES}
    fields = differing(*({n: v for n, v in p.fields.items() if n not in left_out} for p in (stored, plan)))
    if [(file.format, file.digest) for file in stored.inputs] != [(file.format, file.digest) for file in plan.inputs]:
        fields[INPUTS] = ([file.digest for file in stored.inputs], [file.digest for file in plan.inputs])
    if IMPORTED in fields:
        made = "imported" if IMPORTED in stored.fields else "extracted from a corpus"
        raise PlanMismatch(f"{path}: holds a store that was {made}; use another folder or `overwrite`", fields)
    remedy = "use another folder or `overwrite`"
    if has_grown:
        remedy = "the store has grown; pass new inputs with `append`, or use another folder"
    elif _only_adds(fields, stored.inputs, plan.inputs):
        remedy = "pass the new ones alone with `append`, or use another folder or `overwrite`"
    what = "inputs" if [*fields] == [INPUTS] else "settings"
    text = f"{path}: made with other {what}: {changes(fields, stored.inputs, plan.inputs)}; {remedy}"
    raise PlanMismatch(text, fields)


def changes(fields: Fields, before: Sequence[InputFile] = (), now: Sequence[InputFile] = ()) -> str:
    """Return the differing fields of two plans as text, the stored value first; `before` and `now` are their inputs.

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


def _only_adds(fields: Mapping[str, object], before: Sequence[InputFile], now: Sequence[InputFile]) -> bool:
    """Return whether two plans differ only in further inputs after the same ones."""
    same = [file.digest for file in now[: len(before)]] == [file.digest for file in before]
    return same and len(now) > len(before) and [*fields] == [INPUTS]
