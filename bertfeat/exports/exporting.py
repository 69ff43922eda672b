"""`export`: the vectors of a store become a file, or a folder of files, that other tools read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bertfeat import extensions
from bertfeat.choices import Combine, Level
from bertfeat.durable import files
from bertfeat.durable.placecheck import check_file, check_folder
from bertfeat.durable.publication import publish_file, publish_folder, recover
from bertfeat.encoder.layers import parse_layers
from bertfeat.errors import ConfigError, UserError, did_you_mean
from bertfeat.exports.outputs import FORMATS, Format, Selection
from bertfeat.progress import Progress, reporting
from bertfeat.storage import local_path
from bertfeat.store.reader import Store, as_store


@dataclass(frozen=True, slots=True)
class ExportResult:
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
) -> ExportResult:
    """Write vectors of a store as a file, or a folder of files, of another tool.

    Memory holds the texts of one shard, and 4 MB of vectors or one document. The result appears when all of it is
    written.

    Args:
        store: A finished store, its folder or its URL.
        output: The file or the folder.
        to: The format: `google-jsonl`, `neurox-hdf5`, `structural-probes-hdf5`, `npy`, `word2vec`, `projector`, or the
            name that an installed package adds.
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
        RunError: The system refused a write; what was there before is unchanged.

    Examples:
        >>> export("features", "vectors.txt", to="word2vec", level="sentence")  # doctest: +SKIP
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"`limit` {limit} is below 1")
    format_, path = _format(to), local_path(output, "an export")

    def check() -> None:
        if format_.endings:
            check_file(path, overwrite=overwrite, endings=format_.endings)
        else:
            check_folder(path, f"an export to {to}", format_.files, overwrite=overwrite)

    recover(path)
    check()
    if format_.library and find_spec(format_.library) is None:
        raise UserError(f"{to} needs {format_.library}: pip install 'bertfeat[hdf5]'")
    chosen = _selection(as_store(store), to, level, feature, layers, limit)
    with reporting(progress) as reports, _published(path, format_, check) as sinks, files.write_errors(path):
        format_.write(chosen, sinks, reports)
    return ExportResult(
        path=path,
        format=to,
        level=str(chosen.level),
        features=tuple(found.name for found in chosen.features),
        n_rows=chosen.n_rows,
        n_documents=chosen.n_documents,
        n_without_vector=chosen.n_rows - chosen.n_vectors,
        n_bytes=sum(file.stat().st_size for file in ([path] if format_.endings else path.iterdir())),
    )


def _format(to: str) -> Format:
    added = extensions.names("exports") if to not in FORMATS else []
    if to not in FORMATS and to not in added:
        known = [*FORMATS, *added]
        raise ConfigError(f"`to` {to!r}: {did_you_mean(to, known) or 'must be one of ' + ', '.join(known)}")
    found: Format = FORMATS.get(to) or extensions.load("exports", to)
    return found


@contextlib.contextmanager
def _published(path: Path, format_: Format, check: Callable[[], None]) -> Iterator[list[files.Sink]]:
    """Yield the sinks of a format's files, which get their place together at the end, if `check` still allows it."""

    def place(new: Path, final: Path) -> None:
        check()
        new.replace(final)

    if format_.endings:
        files.make_parents(path)
        with publish_file(path, kind="export", place=place) as sink:
            yield [sink]
        return
    with publish_folder(path, check) as new, contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(files.Sink(new / name))) for name in format_.files]


def _selection(
    store: Store, to: str, level: str | None, feature: str | None, layers: str | None, limit: int | None
) -> Selection:
    """Return the rows and vectors to write; refuse what the format cannot hold."""
    format_ = _format(to)
    known = store.choose_level(level, format_.levels)
    if known not in format_.levels:
        raise UserError(f"`level='{level}'`: {to} holds {' or '.join(format_.levels)} rows; pass another level")
    names = _features(store, to, known, feature, layers)
    chosen = Selection(store, known, tuple(store.feature(known, one) for one in names), limit)
    n_rows, n_without = chosen.n_rows, chosen.n_rows - chosen.n_vectors
    reason = ""
    if chosen.features[0].dim < format_.min_dim:
        reason = f"{names[0]} has one value per vector, which readers of {to} refuse; use npy"
    elif n_rows == 0:
        reason = f"level {known} has no rows; there is nothing to export"
    elif n_without == n_rows:
        reason = f"no row at level {known} has a vector; there is nothing to export"
    elif n_without and format_.needs_vectors:
        reason = f"{n_without} of {n_rows} {known} rows have no vector, and JSON has no NaN; export to npy or HDF5"
    if reason:
        raise UserError(f"{store.path}: {reason}")
    return chosen


def _features(store: Store, to: str, level: Level, feature: str | None, layers: str | None) -> list[str]:
    """Return the names of the vectors of each row."""
    has_layers = _format(to).has_layers
    if feature is not None and layers is not None:
        raise ConfigError("`feature` and `layers` name the vectors twice; drop one")
    if feature is not None:
        return [feature]
    if layers is not None:
        names = [f"layer_{number:02d}" for number in parse_layers(layers, store.manifest.model.n_layers)]
        if len(names) > 1 and not has_layers:
            raise UserError(f"{to} holds one vector per row, and `layers` names {len(names)}; name one")
        return names
    stored = store.features(level)
    single = [column.name for column in stored if column.combine == Combine.NONE] if has_layers else []
    names = single or [column.name for column in stored]
    if len(names) > 1 and not single:
        raise UserError(f"{store.path}: several features at level {level}: {', '.join(names)}; name one: `feature`")
    return names
