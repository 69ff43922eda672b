"""Growth of a store's plan: the states it has had, one for each append, and the shards of each."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from bertfeat.records import Append, InputFile, Plan, ShardSpec
from bertfeat.store.codec import Metadata, hash_fields

APPENDS = "appends"
# The plan field of a compacted store: the first row of each of its shards.
COMPACTED = "compacted"
# The plan field and the metadata of a store of vectors that another program made; also the family of its model.
IMPORTED = "imported"
_N_INPUTS = "n_inputs"


def states(plan: Plan) -> tuple[str, ...]:
    """Return the hash of the plan after the first extraction and after each append; the last one is the plan's own."""
    return (*(append.before for append in plan.appends), plan.plan_hash)


def number_of(plan: Plan, plan_hash: str) -> int | None:
    """Return how many appends a plan had when it had this hash; None if it never had."""
    if plan_hash == plan.plan_hash:
        return len(plan.appends)
    # The last one first: it is what most callers look for.
    later = (number for number in reversed(range(len(plan.appends))) if plan.appends[number].before == plan_hash)
    return next(later, None)


def states_with(plan: Plan, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the states of a plan if its first extraction had these fields."""
    found = [hash_fields(fields)]
    for first, end in pairwise([*(append.first_input for append in plan.appends), len(plan.inputs)]):
        found.append(_hash_after(found[-1], plan.inputs[first:end]))
    return tuple(found)


def check_states(plan: Plan) -> None:
    """Raise ValueError if the hashes of a plan do not follow from its fields and inputs."""
    if states(plan) != states_with(plan, plan.fields):
        raise ValueError("its plan_hash is not that of its fields")


def _hash_after(before: str, inputs: Sequence[InputFile]) -> str:
    """Return the hash of a plan after an append of inputs."""
    return hash_fields({"before": before} | input_fields(inputs))


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
    number = number_of(plan, plan_hash)
    if number is None or number == len(plan.appends):
        return None if number is None else plan
    dropped, appends = plan.appends[number], plan.appends[:number]
    return _with(plan, plan_hash, plan.inputs[: dropped.first_input], plan.shards[: dropped.first_shard], appends)


def grown(plan: Plan, inputs: Sequence[InputFile], shards: Sequence[ShardSpec]) -> Plan:
    """Return a plan with one more append: its inputs, and its shards, which are numbered after those of the plan."""
    appends = (*plan.appends, Append(plan.plan_hash, len(plan.inputs), len(plan.shards)))
    return _with(plan, _hash_after(plan.plan_hash, inputs), (*plan.inputs, *inputs), (*plan.shards, *shards), appends)


def _with(
    plan: Plan,
    plan_hash: str,
    inputs: tuple[InputFile, ...],
    shards: tuple[ShardSpec, ...],
    appends: tuple[Append, ...],
) -> Plan:
    metadata = Metadata({**plan.metadata, "plan_hash": plan_hash})
    return dataclasses.replace(
        plan, plan_hash=plan_hash, inputs=inputs, shards=shards, metadata=metadata, appends=appends
    )


def later_first(plan: Plan) -> Iterator[Plan]:
    """Yield the states of a plan, the last one first."""
    yield plan
    for append in reversed(plan.appends):
        state = state_of(plan, append.before)
        if state is not None:
            yield state


def fields_of(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan with the inputs of all its appends, and the number of the first one of each."""
    if not plan.appends:
        return {**plan.fields}
    appends = {APPENDS: [append.first_input for append in plan.appends]}
    return {**plan.fields, **input_fields(plan.inputs), **appends}


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
