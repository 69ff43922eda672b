"""Verification of a whole store: every digest, row count and schema; the manifest, the receipts and the parts agree."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.choices import Level
from bertfeat.durable import files
from bertfeat.durable.placecheck import other_kind
from bertfeat.errors import StoreError
from bertfeat.progress import Progress, reporting
from bertfeat.records import PartInfo, Plan
from bertfeat.storage import ObjectPath
from bertfeat.store import codec, layout, planfile, receipts
from bertfeat.store.folder import Folder
from bertfeat.store.manifest import build_manifest, read_manifest
from bertfeat.store.openfolder import folder_at
from bertfeat.store.parts import read_part_metadata
from bertfeat.store.planstates import hash_of, state_of
from bertfeat.store.receipts import StoredReceipt
from bertfeat.store.runs import runs_in
from bertfeat.store.schema import arrow_schema
from bertfeat.store.vectorlayout import VectorLayout
from bertfeat.store.vectors import open_parquet


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect in a store: the file, its shard (if it has one), and what is wrong."""

    shard: int | None
    part: str
    reason: str

    def __str__(self) -> str:
        return f"{self.part}: {self.reason}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`: problems, and how much was checked."""

    problems: tuple[Problem, ...]
    n_parts: int
    n_rows: int
    n_bytes: int

    @property
    def is_good(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    @property
    def bad_shards(self) -> tuple[int, ...]:
        """The shards that must be repeated, ascending."""
        return tuple(sorted({problem.shard for problem in self.problems if problem.shard is not None}))


@files.os_errors(StoreError)
def verify(path: str | Path | ObjectPath, *, progress: bool | Progress | None = None) -> VerifyReport:
    """Read every file of a store and report what is wrong with it; changes nothing.

    Args:
        path: The store's folder, or its URL in an object store.
        progress: See `extract`.

    Raises:
        StoreError: There is no store, or it is of a newer format.
    """
    check = _Check(folder_at(path))
    planned = check.plan()
    if planned is None:
        return check.report()
    plan = check.finished_state(planned)
    shards = [shard.index for shard in plan.shards] or [layout.EMPTY_SHARD.index]
    stored = []
    with reporting(progress) as reports:
        for n_done, shard in enumerate(shards, start=1):
            receipt = check.shard(plan, shard)
            if receipt is not None:
                stored.append(receipt)
            reports.stage("checking shards", n_done, len(shards))
    check.manifest(plan, stored if len(stored) == len(shards) else None)
    check.extras(planned, set(shards) | {shard.index for shard in planned.shards})
    return check.report()


@files.os_errors(StoreError)
def mark_for_redoing(path: str | Path | ObjectPath, report: VerifyReport) -> tuple[int, ...]:
    """Mark the bad shards of a report, so that the next run of the extraction repeats them; return them.

    Without a mark, a rerun reads a part again only if its size or modification time has changed. Parts, receipts and
    manifest stay as they are, and the store can be read as before.

    Raises:
        StoreError: Another process is writing the store, or it is read-only.
        RunError: The system refused.
    """
    if not report.bad_shards:
        return ()
    folder = folder_at(path)
    lock = folder.lock()
    try:
        # A shard of an unfinished run that has no readable receipt is repeated anyway.
        done = {stored.receipt.shard for stored in receipts.read_receipts(folder, report.bad_shards)}
        with contextlib.suppress(FileNotFoundError, StoreError):
            done |= {entry["shard"] for entry in read_manifest(folder)["shards"]} & {*report.bad_shards}
        if done:
            folder.write(layout.DAMAGED, codec.seal({"shards": sorted(done)}), "damaged")
    finally:
        lock.release()
    return report.bad_shards


class _Check:
    """Collector of the problems and counts of one store."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        # Read first: an append that finishes meanwhile is not looked at.
        self._manifest = self._read_manifest()
        self._listing = folder.listing()
        self._problems: list[Problem] = []
        self._n_parts = self._n_rows = self._n_bytes = 0

    def report(self) -> VerifyReport:
        return VerifyReport(tuple(self._problems), self._n_parts, self._n_rows, self._n_bytes)

    def _read_manifest(self) -> bytes | OSError | StoreError:
        try:
            read_manifest(self._folder)
            return self._folder.read(layout.MANIFEST)
        except (OSError, StoreError) as error:
            return error

    def _add(self, shard: int | None, name: str, reason: str) -> None:
        self._problems.append(Problem(shard, name, " ".join(reason.split())))

    def plan(self) -> Plan | None:
        """Return the plan; without one, check the parts against the manifest alone."""
        try:
            plan = planfile.read_plan(self._folder)
        except planfile.PlanDamaged as error:
            self._add(None, layout.PLAN, str(error.__cause__))
        else:
            if plan is not None:
                return plan
            if self._listing.info(layout.MANIFEST) is None:
                place = self._folder.path
                raise StoreError(f"{place}: {other_kind(place, 'store')}not a bertfeat store")
            self._add(None, layout.PLAN, "missing")
        try:
            listed = read_manifest(self._folder).receipts
        except (OSError, StoreError, ValueError) as error:
            self._add(None, layout.MANIFEST, str(error))
            return None
        for stored in listed:
            for part in stored.receipt.parts:
                self._part(stored.receipt.shard, part)
        return None

    def finished_state(self, plan: Plan) -> Plan:
        """Return the plan without an append that has not finished, which is not a defect; the manifest tells."""
        if not isinstance(self._manifest, bytes):
            return plan
        return state_of(plan, json.loads(self._manifest)["plan_hash"]) or plan

    def shard(self, plan: Plan, shard: int) -> StoredReceipt | None:
        """Check a shard's receipt, and its files against the receipt; return the receipt if it is usable."""
        name = layout.receipt_path(shard)
        try:
            stored = receipts.read_receipt(self._folder, shard)
        except FileNotFoundError:
            self._add(shard, name, "missing: the shard is not done")
            return None
        except (OSError, ValueError) as error:
            self._add(shard, name, str(error))
            return None
        fault = receipts.fault_of(stored, plan)
        if fault is not None:
            self._add(shard, name, fault)
            return None
        for part in stored.receipt.parts:
            if self._part(shard, part):
                self._content(plan, shard, part)
        self._quarantine(shard, stored)
        return stored

    def _part(self, shard: int, part: PartInfo) -> bool:
        self._n_parts += 1
        self._n_rows += part.n_rows
        self._n_bytes += part.n_bytes
        return self._file(shard, part.path, part.n_bytes, part.digest)

    def _file(self, shard: int, name: str, n_bytes: int, digest: str) -> bool:
        try:
            info = self._listing.info(name)
            if info is None:
                reason = "missing"
            elif info.oddity is not None:
                reason = f"not a file ({info.oddity})"
            elif info.n_bytes != n_bytes:
                reason = f"{info.n_bytes} bytes, its receipt says {n_bytes}"
            elif (found := self._folder.digest(name)) != digest:
                reason = f"digest {found}, its receipt says {digest}"
            else:
                return True
        except FileNotFoundError:
            reason = "missing"
        except OSError as error:
            reason = f"cannot be read: {(error.strerror or str(error)).lower()}"
        self._add(shard, name, reason)
        return False

    def _content(self, plan: Plan, shard: int, part: PartInfo) -> None:
        """Check a part's own footer and metadata; its digest is right."""
        try:
            with open_parquet(self._folder.path / part.path) as file:
                reasons = list(_content_faults(file, plan, shard, part))
        except (pa.ArrowException, OSError, ValueError) as error:
            reasons = [f"cannot be opened: {error}"]
        for reason in reasons:
            self._add(shard, part.path, reason)

    def _quarantine(self, shard: int, stored: StoredReceipt) -> None:
        listed = stored.quarantine
        if listed is not None:
            self._file(shard, listed.path, listed.n_bytes, listed.digest)
        n_rows = 0 if listed is None else listed.n_rows
        if n_rows != stored.receipt.n_bad_rows:
            self._add(shard, layout.receipt_path(shard), f"{n_rows} of {stored.receipt.n_bad_rows} bad rows were kept")

    def manifest(self, plan: Plan, stored: list[StoredReceipt] | None) -> None:
        """Check the manifest against the receipts (None if some are unusable)."""
        found = self._manifest
        if isinstance(found, FileNotFoundError):
            self._add(None, layout.MANIFEST, "missing: the run has not finished")
        elif not isinstance(found, bytes):
            self._add(None, layout.MANIFEST, str(found.__cause__ or found))
        elif stored is not None and found != build_manifest(plan, stored).encoded():
            self._add(None, layout.MANIFEST, "does not match the plan and the receipts")

    def extras(self, plan: Plan, shards: set[int]) -> None:
        """Report files in the levels' folders that belong to no shard: readers of whole folders would use them."""
        with contextlib.suppress(StoreError):
            # Of an append that has begun meanwhile.
            shards = shards | {shard.index for shard in (planfile.read_plan(self._folder) or plan).shards}
        expected = {layout.part_path(level, shard) for level in plan.schemas for shard in shards}
        for level in Level:
            for entry in self._folder.entries(level):
                name = f"{level}/{entry}"
                if name not in expected:
                    self._add(None, name, "belongs to no shard of the plan")


def _content_faults(file: pq.ParquetFile, plan: Plan, shard: int, part: PartInfo) -> Iterator[str]:
    if file.metadata.num_rows != part.n_rows:
        yield f"{file.metadata.num_rows} rows, its receipt says {part.n_rows}"
    schema = plan.schemas[part.level]
    if not file.schema_arrow.remove_metadata().equals(arrow_schema(schema, plan)):
        yield "its columns are not those of the plan"
    elif part.runs is not None and part.runs != runs_in(file.metadata, schema.features, VectorLayout.of(plan)):
        yield "its vectors lie elsewhere than its receipt says"
    metadata = json.loads(read_part_metadata(file.metadata.metadata) or "{}")
    wanted = {"plan_hash": hash_of(plan, shard), "shard": shard, "level": str(part.level), "n_rows": part.n_rows}
    for key, value in wanted.items():
        if not isinstance(metadata, dict) or metadata.get(key) != value:
            yield f"its metadata does not say {key} {codec.canonical_json(value)}"
