"""Folder of an index: written aside, published whole, and read back with every byte checked.

    INDEX/index.json               what the index is, and the size and digest of the other files
    INDEX/index.faiss              the faiss index
    INDEX/rows.parquet             the row of the store that each vector comes from
    INDEX/transform.safetensors    the fitted transform, if there is one
    INDEX/queries.safetensors      the queries that it was tuned by, if some were given

The digests show whether a file is the one that was written, not who wrote it, and faiss checks little of what it reads:
build an index again from its store where you do not trust its author.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from bertfeat.ann.description import DESCRIPTION, FILES, QUERIES, TRANSFORM, FileDigest, IndexDescription
from bertfeat.ann.indexfiles import write_arrays
from bertfeat.ann.transforms import Transform
from bertfeat.ann.vectorparts import checked_queries
from bertfeat.durable import files
from bertfeat.durable.placecheck import check_folder, other_kind
from bertfeat.durable.publication import publish_bytes, replace_folder
from bertfeat.errors import UserError
from bertfeat.records import Float32Array
from bertfeat.store import codec

_MAX_DESCRIPTION_BYTES = 16 << 20
_MAX_QUERY_BYTES = 1 << 30


def building_folder(final: Path) -> Path:
    """Return the hidden folder, next to an index, in which it is built."""
    final = final.absolute()
    return final.with_name(f".{final.name}.building")


def check_place(final: Path, *, overwrite: bool = False) -> None:
    """Refuse a place that an index must not be written to; see `check_folder`."""
    check_folder(final, "an index", (DESCRIPTION, *FILES), overwrite=overwrite)


def write_transform(folder: Path, transform: Transform) -> None:
    """Write the fitted transform of an index that is being built."""
    write_arrays(folder / TRANSFORM, transform.to_arrays())


def read_transform(folder: Path, description: IndexDescription) -> Transform | None:
    """Return the fitted transform of an index; None if it has none.

    Raises:
        UserError: The transform is missing, damaged, or differs from the description.
    """
    if not description.has_transform:
        return None
    path = folder / TRANSFORM
    try:
        # Mean and matrix in the widest types, and a header.
        data = _read_limited(path, 8 * description.dim * (description.index_dim + 1) + (1 << 20))
        found = Transform.from_arrays(load(data))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, UserError) as error:
        raise _unreadable(path, error) from error
    if (found.dim, found.out_dim) != (description.dim, description.index_dim):
        raise UserError(
            f"{path}: turns {found.dim} dimensions into {found.out_dim}, not {description.dim} into "
            f"{description.index_dim} as {DESCRIPTION} says; build the index again"
        )
    return found


def write_queries(folder: Path, vectors: Float32Array) -> None:
    """Write the queries that an index is tuned by, float32 (n_queries, dim), raw."""
    write_arrays(folder / QUERIES, {"vectors": vectors})


def read_queries(folder: Path, description: IndexDescription) -> Float32Array | None:
    """Return the queries that an index was tuned by, float32 (n_queries, dim), raw; None if none were given.

    Raises:
        UserError: The file is missing, damaged, or differs from the description.
    """
    if QUERIES not in description.files:
        return None
    path = folder / QUERIES
    try:
        found = load(_read_limited(path, _MAX_QUERY_BYTES))["vectors"]
        if found.dtype != np.float32 or found.ndim != 2 or len(found) < 2:
            raise ValueError(f"its vectors are {found.dtype} of shape {found.shape}")
        return checked_queries(found, description.dim)
    except (OSError, ValueError, KeyError, SafetensorError, UserError) as error:
        raise _unreadable(path, error) from error


def write_description(folder: Path, description: IndexDescription) -> None:
    """Publish `index.json`."""
    publish_bytes(folder / DESCRIPTION, codec.seal(description.to_json()))


def read_description(folder: Path) -> IndexDescription:
    """Return the description of an index; its other files are not read.

    Raises:
        UserError: There is no index; or its description is damaged, or of a newer format.
    """
    path = folder / DESCRIPTION
    try:
        return IndexDescription.from_json(codec.unseal(_read_limited(path, _MAX_DESCRIPTION_BYTES)))
    except (FileNotFoundError, NotADirectoryError):
        what = (
            f"{other_kind(folder, 'index')}not an index: it has no {DESCRIPTION}"
            if folder.exists()
            else "no such folder"
        )
        raise UserError(f"{folder}: {what}; give the folder that bertfeat index build wrote") from None
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _read_limited(path: Path, max_bytes: int) -> bytes:
    n_bytes = path.stat().st_size
    if n_bytes > max_bytes:
        raise ValueError(f"it has {n_bytes} bytes")
    return files.read_small(path, follow_links=True)


def _unreadable(path: Path, error: Exception) -> UserError:
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    reason = " ".join(text.split()) or type(error).__name__
    return UserError(f"{path}: cannot be read: {reason:.300}; build the index again")


def digest_file(path: Path) -> FileDigest:
    """Return the size and digest of a file, or of what a symbolic link leads to, as in a download cache."""
    real = path.resolve()
    return FileDigest(real.stat().st_size, files.digest_of(real))


def find_mismatches(folder: Path, description: IndexDescription) -> dict[str, str]:
    """Return what is wrong with each file of an index; empty if all are as they were written.

    Every file is read whole, except one of a wrong size.
    """
    found = {}
    for name, wanted in description.files.items():
        path = (folder / name).resolve()
        try:
            n_bytes = path.stat().st_size
            if n_bytes != wanted.n_bytes:
                found[name] = f"has {n_bytes} bytes, not {wanted.n_bytes}"
            elif files.digest_of(path) != wanted.digest:
                found[name] = f"its content does not match the digest in {DESCRIPTION}"
        except FileNotFoundError:
            found[name] = "is missing"
        except OSError as error:
            found[name] = f"cannot be read: {(error.strerror or str(error)).lower()}"
    return found


def publish(building: Path, final: Path, description: IndexDescription, *, overwrite: bool = False) -> IndexDescription:
    """Publish a finished index: its place holds the old index or none, and then the whole new one.

    Args:
        building: The folder with the files of the index and no others, on the same file system.
        final: The place of the index.
        description: The description, to be written with the digests of the files in the folder.
        overwrite: Replace an index that is there.

    Returns:
        The description as written.

    Raises:
        UserError: The place holds something that must not be replaced.
        RunError: The system refused; the place holds what it held before.
        ValueError: The folder lacks files, or holds others.
    """
    check_place(final, overwrite=overwrite)
    with files.write_errors(building):
        names = sorted({entry.name for entry in building.iterdir()} - {DESCRIPTION})
        digests = {name: digest_file(building / name) for name in names}
    written = IndexDescription.from_json(dataclasses.replace(description, files=digests).to_json())
    write_description(building, written)
    replace_folder(building, final)
    return written


def check_files(folder: Path, description: IndexDescription) -> None:
    """Raise a UserError with its name if a file is missing or has changed."""
    for name, reason in find_mismatches(folder, description).items():
        raise UserError(f"{folder / name}: {reason}; build the index again")
