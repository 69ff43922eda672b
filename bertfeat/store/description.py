"""Description of a store: its manifest, plans and receipts, read without the libraries that its parts need."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bertfeat.choices import Level
from bertfeat.durable import files
from bertfeat.durable.output_check import other_kind
from bertfeat.errors import StoreError, UserError, did_you_mean
from bertfeat.records import FeatureColumn, LevelSchema, PartInfo, Plan, Receipt
from bertfeat.storage import AnyPath, ObjectPath
from bertfeat.store import layout, plan_file, receipts
from bertfeat.store.folder import Folder, folder_at
from bertfeat.store.manifest import IMPORTED, Manifest, build_manifest, read_manifest, versions


class StoreDescription:
    """The levels, columns, parts and provenance of a store, without its rows; see `Store`."""

    def __init__(self, path: AnyPath, manifest: Manifest, unfinished: Plan | None = None) -> None:
        self.path = path
        self.manifest = manifest
        # The plan of a store without a finished version; the manifest then lists the shards that are done.
        self._unfinished = unfinished
        self._layout = manifest.vectors

    @functools.cached_property
    def _folder(self) -> Folder:
        return folder_at(self.path)

    @functools.cached_property
    def _parts(self) -> Mapping[Level, list[PartInfo]]:
        found: dict[Level, list[PartInfo]] = {level: [] for level in self.manifest.levels}
        for part in (part for shard in self.manifest.shards for part in shard.parts):
            found[part.level].append(part)
        return found

    @classmethod
    @files.os_errors(StoreError)
    def at(cls, path: str | Path | ObjectPath, *, version: int | None = None, allow_incomplete: bool = False) -> Self:
        """Open the store at a path or URL; see `open_store`.

        Raises:
            StoreError: There is no store or version, or it is incomplete, damaged, or of a newer format.
        """
        folder = folder_at(path)
        try:
            return cls(folder.path, read_manifest(folder, version))
        except (FileNotFoundError, NotADirectoryError):
            pass
        if there := versions(folder):
            known = ", ".join(map(str, there[-5:]))
            raise StoreError(f"{folder.path}: no version {version}; the last ones are {known}")
        unfinished = plan_file.plan_hashes(folder) if folder.names(layout.PRIVATE) else []
        found = (plan_file.read_plan(folder, plan_hash) for plan_hash in unfinished)
        plans = [plan for plan in found if plan is not None]
        if not plans:
            what = f"{other_kind(folder.path, 'store')}not a bertfeat store: it has no {layout.MANIFESTS}"
            raise StoreError(f"{folder.path}: {what if folder.path.exists() else 'no such folder'}")
        plan, there_now = plans[0], folder.listing()
        read = receipts.read_receipts(folder, [(plan.plan_hash, shard.index) for shard in plan.shards])
        done = [receipt for receipt in read if receipts.has_files(there_now, receipt)]
        if not allow_incomplete:
            raise StoreError(
                f"{folder.path}: not complete, {len(done)} of {len(plan.shards)} shards are done; "
                "run the command that made it again to finish it, or open it with allow_incomplete=True"
            )
        return cls(folder.path, build_manifest(plan, list(map(receipts.stored, done)), None), plan)

    @property
    def version(self) -> int:
        """The number of this version: 0 after the extraction, one more after each append and compaction."""
        return self.manifest.version

    @property
    def is_complete(self) -> bool:
        """Whether this is a finished version, and not the shards so far of a store whose run has not finished."""
        return self._unfinished is None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans whose inputs this version holds, in their order.

        Raises:
            StoreError: The store was copied without its `_bertfeat` folder, or a plan is damaged.
        """
        if self._unfinished is not None:
            return (self._unfinished,)
        return tuple(map(self._plan, self.manifest.made_by))

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan that made this version.

        Raises:
            StoreError: The store was copied without its `_bertfeat` folder, or the plan is damaged.
        """
        return self._unfinished or self._plan(self.manifest.plan_hash)

    def _plan(self, plan_hash: str) -> Plan:
        plan = plan_file.read_plan(self._folder, plan_hash)
        if plan is None:
            file = self.path / layout.plan_path(plan_hash)
            raise StoreError(f"{file}: no such file; copy the store with its {layout.PRIVATE} folder")
        return plan

    def state(self, plan_hash: str) -> Self | None:
        """Return the store as it was when a plan was done; None if it never was, or if its shards were joined."""
        manifest = self.manifest.state(plan_hash)
        if manifest is None or manifest is self.manifest:
            return None if manifest is None else self
        return type(self)(self.path, manifest, self._unfinished)

    @property
    def metadata(self) -> dict[str, Any]:
        """Where the features come from: model, layers, pooling, versions, ..."""
        return self.manifest.metadata

    def require_model(self, doing: str, remedy: str) -> None:
        """Refuse what needs the model of the features in a store of imported vectors.

        Raises:
            StoreError: The vectors were imported.
        """
        if imported := self.metadata.get(IMPORTED):
            source = imported[0]["file"]
            raise StoreError(
                f"{self.path}: imported from {source}, and {doing} needs the model of the vectors; {remedy}"
            )

    @files.os_errors(StoreError)
    def receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts of the shards, with their times, in corpus order; those that exist."""
        places = [(shard.plan_hash, shard.shard) for shard in self.manifest.shards]
        return tuple(receipts.read_receipts(self._folder, places))

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels that are stored."""
        return tuple(self.manifest.levels)

    def choose_level(self, level: str | None, among: Sequence[Level] = tuple(Level)) -> Level:
        """Return the given level, or the only stored one of those that can be used.

        Raises:
            UserError: There is no such level; or none is given, and none can be used, or several.
        """
        if level is not None:
            return self.schema(level).level
        found = [one for one in self.levels if one in among]
        if len(found) == 1:
            return found[0]
        if not found:
            raise UserError(
                f"{self.path}: holds level {', '.join(self.levels)}, and this needs level {' or '.join(among)}"
            )
        flags = " or ".join(f"`level='{one}'`" for one in found)
        raise UserError(f"{self.path}: holds several levels; pass {flags}")

    def schema(self, level: str) -> LevelSchema:
        """Return the columns of a level."""
        if level not in self.manifest.levels:
            there = did_you_mean(level, self.levels) or f"levels are {', '.join(self.levels)}"
            raise UserError(f"{self.path}: no level {str(level)!r}; {there}")
        return self.manifest.levels[Level(level)]

    def columns(self, level: str) -> tuple[str, ...]:
        """Return the names of all columns of a level, vectors last."""
        schema = self.schema(level)
        return (*(column.name for column in schema.columns), *(feature.name for feature in schema.features))

    def features(self, level: str) -> tuple[FeatureColumn, ...]:
        """Return the vector columns of a level."""
        return self.schema(level).features

    def parts(self, level: str) -> tuple[PartInfo, ...]:
        """Return the part files of a level, in corpus order."""
        return tuple(self._parts[self.schema(level).level])

    def n_rows(self, level: str) -> int:
        """Return the rows of a level."""
        return sum(part.n_rows for part in self.parts(level))
