"""Files of a build in JSON, safetensors and faiss, each published whole, so that the next run can use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save

from bertfeat.durable.files import Sink
from bertfeat.durable.publication import publish_file
from bertfeat.durable.records import decode, encode


@contextmanager
def publish(path: Path) -> Iterator[Sink]:
    """Publish a file in a folder that only this process writes to; what a killed process left is overwritten."""
    with publish_file(path, aside=path.with_name(f".{path.name}.tmp")) as sink:
        yield sink


def write_json(path: Path, content: Any) -> None:
    """Publish a JSON file."""
    with publish(path) as sink:
        sink.write(encode(content))


def read_json(path: Path) -> Any:
    """Return the content of a file that `write_json` wrote, or None without a file."""
    try:
        return decode(Any, path.read_bytes())
    except FileNotFoundError:
        return None


def write_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Publish arrays as safetensors."""
    with publish(path) as sink:
        sink.write(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]] | None:
    """Return the arrays of a file that `write_arrays` wrote, or None without a file."""
    return load_file(path) if path.exists() else None


def write_index(path: Path, index: Any) -> None:
    """Publish a faiss index."""
    # Imported here because the folder of an index is described without faiss.
    import faiss

    with publish(path) as sink:
        # Through Python's file: faiss does not sync the files that it opens, and ignores a full disk.
        faiss.write_index(index, faiss.PyCallbackIOWriter(sink.write))


def read_index(path: Path) -> Any:
    """Return a faiss index that `write_index` wrote, in memory."""
    import faiss

    with path.open("rb") as file:
        return faiss.read_index(faiss.PyCallbackIOReader(file.read))
