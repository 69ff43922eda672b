"""Growth of a store's plan: the states it has had, one for each append, and the shards of each."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertfeat.records import Append, InputFile, Plan, ShardSpec
from bertfeat.store.codec import hash_fields

# The plan field that lists the first input of each append; without appends there is no such field.
APPENDS = "appends"
# The plan field of a compacted store: the first row of each of its shards.
COMPACTED = "compacted"
_N_INPUTS = "n_inputs"


def states(plan: Plan) -> tuple[str, ...]:
    """Return the hash of the plan after the first extraction and after each append; the last one is the plan's own."""
    return (*(append.before for append in plan.appends), plan.plan_hash)


def hash_of(plan: Plan, shard: int) -> str:
    """Return the hash that the receipt and the parts of a shard repeat: that of the state that brought the shard."""
    return shard_hash(plan.plan_hash, plan.appends, shard)


def shard_hash(plan_hash: str, appends: Sequence[Append], shard: int) -> str:
    """Return `hash_of` from the two entries of a manifest."""
    later = bisect_right(appends, shard, key=lambda append: append.first_shard)
    return appends[later].before if later < len(appends) else plan_hash


def state_of(plan: Plan, plan_hash: str) -> Plan | None:
    """Return the plan as it was when it had this hash; None if it never had.

    The state after the first extraction is the plan that `extract` made.
    """
    if plan_hash == plan.plan_hash:
        return plan
    found = states(plan)
    if plan_hash not in found:
        return None
    first = found.index(plan_hash)
    dropped, appends = plan.appends[first], plan.appends[:first]
    return dataclasses.replace(
        plan,
        plan_hash=plan_hash,
        fields=fields_with(plan.fields, plan.inputs[: dropped.first_input], appends),
        inputs=plan.inputs[: dropped.first_input],
        shards=plan.shards[: dropped.first_shard],
        metadata={**plan.metadata, "plan_hash": plan_hash},
        appends=appends,
    )


def grown(plan: Plan, inputs: Sequence[InputFile], shards: Sequence[ShardSpec]) -> Plan:
    """Return a plan with one more append: its inputs, and its shards, which are numbered after those of the plan."""
    appends = (*plan.appends, Append(plan.plan_hash, len(plan.inputs), len(plan.shards)))
    fields = fields_with(plan.fields, (*plan.inputs, *inputs), appends)
    plan_hash = hash_fields(fields)
    return dataclasses.replace(
        plan,
        plan_hash=plan_hash,
        fields=fields,
        inputs=(*plan.inputs, *inputs),
        shards=(*plan.shards, *shards),
        metadata={**plan.metadata, "plan_hash": plan_hash},
        appends=appends,
    )


def later_first(plan: Plan) -> Iterator[Plan]:
    """Yield the states of a plan, the last one first."""
    yield plan
    for append in reversed(plan.appends):
        state = state_of(plan, append.before)
        if state is not None:
            yield state


def fields_with(fields: Mapping[str, Any], inputs: Sequence[InputFile], appends: Sequence[Append]) -> dict[str, Any]:
    """Return plan fields with other inputs."""
    kept = {name: value for name, value in fields.items() if name != APPENDS and not is_of_inputs(name)}
    kept |= input_fields(inputs)
    return kept | ({APPENDS: [append.first_input for append in appends]} if appends else {})


def is_of_inputs(name: str) -> bool:
    """Return whether a plan field describes the inputs."""
    return name == _N_INPUTS or name.startswith("input.")


def input_fields(inputs: Sequence[InputFile]) -> dict[str, Any]:
    """Return the plan fields of inputs, which are known by their formats and bytes, not by their paths."""
    fields: dict[str, Any] = {_N_INPUTS: len(inputs)}
    for number, file in enumerate(inputs):
        fields[f"input.{number}.format"] = file.format
        fields[f"input.{number}.digest"] = file.digest
    return fields
