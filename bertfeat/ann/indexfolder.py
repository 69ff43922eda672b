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
from typing import Any

import numpy.typing as npt
from safetensors.numpy import load

from bertfeat.ann.description import DESCRIPTION, FILES, FORMAT_VERSION, QUERIES, TRANSFORM, IndexDescription
from bertfeat.ann.indexfiles import write_arrays
from bertfeat.ann.transforms import Transform
from bertfeat.durable import files
from bertfeat.durable.placecheck import check_folder
from bertfeat.durable.publication import publish_bytes, replace_folder
from bertfeat.durable.records import FileDigest, read_checked, read_record, seal
from bertfeat.errors import UserError
from bertfeat.records import Float32Array

BUILD_AGAIN = "build the index again"


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
        UserError: The file is missing or damaged.
    """
    arrays = _arrays(folder / TRANSFORM, description)
    return None if arrays is None else Transform.from_arrays(arrays)


def write_queries(folder: Path, vectors: Float32Array) -> None:
    """Write the queries that an index is tuned by, float32 (n_queries, dim), raw."""
    write_arrays(folder / QUERIES, {"vectors": vectors})


def read_queries(folder: Path, description: IndexDescription) -> Float32Array | None:
    """Return the queries that an index was tuned by, float32 (n_queries, dim), raw; None if none were given.

    Raises:
        UserError: The file is missing or damaged.
    """
    arrays = _arrays(folder / QUERIES, description)
    return None if arrays is None else arrays["vectors"]


def _arrays(path: Path, description: IndexDescription) -> dict[str, npt.NDArray[Any]] | None:
    """Return the arrays of a file of an index, checked by its digest; None if the index has no such file."""
    wanted = description.files.get(path.name)
    return None if wanted is None else load(read_checked(path, wanted, BUILD_AGAIN))


def write_description(folder: Path, description: IndexDescription) -> None:
    """Publish `index.json`."""
    publish_bytes(folder / DESCRIPTION, seal(description))


def read_description(folder: Path) -> IndexDescription:
    """Return the description of an index; its other files are not read.

    Raises:
        UserError: There is no index; or its description is damaged, or of a newer format.
    """
    return read_record(IndexDescription, folder, "index", FORMAT_VERSION, BUILD_AGAIN)


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
            elif FileDigest.of(path) != wanted:
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
    """
    check_place(final, overwrite=overwrite)
    with files.write_errors(building):
        names = sorted({entry.name for entry in building.iterdir()} - {DESCRIPTION})
        digests = {name: FileDigest.of(building / name) for name in names}
    written = dataclasses.replace(description, files=digests)
    write_description(building, written)
    replace_folder(building, final)
    return written


def check_files(folder: Path, description: IndexDescription) -> None:
    """Raise a UserError with its name if a file is missing or has changed."""
    for name, reason in find_mismatches(folder, description).items():
        raise UserError(f"{folder / name}: {reason}; {BUILD_AGAIN}")
