"""Plan files of a store: read, written, and compared with the plan of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertfeat.durable.differences import differing
from bertfeat.durable.records import hash_of_json, seal, unseal
from bertfeat.errors import PlanMismatch, StoreError
from bertfeat.records import FORMAT_VERSION, InputFile, Plan, by_level
from bertfeat.storage import AnyPath, ObjectPath
from bertfeat.store import layout
from bertfeat.store.folder import Folder, folder_at
from bertfeat.store.manifest import COMPACTED, IMPORTED
from bertfeat.store.plandifferences import INPUTS, changes, only_adds

#: Fields of a plan that name the model. The digests of the model decide the vectors; imported ones have none.
MODEL_NAMES = ("model", "revision")


class PlanDamaged(StoreError):
    """A plan exists and cannot be read."""


def hash_of_plan(fields: Mapping[str, Any], inputs: Sequence[InputFile]) -> str:
    """Return the hash of a plan. Inputs and the model are known by their bytes, not by their paths and names."""
    left_out = () if IMPORTED in fields else MODEL_NAMES
    decisive = {name: value for name, value in fields.items() if name not in left_out}
    return hash_of_json([decisive, [(file.format, file.digest) for file in inputs]])


def write_plan(folder: Folder, plan: Plan) -> None:
    """Write a plan.

    Raises:
        RunError: The system refused.
    """
    folder.write(layout.plan_path(plan.plan_hash), seal(plan), "plan")


def read_plan(place: str | Path | ObjectPath | Folder, plan_hash: str) -> Plan | None:
    """Return a plan of the store at `place`, without locking it; None without one of this hash.

    Raises:
        PlanDamaged: The file is damaged or edited.
        StoreError: The plan is of a newer format.
    """
    folder = place if isinstance(place, Folder) else folder_at(place)
    file = folder.path / layout.plan_path(plan_hash)
    try:
        plan = unseal(Plan, folder.read(layout.plan_path(plan_hash), follow_links=True), newest=FORMAT_VERSION)
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
    """Refuse to continue a store that was made with other settings or inputs.

    Raises:
        PlanMismatch: The plans differ; the message lists what was and what is now.
    """
    if stored.plan_hash == plan.plan_hash:
        return
    fields = differing(*({n: v for n, v in p.fields.items() if n not in ("base", COMPACTED)} for p in (stored, plan)))
    if [(file.format, file.digest) for file in stored.inputs] != [(file.format, file.digest) for file in plan.inputs]:
        fields[INPUTS] = ([file.digest for file in stored.inputs], [file.digest for file in plan.inputs])
    if IMPORTED in fields:
        made = "imported" if IMPORTED in stored.fields else "extracted from a corpus"
        raise PlanMismatch(f"{path}: holds a store that was {made}; use another folder or `overwrite`", fields)
    remedy = "use another folder or `overwrite`"
    if has_grown:
        remedy = "the store has grown; pass new inputs with `append`, or use another folder"
    elif only_adds(fields, stored.inputs, plan.inputs):
        remedy = "pass the new ones alone with `append`, or use another folder or `overwrite`"
    what = "inputs" if [*fields] == [INPUTS] else "settings"
    text = f"{path}: made with other {what}: {changes(fields, stored.inputs, plan.inputs)}; {remedy}"
    raise PlanMismatch(text, fields)
