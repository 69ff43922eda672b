"""Names and places of all files of a store."""

from __future__ import annotations

import re

from bertfeat.choices import Level
from bertfeat.records import ShardSpec

METADATA_KEY = "bertfeat"

MANIFESTS = "manifests"
PRIVATE = "_bertfeat"
LOCK = f"{PRIVATE}/lock"
WORK = f"{PRIVATE}/work"
TMP = f"{PRIVATE}/tmp"

# A plan without shards still needs one empty part per level, so that the store has a schema.
EMPTY_SHARD = ShardSpec(index=0, first_row=0, n_rows=0, slices=())

_VERSION = re.compile(rf"{MANIFESTS}/(\d{{5,}})\.json")
_PART = re.compile(rf"(?:{'|'.join(Level)})/part-\d{{5,}}-[0-9a-f]{{8}}\.parquet")
_OF_WORK = re.compile(rf"{WORK}/([0-9a-f]{{64}})/(?:plan\.json|\d{{5,}}\.json|\d{{5,}}\.bad\.jsonl)")
_OTHER = re.compile(rf"{LOCK}|{TMP}/[a-z0-9._-]+\.tmp")


def manifest_path(version: int) -> str:
    """Return the path of a version's manifest, relative to the store, with forward slashes."""
    return f"{MANIFESTS}/{version:05d}.json"


def version_of(name: str) -> int | None:
    """Return the version whose manifest has this path; None for another path."""
    match = _VERSION.fullmatch(name)
    return None if match is None else int(match[1])


def part_path(level: Level, shard: int, plan_hash: str) -> str:
    """Return a part's path: it names the shard and the plan, so that no other plan writes it."""
    return f"{level}/part-{shard:05d}-{plan_hash[:8]}.parquet"


def work_path(plan_hash: str) -> str:
    """Return the path of the folder of a plan's work."""
    return f"{WORK}/{plan_hash}"


def plan_path(plan_hash: str) -> str:
    """Return the path of a plan."""
    return f"{work_path(plan_hash)}/plan.json"


def receipt_path(plan_hash: str, shard: int) -> str:
    """Return the path of a shard's receipt."""
    return f"{work_path(plan_hash)}/{shard:05d}.json"


def quarantine_path(plan_hash: str, shard: int) -> str:
    """Return the path of a shard's set-aside rows."""
    return f"{work_path(plan_hash)}/{shard:05d}.bad.jsonl"


def is_part(name: str) -> bool:
    """Return whether a path is that of a part."""
    return _PART.fullmatch(name) is not None


def work_of(name: str) -> str | None:
    """Return the hash of the plan whose work a path belongs to; None for another path."""
    match = _OF_WORK.fullmatch(name)
    return None if match is None else match[1]


def is_piece(name: str) -> bool:
    """Return whether a path is that of a file that a store may hold."""
    return any(pattern.fullmatch(name) for pattern in (_VERSION, _PART, _OF_WORK, _OTHER))


def is_folder(name: str) -> bool:
    """Return whether a path is that of a folder of a store on a disk."""
    return name in {*Level, MANIFESTS, PRIVATE, WORK, TMP} or re.fullmatch(rf"{WORK}/[0-9a-f]{{64}}", name) is not None
