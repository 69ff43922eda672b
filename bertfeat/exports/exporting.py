"""`export`: the vectors of a store become a file, or a folder of files, that other tools read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bertfeat._version import __version__
from bertfeat.choices import Combine, Level
from bertfeat.durable.filelock import lock
from bertfeat.durable.files import (
    link_exclusive,
    make_folder,
    make_parents,
    os_errors,
    read_small,
    sync_folder,
    write_errors,
)
from bertfeat.durable.placecheck import check_file, check_folder
from bertfeat.durable.publication import publish_bytes, recover, replace_folder
from bertfeat.durable.steps import step
from bertfeat.encoder.layers import parse_layers
from bertfeat.errors import ConfigError, RunError, UserError, did_you_mean
from bertfeat.exports.exportformats import FORMAT_OF
from bertfeat.exports.outputs import Job, Output
from bertfeat.exports.selectedrows import Selection, ShardRows
from bertfeat.progress import Progress, reporting
from bertfeat.records import FeatureColumn
from bertfeat.storage import local_path
from bertfeat.store.codec import hash_fields
from bertfeat.store.reader import Store, open_store

_STATE = "state.json"


@dataclass(frozen=True, slots=True)
class Exported:
    """A written export.

    Attributes:
        path: The file or folder.
        format: Its format.
        level: What a row stands for.
        features: The vectors of each row, by name.
        n_rows: The rows of the store that were read.
        n_documents: Their documents; one without rows at this level does not count.
        n_without_vector: The rows without a vector: NaN, or left out where the format has no place for them.
        n_bytes: The size of the result.
    """

    path: Path
    format: str
    level: Level
    features: tuple[str, ...]
    n_rows: int
    n_documents: int
    n_without_vector: int
    n_bytes: int


def export(
    store: str | Path | Store,
    output: str | Path,
    *,
    to: str,
    level: str | None = None,
    feature: str | None = None,
    layers: str | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
) -> Exported:
    """Write vectors of a store as a file, or a folder of files, of another tool.

    Memory holds the texts of one shard and 16 MB of vectors. The result appears when all of it is written. The same
    call resumes an interrupted export at the first shard that was not finished.

    Args:
        store: A finished store, its folder or its URL.
        output: The file or the folder.
        to: The format: `google-jsonl`, `neurox-hdf5`, `structural-probes-hdf5`, `npy`, `word2vec` or `projector`.
        level: What a row stands for, by default the first level of the format that the store has.
        feature: One feature, stored or made from what is stored. By default all stored layers, or the only feature.
        layers: Layers instead, as in `extract`.
        limit: The first documents only.
        overwrite: Replace what is already there.
        progress: See `extract`.

    Raises:
        UserError: A setting cannot be used, the store has no rows, a row does not go into the format, or something is
            already there.
        StoreError: There is no finished store, or a part is missing or damaged.
        RunError: The system refused a write; the same call resumes.

    Examples:
        >>> export("features", "vectors.txt", to="word2vec", level="sentence")  # doctest: +SKIP
    """
    if to not in FORMAT_OF:
        known = did_you_mean(to, FORMAT_OF) or f"must be one of {', '.join(FORMAT_OF)}"
        raise ConfigError(f"`to` {to!r}: {known}")
    if limit is not None and limit < 1:
        raise ConfigError(f"`limit` {limit} is below 1")
    format_ = FORMAT_OF[to]
    path = local_path(output, "an export")
    recover(path)
    _check_place(format_, path, overwrite=overwrite)
    format_.check()
    opened = store if isinstance(store, Store) else open_store(store)
    chosen_level = _level(opened, format_, level)
    chosen = Selection(opened, chosen_level, _features(opened, format_, chosen_level, feature, layers), limit)
    shards = chosen.shards()
    n_rows, n_vectors = sum(shard.n_rows for shard in shards), sum(shard.n_vectors for shard in shards)
    if not n_vectors:
        what = f"no row at level {chosen_level} has a vector" if n_rows else f"level {chosen_level} has no rows"
        raise UserError(f"{opened.path}: {what}; there is nothing to export")
    dtype = opened.slice(chosen_level, chosen.features[0].name, 0, 0).dtype
    make_parents(path)
    with _work_folder(path) as work, reporting(progress) as reports:
        writer = format_(work, Job(chosen, n_rows, n_vectors, dtype))
        _write(writer, work, shards, reports)
        files = [writer.result] if writer.endings else [*writer.result.iterdir()]
        n_bytes = sum(file.stat().st_size for file in files)
        _publish(writer, path, overwrite=overwrite)
    names = tuple(found.name for found in chosen.features)
    n_documents = sum(shard.n_documents for shard in shards)
    return Exported(path, to, chosen_level, names, n_rows, n_documents, n_rows - n_vectors, n_bytes)


def _check_place(format_: type[Output], path: Path, *, overwrite: bool) -> None:
    if format_.endings:
        check_file(path, overwrite=overwrite, endings=format_.endings)
    else:
        check_folder(path, f"an export to {format_.name}", format_.files, overwrite=overwrite)


def _level(store: Store, format_: type[Output], level: str | None) -> Level:
    """Return the level to write: the one that was asked for, or the first of the format that the store has."""
    if level is None:
        for found in format_.levels:
            if found in store.levels:
                return found
        wanted, there = " or ".join(format_.levels), ", ".join(store.levels)
        raise UserError(f"{store.path}: {format_.name} needs the level {wanted}, and the store has {there}")
    found = store.schema(level).level
    if found not in format_.levels:
        raise UserError(
            f"`level='{level}'`: {format_.name} holds {' or '.join(format_.levels)} rows; pass another level"
        )
    return found


def _features(
    store: Store, format_: type[Output], level: Level, feature: str | None, layers: str | None
) -> tuple[FeatureColumn, ...]:
    """Return the vectors of each row, described."""
    if feature is not None and layers is not None:
        raise ConfigError("`feature` and `layers` name the vectors twice; drop one")
    stored = store.features(level)
    single = [column.name for column in stored if column.combine == Combine.NONE]
    if layers is not None:
        numbers = parse_layers(layers, store.manifest["model"]["n_layers"])
        names = [f"layer_{number:02d}" for number in numbers]
    elif feature is not None:
        names = [feature]
    else:
        names = single if single and format_.has_layers else [column.name for column in stored]
        if len(names) > 1 and not (single and format_.has_layers):
            raise UserError(f"{store.path}: several features at level {level}: {', '.join(names)}; name one: `feature`")
    if len(names) > 1 and not format_.has_layers:
        raise UserError(f"{format_.name} holds one vector per row, and `layers` names {len(names)}; name one")
    return tuple(store.feature(level, name) for name in names)


@contextlib.contextmanager
def _work_folder(path: Path) -> Iterator[Path]:
    """Yield the hidden folder beside a place in which an export grows; a mistake of the user removes it.

    Raises:
        RunError: Another export is writing to the same place.
    """
    work = path.absolute().with_name(f".{path.name}.export")
    make_folder(work)
    with write_errors(work):
        try:
            held = lock(work, os.O_RDONLY | os.O_DIRECTORY)
        except BlockingIOError:
            raise RunError(f"{path}: another process is exporting to it; wait for its end") from None
    try:
        yield work
        shutil.rmtree(work, ignore_errors=True)
    except UserError:
        shutil.rmtree(work, ignore_errors=True)
        raise
    finally:
        os.close(held)


def _write(writer: Output, work: Path, shards: list[ShardRows], reports: Progress) -> None:
    """Write all shards that an earlier run has not written, and complete the result."""
    settings = _settings(writer)
    with write_errors(work), contextlib.closing(writer):
        n_done = _opened(writer, work, settings)
        n_rows, total = sum(shard.n_rows for shard in shards[:n_done]), writer.job.n_rows
        n_documents = sum(shard.n_documents for shard in shards[:n_done])
        for number, shard in enumerate(shards[n_done:], n_done + 1):
            reports.stage("exporting rows", n_rows, total)
            for rows in writer.job.chosen.blocks(shard, n_documents):
                writer.write(rows)
                n_rows += rows.vectors.shape[1]
                n_documents += len(rows.bounds) - 1
                reports.stage("exporting rows", n_rows, total)
            saved = {"settings": settings, "n_shards": number, "saved": writer.save()}
            step("export.saved")
            publish_bytes(work / _STATE, json.dumps(saved).encode())
        writer.finish()
        step("export.finished")


def _settings(writer: Output) -> str:
    """Return a digest of all that an export depends on."""
    chosen = writer.job.chosen
    fields = {
        "bertfeat": __version__,
        "format": writer.name,
        "store": chosen.store.manifest["plan_hash"],
        "shards": chosen.store.manifest["shards"],
        "level": str(chosen.level),
        "features": [asdict(feature) for feature in chosen.features],
        "limit": chosen.limit,
    }
    return hash_fields(fields)


def _opened(writer: Output, work: Path, settings: str) -> int:
    """Open the output where an earlier run with the same settings stopped; return the shards that are done."""
    try:
        state = json.loads(read_small(work / _STATE))
        if state["settings"] == settings:
            writer.open(state["saved"])
            return int(state["n_shards"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        writer.close()
    for entry in work.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    writer.open(None)
    return 0


@os_errors(RunError)
def _publish(writer: Output, path: Path, *, overwrite: bool) -> None:
    """Give the result its place in one step."""

    def check() -> None:
        _check_place(type(writer), path, overwrite=overwrite)

    if not writer.endings:
        replace_folder(writer.result, path.absolute(), check)
        return
    check()
    if overwrite:
        writer.result.replace(path)
    elif not link_exclusive(writer.result, path):
        check()
    step("export.renamed")
    sync_folder(path.absolute().parent)
