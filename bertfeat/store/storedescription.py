"""Description of a store: its manifest, plan and receipts, read without the libraries that its parts need."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bertfeat.choices import Level
from bertfeat.durable import files
from bertfeat.durable.placecheck import other_kind
from bertfeat.errors import StoreError, UserError, did_you_mean
from bertfeat.records import FeatureColumn, LevelSchema, PartInfo, Plan, Receipt
from bertfeat.storage import AnyPath, ObjectPath
from bertfeat.store import codec, layout, planfile, receipts
from bertfeat.store.folder import FileInfo, Folder
from bertfeat.store.manifest import Manifest, build_manifest, read_manifest
from bertfeat.store.openfolder import folder_at
from bertfeat.store.planstates import IMPORTED, state_of, states


class StoreDescription:
    """The levels, columns, parts and provenance of a store, without its rows; see `Store`."""

    # The bytes of plan.json when the store was opened.
    _plan_data: bytes | None = None

    def __init__(self, path: AnyPath, manifest: Manifest, plan_file: FileInfo | None = None) -> None:
        self.path = path
        self.manifest = manifest
        # The plan's file when it last matched the manifest; None before the first look, or without such a file.
        self._plan_file = plan_file
        self._layout = manifest.vectors
        self._schemas = manifest.schemas
        self._metadata = codec.metadata_from_json(manifest["metadata"])

    @functools.cached_property
    def _folder(self) -> Folder:
        return folder_at(self.path)

    @functools.cached_property
    def _parts(self) -> Mapping[Level, list[PartInfo]]:
        found: dict[Level, list[PartInfo]] = {level: [] for level in self._schemas}
        for part in (part for stored in self.manifest.receipts for part in stored.receipt.parts):
            found[part.level].append(part)
        return found

    @classmethod
    @files.os_errors(StoreError)
    def at(cls, path: str | Path | ObjectPath, *, allow_incomplete: bool = False) -> Self:
        """Open the store at a path or URL; see `open_store`.

        Raises:
            StoreError: There is no store, or it is incomplete, damaged, or of a newer format.
        """
        folder = folder_at(path)
        root = folder.path
        plan_file = folder.info(layout.PLAN)
        try:
            found = cls(root, read_manifest(folder, follow_links=True), plan_file)
        except (FileNotFoundError, NotADirectoryError):
            pass
        else:
            with contextlib.suppress(OSError):
                found._plan_data = folder.read(layout.PLAN, follow_links=True)
            return found
        plan = planfile.read_plan(folder, follow_links=True)
        if plan is None:
            what = f"{other_kind(root, 'store')}not a bertfeat store: it has no {layout.MANIFEST}"
            what = what if root.exists() else "no such folder"
            raise StoreError(f"{root}: {what}")
        done = receipts.finished(folder, plan)
        if not allow_incomplete:
            raise StoreError(
                f"{root}: not complete, {len(done)} of {len(plan.shards)} shards are done; "
                "run the command that made it again to finish it, or open it with allow_incomplete=True"
            )
        return cls(root, build_manifest(plan, done), plan_file)

    @contextlib.contextmanager
    def unreplaced(self) -> Iterator[None]:
        """Refuse at the end what the block read if the folder now holds another store; appends do not count as that.

        Whoever replaces a store removes its plan before the first new part appears.

        Raises:
            StoreError: The store was replaced or removed since it was opened.
        """
        try:
            yield
        finally:
            self._check_plan()

    @files.os_errors(StoreError)
    def _check_plan(self) -> None:
        plan_file = self._folder.info(layout.PLAN)
        if plan_file != self._plan_file:
            self._state(planfile.read_plan(self.path, follow_links=True))
            self._plan_file = plan_file

    def _state(self, plan: Plan | None) -> Plan:
        """Return the state of a plan that this store was opened in; the file may already name a later append."""
        state = None if plan is None else state_of(plan, self.manifest["plan_hash"])
        if state is None:
            raise StoreError(f"{self.path}: replaced or removed since it was opened; open the store again")
        return state

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels that are stored."""
        return tuple(self._schemas)

    @property
    def metadata(self) -> dict[str, Any]:
        """Where the features come from: model, layers, pooling, versions, ..."""
        return self._metadata

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

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan that the store was made from.

        Raises:
            StoreError: The store was copied without its `_bertfeat` folder, the plan is damaged, or the store was
                replaced since it was opened.
        """
        file = self.path / layout.PLAN
        data, self._plan_data = self._plan_data, None
        plan = planfile.read_plan(self.path, follow_links=True) if data is None else planfile.plan_of(data, file)
        if plan is None:
            raise StoreError(f"{file}: no such file; copy the store with its {layout.PRIVATE} folder")
        return self._state(plan)

    def after_appends(self, number: int) -> Self:
        """Return the store as it was after some of its appends, without the rows of later ones."""
        plan = state_of(self.plan, states(self.plan)[number])
        assert plan is not None
        return type(self)(self.path, build_manifest(plan, self.manifest.receipts[: len(plan.shards)]))

    @files.os_errors(StoreError)
    def receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts of the finished shards, with their times, in corpus order."""
        with self.unreplaced():
            return tuple(stored.receipt for stored in receipts.finished(self._folder, self.plan))

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
        if level not in self._schemas:
            there = did_you_mean(level, self.levels) or f"levels are {', '.join(self.levels)}"
            raise UserError(f"{self.path}: no level {str(level)!r}; {there}")
        return self._schemas[Level(level)]

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
