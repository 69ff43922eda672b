"""Names and places of all files of a store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from bertfeat.choices import Level
from bertfeat.records import Append, ShardSpec

FORMAT_VERSION = 1
# The version that plan and manifest of a store with appends have; older versions of bertfeat cannot read it.
GROWN_VERSION = 2
METADATA_KEY = "bertfeat"

MANIFEST = "manifest.json"
PRIVATE = "_bertfeat"
PLAN = f"{PRIVATE}/plan.json"
LOCK = f"{PRIVATE}/lock"
# In an object store, which has no kernel locks; see `objectlock`.
LOCKS = f"{PRIVATE}/locks"
RECEIPTS = f"{PRIVATE}/receipts"
QUARANTINE = f"{PRIVATE}/quarantine"
TMP = f"{PRIVATE}/tmp"
# Shards that `verify` found damaged: the next run repeats them.
DAMAGED = f"{PRIVATE}/damaged.json"
# The ids of a grown store; see `idfile`.
IDS = f"{PRIVATE}/ids.bin"

# A plan without shards still needs one empty part per level, so that the store has a schema.
EMPTY_SHARD = ShardSpec(index=0, first_row=0, n_rows=0, slices=())

# The files that each folder of a store may hold.
_FILES = {
    "": re.compile(r"manifest\.json"),
    PRIVATE: re.compile(r"plan\.json|lock|damaged\.json|ids\.bin"),
    **{str(level): re.compile(r"part-\d{5,}\.parquet") for level in Level},
    RECEIPTS: re.compile(r"\d{5,}\.json"),
    QUARANTINE: re.compile(r"\d{5,}\.jsonl"),
    TMP: re.compile(r"[a-z0-9.-]+\.tmp"),
    LOCKS: re.compile(r"\d{5,}\.json"),
}
_OWNED = (*map(str, Level), RECEIPTS, QUARANTINE)


def version_of(appends: Sequence[Append]) -> int:
    """Return the format version of a plan or manifest."""
    return GROWN_VERSION if appends else FORMAT_VERSION


def part_path(level: Level, shard: int) -> str:
    """Return a part's path relative to the store, with forward slashes.

    Examples:
        >>> part_path(Level.TOKEN, 3)
        'token/part-00003.parquet'
    """
    return f"{level}/part-{shard:05d}.parquet"


def receipt_path(shard: int) -> str:
    """Return the path of a shard's receipt, relative to the store."""
    return f"{RECEIPTS}/{shard:05d}.json"


def quarantine_path(shard: int) -> str:
    """Return the path of a shard's set-aside rows, relative to the store."""
    return f"{QUARANTINE}/{shard:05d}.jsonl"


def shard_files(shard: int) -> list[str]:
    """Return the paths of all files that a shard may have, relative to the store."""
    return [receipt_path(shard), quarantine_path(shard), *(part_path(level, shard) for level in Level)]


def folders(levels: tuple[Level, ...]) -> tuple[str, ...]:
    """Return the folders of a store with these levels, parents first."""
    return (PRIVATE, RECEIPTS, QUARANTINE, TMP, *map(str, levels))


def is_piece(name: str) -> bool:
    """Return whether a relative path is that of a file that a store may hold."""
    place, _, file = name.rpartition("/")
    return place in _FILES and _FILES[place].fullmatch(file) is not None


def is_owned(name: str) -> bool:
    """Return whether a relative path is that of a part, receipt or quarantine file.

    Examples:
        >>> is_owned("token/part-00003.parquet"), is_owned("manifest.json")
        (True, False)
    """
    return name.rpartition("/")[0] in _OWNED and is_piece(name)


def entries_of(folder: Path) -> list[os.DirEntry[str]]:
    """Return all entries of a folder, sorted by name; none if there is no folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=attrgetter("name"))
    except (FileNotFoundError, NotADirectoryError):
        return []


def owned_files(root: Path) -> list[str]:
    """Return the parts, receipts and quarantine files of a store's folder, as sorted relative paths."""
    found = ((place, entry.name) for place in _OWNED for entry in entries_of(root / place))
    return sorted(f"{place}/{name}" for place, name in found if _FILES[place].fullmatch(name))


def foreign_entries(root: Path, place: str = "") -> Iterator[str]:
    """Yield the entries of a folder that are not part of a store, as relative paths; symbolic links never are."""
    for entry in entries_of(root / place):
        name = f"{place}/{entry.name}" if place else entry.name
        if name in _FILES and entry.is_dir(follow_symlinks=False):
            yield from foreign_entries(root, name)
        elif not entry.is_file(follow_symlinks=False) or not _FILES[place].fullmatch(entry.name):
            yield name
