"""`export`: the vectors of a store become a file, or a folder of files, that other tools read."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bertfeat._version import __version__
from bertfeat.choices import Combine
from bertfeat.durable import files
from bertfeat.durable.filelock import ALONE, lock
from bertfeat.durable.placecheck import check_file, check_folder
from bertfeat.durable.publication import publish_bytes, recover, replace_folder
from bertfeat.durable.records import hash_of_json, seal, unseal
from bertfeat.durable.steps import step
from bertfeat.encoder.layers import parse_layers
from bertfeat.errors import ConfigError, RunError, StoreError, UserError, did_you_mean
from bertfeat.exports.hdf5outputs import NeuroxHdf5, StructuralProbesHdf5
from bertfeat.exports.outputs import GoogleJson, Npy, Output, Projector, Word2vec
from bertfeat.exports.selectedrows import Selection
from bertfeat.progress import Progress, reporting
from bertfeat.storage import local_path
from bertfeat.store.reader import Store, open_store

FORMATS: dict[str, type[Output]] = {
    found.name: found for found in (GoogleJson, NeuroxHdf5, StructuralProbesHdf5, Npy, Word2vec, Projector)
}
_STATE = "state.json"


@dataclass(frozen=True, slots=True)
class Exported:
    """A written export: its file or folder, the vectors of each row by name, and the size.

    `n_rows` and `n_documents` count what was read of the store; a document without rows at the level does not count.
    `n_without_vector` are the rows without a vector: NaN, or left out where the format has no place for them.
    """

    path: Path
    format: str
    level: str
    features: tuple[str, ...]
    n_rows: int
    n_documents: int
    n_without_vector: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class _State:
    """An unfinished export: a digest of its settings, the number of finished shards, and the sizes of the files."""

    settings: str
    n_shards: int
    saved: dict[str, int]


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

    Memory holds the texts of one shard, and 4 MB of vectors or one document. The result appears when all of it is
    written. The same call resumes an interrupted export at the first shard that was not finished.

    Args:
        store: A finished store, its folder or its URL.
        output: The file or the folder.
        to: The format: `google-jsonl`, `neurox-hdf5`, `structural-probes-hdf5`, `npy`, `word2vec` or `projector`.
        level: What a row stands for; by default the only stored level that the format holds.
        feature: One feature, stored or made from what is stored. By default all stored layers, or the only feature.
        layers: Layers instead, as in `extract`.
        limit: The first documents only, of those with rows at the level.
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
    if to not in FORMATS:
        known = (
            did_you_mean("projector" if "tensorboard" in to else to, FORMATS) or f"must be one of {', '.join(FORMATS)}"
        )
        raise ConfigError(f"`to` {to!r}: {known}")
    if limit is not None and limit < 1:
        raise ConfigError(f"`limit` {limit} is below 1")
    format_, path = FORMATS[to], local_path(output, "an export")
    recover(path)
    _check_place(format_, path, overwrite=overwrite)
    if format_.library and find_spec(format_.library) is None:
        raise UserError(f"{to} needs {format_.library}: pip install 'bertfeat[hdf5]'")
    opened = store if isinstance(store, Store) else open_store(store)
    chosen = _selection(opened, format_, level, feature, layers, limit)
    files.make_parents(path)
    with _work_folder(path) as work, reporting(progress) as reports:
        writer = format_(work, chosen)
        _write(writer, reports)
        written = [writer.result] if writer.endings else [*writer.result.iterdir()]
        n_bytes = sum(file.stat().st_size for file in written)
        _publish(writer, path, overwrite=overwrite)
    names = tuple(found.name for found in chosen.features)
    n_rows, n_documents = chosen.n_rows, sum(shard.n_documents for shard in chosen.shards)
    return Exported(path, to, str(chosen.level), names, n_rows, n_documents, n_rows - chosen.n_vectors, n_bytes)


def _check_place(format_: type[Output], path: Path, *, overwrite: bool) -> None:
    if format_.endings:
        check_file(path, overwrite=overwrite, endings=format_.endings)
    else:
        check_folder(path, f"an export to {format_.name}", format_.files, overwrite=overwrite)


def _selection(
    store: Store, format_: type[Output], level: str | None, feature: str | None, layers: str | None, limit: int | None
) -> Selection:
    """Return the rows and vectors to write; refuse what the format cannot hold."""
    known = store.choose_level(level, format_.levels)
    if known not in format_.levels:
        reason = f"{format_.name} holds {' or '.join(format_.levels)} rows; pass another level"
        raise UserError(f"`level='{level}'`: {reason}")
    names = _features(store, format_, known, feature, layers)
    chosen = Selection(store, known, tuple(store.feature(known, one) for one in names), limit)
    if chosen.features[0].dim < format_.min_dim:
        reason = f"{names[0]} has one value per vector, which readers of {format_.name} refuse; use npy"
        raise UserError(f"{store.path}: {reason}")
    n_rows, n_without = chosen.n_rows, chosen.n_rows - chosen.n_vectors
    if n_without == n_rows:
        what = f"no row at level {known} has a vector" if n_rows else f"level {known} has no rows"
        raise UserError(f"{store.path}: {what}; there is nothing to export")
    if n_without and format_.needs_vectors:
        reason = f"{n_without} of {n_rows} {known} rows have no vector, and JSON has no NaN; export to npy or HDF5"
        raise UserError(f"{store.path}: {reason}")
    return chosen


def _features(store: Store, format_: type[Output], level: str, feature: str | None, layers: str | None) -> list[str]:
    """Return the names of the vectors of each row."""
    if feature is not None and layers is not None:
        raise ConfigError("`feature` and `layers` name the vectors twice; drop one")
    if feature is not None:
        return [feature]
    if layers is not None:
        names = [f"layer_{number:02d}" for number in parse_layers(layers, store.manifest.model.n_layers)]
        if len(names) > 1 and not format_.has_layers:
            raise UserError(f"{format_.name} holds one vector per row, and `layers` names {len(names)}; name one")
        return names
    stored = store.features(level)
    single = [column.name for column in stored if column.combine == Combine.NONE] if format_.has_layers else []
    names = single or [column.name for column in stored]
    if len(names) > 1 and not single:
        raise UserError(f"{store.path}: several features at level {level}: {', '.join(names)}; name one: `feature`")
    return names


@contextlib.contextmanager
def _work_folder(path: Path) -> Iterator[Path]:
    """Yield the hidden folder beside a place in which an export grows; a mistake of the user removes it.

    Raises:
        RunError: Another export is writing to the same place.
    """
    work = path.absolute().with_name(f".{path.name}.export")
    with files.write_errors(work):
        try:
            held = lock(work, os.O_RDONLY | os.O_DIRECTORY, ALONE, files.make_folder)
        except BlockingIOError:
            raise RunError(f"{path}: another process is exporting to it; wait for its end") from None
    try:
        yield work
        shutil.rmtree(work, ignore_errors=True)
    except UserError as error:
        # Once a damaged part is restored, the export resumes.
        if not isinstance(error, StoreError):
            shutil.rmtree(work, ignore_errors=True)
        raise
    finally:
        os.close(held)


def _write(writer: Output, reports: Progress) -> None:
    """Write all shards that an earlier run has not written, and complete the result."""
    chosen, state = writer.chosen, writer.folder / _STATE
    settings = _settings(writer)
    with files.write_errors(writer.folder), contextlib.closing(writer):
        n_done = _opened(writer, settings)
        n_rows, total = sum(shard.n_rows for shard in chosen.shards[:n_done]), chosen.n_rows
        n_documents = sum(shard.n_documents for shard in chosen.shards[:n_done])
        for number, shard in enumerate(chosen.shards[n_done:], n_done + 1):
            reports.stage("exporting rows", n_rows, total)
            for rows in chosen.blocks(shard, n_documents):
                writer.write(rows)
                n_rows += rows.vectors.shape[1]
                n_documents += len(rows.bounds) - 1
                reports.stage("exporting rows", n_rows, total)
            saved = writer.save()
            step("export.saved")
            publish_bytes(state, seal(_State(settings, number, saved)))
        writer.finish()
        step("export.finished")


def _settings(writer: Output) -> str:
    """Return a digest of all that an export depends on."""
    chosen, manifest = writer.chosen, writer.chosen.store.manifest
    fields = {
        "bertfeat": __version__,
        "format": writer.name,
        "store": manifest.plan_hash,
        "shards": manifest.shards,
        "level": str(chosen.level),
        "features": chosen.features,
        "limit": chosen.limit,
    }
    return hash_of_json(fields)


def _opened(writer: Output, settings: str) -> int:
    """Open the output where an earlier run with the same settings stopped; return the shards that are done."""
    try:
        state = unseal(_State, files.read_small(writer.folder / _STATE))
        if state.settings == settings:
            writer.open(state.saved)
            return state.n_shards
    except (FileNotFoundError, ValueError):
        writer.close()
    for entry in writer.folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    writer.open(None)
    return 0


@files.os_errors(RunError)
def _publish(writer: Output, path: Path, *, overwrite: bool) -> None:
    """Give the result its place in one step."""

    def check() -> None:
        _check_place(type(writer), path, overwrite=overwrite)

    if not writer.endings:
        replace_folder(writer.result, path.absolute(), check)
        return
    if overwrite:
        writer.result.replace(path)
    elif not files.link_exclusive(writer.result, path):
        check()
    step("export.renamed")
    files.sync_path(path.absolute().parent)
