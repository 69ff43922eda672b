"""Plan file of a store: read, written, and compared with the plan of a run."""

from __future__ import annotations

from pathlib import Path

from bertfeat.durable.decoding import check_version
from bertfeat.durable.differences import differing
from bertfeat.durable.files import os_errors
from bertfeat.errors import PlanMismatch, StoreError
from bertfeat.records import Plan
from bertfeat.storage import AnyPath, ObjectPath
from bertfeat.store import codec, layout
from bertfeat.store.folder import Folder
from bertfeat.store.openfolder import folder_at
from bertfeat.store.plandifferences import changes, only_adds
from bertfeat.store.planstates import IMPORTED, check_states, fields_of, is_of_inputs
from bertfeat.store.vectorlayout import VectorLayout

_last: codec.LastFile[Plan] = codec.LastFile()


class PlanDamaged(StoreError):
    """A plan.json exists and cannot be read."""


def write_plan(folder: Folder, plan: Plan) -> None:
    """Write a store's plan.json.

    Raises:
        RunError: The system refused a write.
    """
    content = {"format_version": layout.version_of(plan.appends), "plan": codec.plan_to_json(plan)}
    data = codec.seal(content, compact=bool(plan.appends))
    folder.write(layout.PLAN, data, "plan")
    if plan.appends:
        _last.keep(folder.path / layout.PLAN, data, plan)


def read_plan(place: str | Path | ObjectPath | Folder, *, follow_links: bool = False) -> Plan | None:
    """Return the plan of the store at `place`, without locking it; None if there is no plan.

    Raises:
        PlanDamaged: The plan.json is damaged or edited.
        StoreError: The plan is of a newer format.
    """
    folder = folder_at(place)
    file = folder.path / layout.PLAN
    try:
        data = folder.read(layout.PLAN, follow_links=follow_links)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _damaged(file, error) from error
    return plan_of(data, file)


def plan_of(data: bytes, file: AnyPath) -> Plan:
    """Return the plan in the bytes of a plan.json; `file` is named in errors.

    Raises:
        PlanDamaged: The bytes are damaged or edited.
        StoreError: The plan is of a newer format.
    """
    try:
        return _last.of(file, data, lambda: _plan_in(data, file))
    except ValueError as error:
        raise _damaged(file, error) from error


def _damaged(file: AnyPath, error: Exception) -> PlanDamaged:
    return PlanDamaged(f"{file}: {error}; run the command that made the store again, or use `overwrite`")


def _plan_in(data: bytes, file: AnyPath) -> Plan:
    content = codec.unseal(data)
    check_version(file, content, layout.GROWN_VERSION)
    plan = codec.plan_from_json(content.get("plan"))
    check_states(plan)
    VectorLayout.of(plan)
    if plan.kept_schema is not None:
        from bertfeat.store.schema import kept_types

        kept_types(plan)
    return plan


def check_same_plan(path: AnyPath, stored: Plan, plan: Plan) -> None:
    """Refuse to resume a store that was made with other settings or inputs.

    Raises:
        PlanMismatch: The plans differ; the message lists what was and what is now.
    """
    if stored.plan_hash == plan.plan_hash:
        return
    fields = differing(fields_of(stored), fields_of(plan)) or {"plan_hash": (stored.plan_hash, plan.plan_hash)}
    if IMPORTED in fields:
        made = "imported" if IMPORTED in stored.fields else "extracted from a corpus"
        raise PlanMismatch(f"{path}: holds a store that was {made}; use another folder or `overwrite`", fields)
    remedy = "use another folder or `overwrite`"
    if stored.appends:
        remedy = "the store has grown; pass new inputs with `append`, or use another folder"
    elif only_adds(fields, stored.inputs, plan.inputs):
        remedy = "pass the new ones alone with `append`, or use another folder or `overwrite`"
    what = "inputs" if all(map(is_of_inputs, fields)) else "settings"
    text = f"{path}: made with other {what}: {changes(fields, stored.inputs, plan.inputs)}; {remedy}"
    raise PlanMismatch(text, fields)


@os_errors(StoreError)
def is_complete(path: AnyPath) -> bool:
    """Return whether a store has its manifest, which is written last.

    Raises:
        StoreError: The system refused.
    """
    return (path / layout.MANIFEST).exists()
