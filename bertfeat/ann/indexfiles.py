"""Files of a build that a kill cannot turn into wrong ones: written aside, synced, and only then given their name."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save

from bertfeat.store import files
from bertfeat.store.files import Sink

Step = Callable[[str], None]


def no_step(name: str) -> None:
    """Do nothing; a drill puts its own function in its place, which is told the name of each step passed."""


def write(path: Path, write_to: Callable[[Sink], None], step: Step) -> None:
    """Write a file so that it is whole or not there.

    Args:
        path: The file; one that is there is replaced.
        write_to: Writes the content.
        step: Told `NAME written` and `NAME renamed`.

    Raises:
        RunError: The system refused.
    """
    tmp = path.with_name(f".{path.name}.tmp")
    with files.write_errors(path.parent, path.name):
        tmp.unlink(missing_ok=True)
        with files.removed_on_error(tmp), contextlib.closing(Sink(tmp)) as sink:
            with files.write_errors(path.parent, path.name, sink):
                write_to(sink)
            step(f"{path.name} written")
            sink.sync()
            tmp.replace(path)
        files.sync_folder(path.parent)
    step(f"{path.name} renamed")


def write_json(path: Path, content: Any, step: Step) -> None:
    """Write a JSON file so that it is whole or not there."""
    data = json.dumps(content, indent=1, allow_nan=False).encode("ascii")
    write(path, partial(_write_bytes, data), step)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file that `write_json` wrote; None if it is not there."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def write_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]], step: Step) -> None:
    """Write arrays as safetensors, whole or not at all."""
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    write(path, partial(_write_bytes, data), step)


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]] | None:
    """Return the arrays of a file that `write_arrays` wrote; None if it is not there."""
    return load_file(path) if path.exists() else None


def write_index(path: Path, index: Any, step: Step) -> None:
    """Write a faiss index, whole or not at all."""
    # Through Python's file, for what faiss opens itself it does not sync, and it takes no notice of a full disk.
    write(path, lambda sink: faiss.write_index(index, faiss.PyCallbackIOWriter(sink.write)), step)


def read_index(path: Path) -> Any:
    """Return a faiss index that `write_index` wrote, in memory."""
    with path.open("rb") as file:
        return faiss.read_index(faiss.PyCallbackIOReader(file.read))


def _write_bytes(data: bytes, sink: Sink) -> None:
    sink.write(data)
