"""Records to JSON and back, exactly, and the seal that shows whether a JSON file was damaged or edited."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import xxhash

from bertfeat.config import Level
from bertfeat.records import (
    Column,
    FeatureColumn,
    FileSlice,
    InputFile,
    LevelSchema,
    ModelInfo,
    PartInfo,
    Plan,
    Receipt,
    ShardSpec,
)

_SEAL = "check"


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no blanks, ASCII.

    Raises:
        ValueError: A number is not finite.

    Example:
        >>> canonical_json({"b": [1, 2], "a": None})
        '{"a":null,"b":[1,2]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def seal(content: Mapping[str, Any]) -> bytes:
    """Return a JSON file's bytes for an object, with the digest of its content under the key `check`."""
    sealed = {**content, _SEAL: _digest(content)}
    return (json.dumps(sealed, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def unseal(data: bytes) -> dict[str, Any]:
    """Return the object in a sealed JSON file.

    Raises:
        ValueError: The bytes are no JSON object, or its content is not what was sealed.
    """
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    if content.pop(_SEAL, None) != _digest(content):
        raise ValueError("damaged or edited: its content does not match its check value")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(canonical_json(dict(content)).encode())


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain JSON values; `plan_from_json` of them is equal to it."""
    return {
        "plan_hash": plan.plan_hash,
        "fields": dict(plan.fields),
        "inputs": [asdict(file) for file in plan.inputs],
        "model": asdict(plan.model),
        "schemas": {str(level): schema_to_json(schema) for level, schema in plan.schemas.items()},
        "shards": [asdict(shard) for shard in plan.shards],
        "metadata": dict(plan.metadata),
        "kept_schema": plan.kept_schema,
    }


def plan_from_json(content: Mapping[str, Any]) -> Plan:
    """Return the plan that `plan_to_json` made plain.

    Raises:
        KeyError, TypeError, ValueError: The content is no plan.
    """
    schemas = {Level(name): schema_from_json(Level(name), schema) for name, schema in content["schemas"].items()}
    return Plan(
        plan_hash=content["plan_hash"],
        fields=content["fields"],
        inputs=tuple(InputFile(**file) for file in content["inputs"]),
        model=ModelInfo(**content["model"]),
        # JSON objects are written with sorted keys; the order of the levels is that of the enum.
        schemas={level: schemas[level] for level in Level if level in schemas},
        shards=tuple(_shard_from_json(shard) for shard in content["shards"]),
        metadata=content["metadata"],
        kept_schema=content["kept_schema"],
    )


def _shard_from_json(content: Mapping[str, Any]) -> ShardSpec:
    slices = tuple(FileSlice(**piece) for piece in content["slices"])
    return ShardSpec(content["index"], content["first_row"], content["n_rows"], slices)


def schema_to_json(schema: LevelSchema) -> dict[str, Any]:
    """Return the columns of a level as plain JSON values."""
    return {
        "columns": [asdict(column) for column in schema.columns],
        "features": [{**asdict(feature), "layers": list(feature.layers)} for feature in schema.features],
    }


def schema_from_json(level: Level, content: Mapping[str, Any]) -> LevelSchema:
    """Return the level schema that `schema_to_json` made plain.

    Raises:
        KeyError, TypeError: The content is no schema.
    """
    features = (FeatureColumn(**{**feature, "layers": tuple(feature["layers"])}) for feature in content["features"])
    return LevelSchema(level, tuple(Column(**column) for column in content["columns"]), tuple(features))


def part_to_json(part: PartInfo) -> dict[str, Any]:
    """Return a part's entry as plain JSON values."""
    return {**asdict(part), "level": str(part.level)}


def part_from_json(content: Mapping[str, Any]) -> PartInfo:
    """Return the part entry that `part_to_json` made plain.

    Raises:
        KeyError, TypeError, ValueError: The content is no part entry.
    """
    return PartInfo(**{**content, "level": Level(content["level"])})


def receipt_to_json(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as plain JSON values; `receipt_from_json` of them is equal to it."""
    return {
        "shard": receipt.shard,
        "plan_hash": receipt.plan_hash,
        "parts": [part_to_json(part) for part in receipt.parts],
        "n_bad_rows": receipt.n_bad_rows,
        "counts": dict(receipt.counts),
        "seconds": dict(receipt.seconds),
        "created_at": receipt.created_at,
        "notes": dict(receipt.notes),
    }


def receipt_from_json(content: Mapping[str, Any]) -> Receipt:
    """Return the receipt that `receipt_to_json` made plain.

    Raises:
        KeyError, TypeError, ValueError: The content is no receipt.
    """
    return Receipt(**{**content, "parts": tuple(part_from_json(part) for part in content["parts"])})
