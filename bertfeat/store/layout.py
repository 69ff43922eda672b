"""Names and places of everything that a store consists of."""

from __future__ import annotations

import re
from pathlib import Path

from bertfeat.config import Level
from bertfeat.records import ShardSpec

FORMAT_VERSION = 1
METADATA_KEY = "bertfeat"

MANIFEST = "manifest.json"
PRIVATE = "_bertfeat"
PLAN = f"{PRIVATE}/plan.json"
LOCK = f"{PRIVATE}/lock"
# In an object store, which has no kernel to lock for it; see `objectlock`.
LOCKS = f"{PRIVATE}/locks"
RECEIPTS = f"{PRIVATE}/receipts"
QUARANTINE = f"{PRIVATE}/quarantine"
TMP = f"{PRIVATE}/tmp"
# Shards that `verify` found damaged: the next run does them again.
DAMAGED = f"{PRIVATE}/damaged.json"

# A plan without shards still needs one empty part a level, so that the store has a schema.
EMPTY_SHARD = ShardSpec(index=0, first_row=0, n_rows=0, slices=())

_NAMED = {
    "level": re.compile(r"part-\d{5,}\.parquet"),
    RECEIPTS: re.compile(r"\d{5,}\.json"),
    QUARANTINE: re.compile(r"\d{5,}\.jsonl"),
    TMP: re.compile(r"[a-z0-9.-]+\.tmp"),
    LOCKS: re.compile(r"\d{5,}\.json"),
}
_PRIVATE_NAMES = {"plan.json", "lock", "damaged.json", "receipts", "quarantine", "tmp", "locks"}


def part_path(level: Level, shard: int) -> str:
    """Return a part's path relative to the store, with forward slashes.

    Examples:
        >>> part_path(Level.TOKEN, 3)
        'token/part-00003.parquet'
    """
    return f"{level}/part-{shard:05d}.parquet"


def receipt_path(shard: int) -> str:
    """Return a receipt's path relative to the store."""
    return f"{RECEIPTS}/{shard:05d}.json"


def quarantine_path(shard: int) -> str:
    """Return the path, relative to the store, of the rows that a shard set aside."""
    return f"{QUARANTINE}/{shard:05d}.jsonl"


def shard_of(name: str) -> int:
    """Return the number of the shard whose receipt is of this name."""
    return int(name.rpartition("/")[2].removesuffix(".json"))


def folders(levels: tuple[Level, ...]) -> tuple[str, ...]:
    """Return the folders of a store with these levels, parents first."""
    return (PRIVATE, RECEIPTS, QUARANTINE, TMP, *(str(level) for level in levels))


def lock_path(number: int) -> str:
    """Return the path, relative to the store, of the lock of this number."""
    return f"{LOCKS}/{number:05d}.json"


def is_owned(name: str) -> bool:
    """Tell whether a relative path is that of a part, receipt or quarantine file.

    Examples:
        >>> is_owned("token/part-00003.parquet"), is_owned("manifest.json")
        (True, False)
    """
    place, _, file = name.rpartition("/")
    pattern = _NAMED["level"] if place in set(Level) else _NAMED.get(place) if place in (RECEIPTS, QUARANTINE) else None
    return pattern is not None and pattern.fullmatch(file) is not None


def is_piece(name: str) -> bool:
    """Tell whether a relative path is that of a file that a store may consist of."""
    place, _, file = name.rpartition("/")
    pattern = _NAMED.get(place)
    own = {MANIFEST, PLAN, LOCK, DAMAGED}
    return name in own or is_owned(name) or (pattern is not None and pattern.fullmatch(file) is not None)


def entries_of(folder: Path) -> list[Path]:
    """Return what lies in a folder, sorted; nothing where there is no folder."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def owned_files(root: Path) -> list[str]:
    """Return the parts, receipts and quarantine files that lie in a store's folder, as sorted relative paths."""
    places = {str(level): _NAMED["level"] for level in Level}
    places |= {RECEIPTS: _NAMED[RECEIPTS], QUARANTINE: _NAMED[QUARANTINE]}
    return sorted(
        f"{place}/{file.name}"
        for place, pattern in places.items()
        for file in entries_of(root / place)
        if pattern.fullmatch(file.name)
    )


def foreign_entries(root: Path) -> list[str]:
    """Return what lies in a folder and is no piece of a store, as sorted relative paths.

    Symbolic links count as foreign wherever they stand.
    """
    foreign = []
    for entry in entries_of(root):
        if entry.is_symlink():
            foreign.append(entry.name)
        elif entry.name in set(Level) and entry.is_dir():
            foreign += _unmatched(entry, _NAMED["level"], entry.name)
        elif entry.name == PRIVATE and entry.is_dir():
            foreign += _foreign_private(entry)
        elif entry.name != MANIFEST or not entry.is_file():
            foreign.append(entry.name)
    return foreign


def _foreign_private(folder: Path) -> list[str]:
    foreign = []
    for entry in entries_of(folder):
        pattern = _NAMED.get(f"{PRIVATE}/{entry.name}")
        if entry.is_symlink() or entry.name not in _PRIVATE_NAMES or (pattern is not None) != entry.is_dir():
            foreign.append(f"{PRIVATE}/{entry.name}")
        elif pattern is not None:
            foreign += _unmatched(entry, pattern, f"{PRIVATE}/{entry.name}")
    return foreign


def _unmatched(folder: Path, pattern: re.Pattern[str], prefix: str) -> list[str]:
    return [
        f"{prefix}/{entry.name}"
        for entry in entries_of(folder)
        if entry.is_symlink() or not entry.is_file() or not pattern.fullmatch(entry.name)
    ]
