"""Verification of a whole store: every file has its digest, and the manifest, the plans and the receipts agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertfeat.durable import files
from bertfeat.durable.output_check import other_kind
from bertfeat.durable.records import unseal
from bertfeat.errors import StoreError
from bertfeat.progress import Progress, reporting
from bertfeat.records import PartInfo, Plan, QuarantineFile, Receipt, StoredShard
from bertfeat.storage import ObjectPath
from bertfeat.store import layout, plan_file, receipts
from bertfeat.store.folder import Folder, folder_at
from bertfeat.store.manifest import Manifest, ManifestDamaged, newest_readable, read_manifest, versions


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
    manifest = check.manifest()
    plans = {plan_hash: check.plan(plan_hash) for plan_hash in (manifest.made_by if manifest else check.works)}
    shards = manifest.shards if manifest else check.done(plans)
    with reporting(progress) as reports:
        for n_done, shard in enumerate(shards, start=1):
            check.shard(shard, has_plan=plans[shard.plan_hash] is not None)
            reports.stage("checking shards", n_done, len(shards))
    check.extras(shards)
    return check.report()


@files.os_errors(StoreError)
def mark_for_redoing(path: str | Path | ObjectPath, report: VerifyReport) -> tuple[int, ...]:
    """Remove the receipts of the bad shards of a report, so that the next run repeats these shards; return them.

    Without that, a rerun reads a part again only if its size has changed or it is younger than its receipt. Parts and
    manifest stay as they are, and the store can be read as before.
    """
    if not report.bad_shards:
        return ()
    folder = folder_at(path)
    with folder.lock():
        manifest = newest_readable(folder)
        if manifest is None:
            places = [(work, shard) for work in plan_file.plan_hashes(folder) for shard in report.bad_shards]
        else:
            places = [(s.plan_hash, s.shard) for s in manifest.shards if s.shard in report.bad_shards]
        folder.remove(layout.receipt_path(*place) for place in places)
    return report.bad_shards


class _Check:
    """Collector of the problems and counts of one store."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._problems: list[Problem] = []
        self._n_parts = self._n_rows = self._n_bytes = 0
        # Read before the files are listed: an append that finishes meanwhile only adds files.
        self._versions = versions(folder)
        self._newest = newest_readable(folder)
        self._there = folder.listing()
        # The hashes of the plans whose work lies in the store.
        self.works = sorted({work for work in map(layout.work_of, self._there) if work is not None})

    def report(self) -> VerifyReport:
        return VerifyReport(tuple(self._problems), self._n_parts, self._n_rows, self._n_bytes)

    def _add(self, shard: int | None, name: str, reason: str) -> None:
        self._problems.append(Problem(shard, name, " ".join(reason.split())))

    def manifest(self) -> Manifest | None:
        """Return the newest manifest that is whole; check all of them."""
        if not self.works and not self._versions:
            place = self._folder.path
            raise StoreError(f"{place}: {other_kind(place, 'store')}not a bertfeat store")
        for version in self._versions:
            try:
                if self._newest is None or version != self._newest.version:
                    read_manifest(self._folder, version)
            except (FileNotFoundError, ManifestDamaged) as error:
                self._add(None, layout.manifest_path(version), str(error.__cause__ or error))
        if not self._versions:
            self._add(None, layout.MANIFESTS, "no manifest: the run has not finished")
        return self._newest

    def done(self, plans: Mapping[str, Plan | None]) -> list[Receipt]:
        """Return the receipts of plans that have not finished; report the shards without one."""
        found = []
        for work, plan in plans.items():
            places = {shard.index: (work, shard.index) for shard in (plan.shards if plan else ())}
            done = list(receipts.read_receipts(self._folder, places.values()))
            found += done
            for shard in places.keys() - {receipt.shard for receipt in done}:
                self._add(shard, layout.receipt_path(*places[shard]), "missing: the shard is not done")
        return found

    def plan(self, plan_hash: str) -> Plan | None:
        """Return a plan; report it if it is missing or damaged."""
        name = layout.plan_path(plan_hash)
        try:
            plan = plan_file.read_plan(self._folder, plan_hash)
        except plan_file.PlanDamaged as error:
            self._add(None, name, str(error.__cause__))
            return None
        if plan is None:
            self._add(None, name, "missing")
        elif plan_file.hash_of_plan(plan.fields, plan.inputs) != plan_hash:
            self._add(None, name, "its plan_hash is not that of its fields and inputs")
        return plan

    def shard(self, shard: StoredShard, *, has_plan: bool) -> None:
        """Check a shard's parts and, if its plan is there, its receipt and the rows that it set aside."""
        if has_plan:
            self._receipt(shard)
        for part in shard.parts:
            self._n_parts += 1
            self._n_rows += part.n_rows
            self._n_bytes += part.n_bytes
        for file in shard.files if has_plan else shard.parts:
            self._file(shard.shard, file)

    def _receipt(self, shard: StoredShard) -> None:
        name = layout.receipt_path(shard.plan_hash, shard.shard)
        try:
            receipt = unseal(Receipt, self._folder.read(name))
        except FileNotFoundError:
            self._add(shard.shard, name, "missing: the shard will be repeated")
        except (OSError, ValueError) as error:
            self._add(shard.shard, name, str(error))
        else:
            if receipts.stored(receipt) != receipts.stored(shard):
                self._add(shard.shard, name, "does not match the manifest")

    def _file(self, shard: int, file: PartInfo | QuarantineFile) -> None:
        info = self._there.get(file.path)
        try:
            if info is None:
                reason = "missing"
            elif info.oddity is not None:
                reason = f"not a file ({info.oddity})"
            elif info.n_bytes != file.n_bytes:
                reason = f"{info.n_bytes} bytes, the manifest says {file.n_bytes}"
            elif (found := self._folder.digest(file.path)) != file.digest:
                reason = f"digest {found}, the manifest says {file.digest}"
            else:
                return
        except FileNotFoundError:
            reason = "missing"
        except OSError as error:
            reason = f"cannot be read: {(error.strerror or str(error)).lower()}"
        self._add(shard, file.path, reason)

    def extras(self, shards: Sequence[StoredShard]) -> None:
        """Report files in the levels' folders that belong to no shard: readers of whole folders would use them."""
        listed = {file.path for shard in shards for file in shard.files}
        known = self._newest.plan_hashes if self._newest else set()
        # Those of an append that has not finished, or has begun meanwhile, are not a defect.
        ends = tuple(f"-{work[:8]}.parquet" for work in self.works if work not in known)
        for name in self._there:
            in_level = name.partition("/")[0] in {str(level) for level in (self._newest.levels if self._newest else ())}
            if in_level and name not in listed and not (layout.is_part(name) and name.endswith(ends)):
                self._add(None, name, "belongs to no shard of the newest version")
