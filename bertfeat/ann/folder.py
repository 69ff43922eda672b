"""Folder of an index: written aside, published whole, and read back; digests find damage, not forgery."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save

from bertfeat.ann.description import DESCRIPTION, FILES, FORMAT_VERSION, QUERIES, TRANSFORM, IndexDescription
from bertfeat.ann.transforms import Transform, transform_of
from bertfeat.durable import files
from bertfeat.durable.output_check import check_folder
from bertfeat.durable.publication import publish_bytes, publish_file, replace_folder
from bertfeat.durable.records import FileDigest, decode, encode, read_record, seal
from bertfeat.errors import UserError
from bertfeat.records import Float32Array

_T = TypeVar("_T")
_BUILD_AGAIN = "with `overwrite`, build the index again"


def check_place(final: Path, *, overwrite: bool = False) -> None:
    """Refuse a place that an index must not be written to; see `check_folder`."""
    check_folder(final, "an index", (DESCRIPTION, *FILES), overwrite=overwrite)


def publish_aside(path: Path) -> AbstractContextManager[files.Sink]:
    """Publish a file in a folder that only this process writes to; what a killed process left is overwritten."""
    return publish_file(path, aside=path.with_name(f".{path.name}.tmp"))


def write_json(path: Path, content: Any) -> None:
    """Publish a record or another JSON value."""
    with publish_aside(path) as sink:
        sink.write(encode(content))


def read_json(path: Path, kind: type[_T]) -> _T | None:
    """Return the value of a file that `write_json` wrote, or None without a file."""
    return decode(kind, path.read_bytes()) if path.exists() else None


def write_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Publish arrays as safetensors."""
    with publish_aside(path) as sink:
        sink.write(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]] | None:
    """Return the arrays of a file that `write_arrays` wrote, or None without a file."""
    return load_file(path) if path.exists() else None


def read_transform(folder: Path) -> Transform | None:
    """Return the fitted transform of an index; None if it has none."""
    arrays = read_arrays(folder / TRANSFORM)
    return None if arrays is None else transform_of(arrays)


def read_given(folder: Path) -> Float32Array | None:
    """Return the given queries that an index was tuned by, float32 (n_queries, dim), raw; None if there were none."""
    arrays = read_arrays(folder / QUERIES)
    return None if arrays is None else arrays["vectors"]


def write_index(path: Path, index: Any) -> None:
    """Publish a faiss index."""
    # Imported here because the folder of an index is described without faiss.
    from bertfeat.ann.library import faiss

    with publish_aside(path) as sink:
        # Through Python's file: faiss does not sync the files that it opens, and ignores a full disk.
        faiss.write_index(index, faiss.PyCallbackIOWriter(sink.write))


def read_index(path: Path, *, mmap: bool = False) -> Any:
    """Return the faiss index of a file, in memory or mapped; a UserError tells of one that faiss cannot read."""
    from bertfeat.ann.library import faiss

    # This flag maps flat, inverted-file, graph and quantized indexes alike; IO_FLAG_MMAP knows inverted lists only.
    flags = faiss.IO_FLAG_MMAP_IFC if mmap else 0
    try:
        return faiss.read_index(str(path.resolve()), flags)
    except (RuntimeError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path}: cannot be loaded: {reason[-300:]}; {_BUILD_AGAIN}") from error


def write_description(folder: Path, description: IndexDescription) -> None:
    """Publish `index.json`."""
    publish_bytes(folder / DESCRIPTION, seal(description))


def read_description(folder: Path) -> IndexDescription:
    """Return the description of an index; its other files are not read. Errors are those of `read_record`."""
    return read_record(IndexDescription, folder, "index", FORMAT_VERSION, _BUILD_AGAIN)


def check_files(folder: Path, description: IndexDescription) -> None:
    """Raise a UserError with its name if a file is missing or has changed; every file is read whole."""
    for name, wanted in description.files.items():
        path = (folder / name).resolve()
        try:
            if FileDigest.of(path) == wanted:
                continue
            reason = f"its content does not match the digest in {DESCRIPTION}"
        except FileNotFoundError:
            reason = "is missing"
        except OSError as error:
            reason = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise UserError(f"{folder / name}: {reason}; {_BUILD_AGAIN}")


def publish(building: Path, final: Path, description: IndexDescription, *, overwrite: bool = False) -> None:
    """Publish the folder of a finished index: its place holds the old index or none, and then the whole new one."""
    check_place(final, overwrite=overwrite)
    with files.write_errors(building):
        names = sorted({entry.name for entry in building.iterdir()} - {DESCRIPTION})
        digests = {name: FileDigest.of(building / name) for name in names}
    write_description(building, dataclasses.replace(description, files=digests))
    replace_folder(building, final)
