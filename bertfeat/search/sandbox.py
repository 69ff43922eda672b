"""Searches an index that nobody vouches for in a process of its own, which may crash, hang or lie at no one's cost.

faiss checks little of what it reads: a damaged or hostile file can crash it, or worse. So it is loaded where it can do
little: once the process has mapped the file it can open nothing any more, neither file nor connection; it writes to no
file, and its memory and computing time are bounded. What it answers is checked like any input. This keeps
accidents and simple attacks away; it is no wall against an attack on the system's kernel.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from bertfeat.errors import RunError, UserError
from bertfeat.records import BoolArray, IntArray
from bertfeat.search.description import IndexDescription
from bertfeat.search.factory import describe
from bertfeat.search.hits import Hits
from bertfeat.search.metrics import Metric
from bertfeat.search.sandbox_process import ProcessFailed, SandboxProcess
from bertfeat.search.sources import checked_queries
from bertfeat.search.transforms import Float32Array, Transform

# The most that one request asks for, so that the time it may take can be bounded: comparisons of numbers, and hits.
_MAX_QUERIES = 256
_MAX_COMPARISONS = 4_000_000_000
_MAX_HITS = 1 << 22
_PROCESS = "the process that it is loaded in"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the process may use.

    Attributes:
        extra_bytes: Memory beyond twice the size of the file, and the tables that faiss computes when it loads it.
        load_s: Seconds to start, and again to load the file.
        answer_s: Seconds to answer one request of at most 256 queries; a large index is asked fewer at once.
        cpu_s: Seconds of computing in all.
    """

    extra_bytes: int = 1 << 30
    load_s: float = 120.0
    answer_s: float = 120.0
    cpu_s: int = 4 * 3600


DEFAULT_LIMITS = Limits()


class SandboxedIndex:
    """An index in a process with limits: what `VectorIndex` does, on one thread; see `SearchesVectors`.

    Args:
        path: The faiss file.
        description: What the index is said to be.
        transform: Its fitted transform.
        limits: What the process may use.

    Raises:
        UserError: faiss cannot load the file, crashes on it, takes more memory or time than it may, or loads something
            else than the description says.
        RunError: The process cannot be started.
    """

    def __init__(
        self, path: Path, description: IndexDescription, transform: Transform | None, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self.n_vectors = description.n_vectors
        self.dim = description.dim
        self.metric = description.metric
        self.transform = transform
        self._path = path
        self._index_dim = description.index_dim
        self._limits = limits
        self._lock = threading.Lock()
        self._process = self._start(description)
        self._load()

    def search(self, queries: npt.NDArray[Any], k: int, *, allowed: BoolArray | None = None) -> Hits:
        """Find the k closest vectors of each query.

        Args:
            queries: float (n_queries, dim), raw.
            k: How many to find, 1 or more.
            allowed: bool (n_vectors,), which may be found; None for all.

        Raises:
            UserError: The arguments cannot be used; or faiss refuses, crashes, takes more memory or time than it may,
                or finds what cannot be. After all but a refusal the index is closed.
        """
        vectors = checked_queries(queries, self.dim)
        if k < 1:
            raise UserError(f"k is {k}: ask for 1 hit or more")
        if allowed is not None and (allowed.dtype != np.bool_ or allowed.shape != (self.n_vectors,)):
            raise UserError(f"allowed is {allowed.dtype} of shape {allowed.shape}: give bool of ({self.n_vectors},)")
        scores = np.full((len(vectors), k), np.nan, np.float32)
        positions = np.full((len(vectors), k), -1, np.int64)
        n_found = min(k, self.n_vectors)
        if n_found:
            step = self._queries_at_once(n_found)
            for start in range(0, len(vectors), step):
                block = slice(start, start + step)
                scores[block, :n_found], positions[block, :n_found] = self._ask(vectors[block], n_found, allowed)
        return Hits(scores, positions)

    def close(self) -> None:
        """End the process."""
        self._process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _queries_at_once(self, k: int) -> int:
        n_comparisons = self.n_vectors * self._index_dim
        return max(1, min(_MAX_QUERIES, _MAX_COMPARISONS // n_comparisons, _MAX_HITS // k))

    def _start(self, description: IndexDescription) -> SandboxProcess:
        """Start the process and wait until it has its limits; the index has not been touched by then."""
        try:
            real = self._path.resolve(strict=True)
            n_bytes = real.stat().st_size
        except OSError as error:
            raise UserError(f"{self._path}: {(error.strerror or str(error)).lower()}; build the index again") from error
        settings = {
            "path": str(real),
            "metric": str(self.metric),
            "parameters": dict(description.parameters),
            "max_bytes": 2 * n_bytes + _table_bytes(description) + self._limits.extra_bytes,
            "cpu_s": self._limits.cpu_s,
        }
        try:
            process = SandboxProcess(settings)
            header = process.receive_header(self._deadline(self._limits.load_s))
        except (OSError, ProcessFailed) as error:
            raise RunError(f"cannot start a process to load {self._path} in: {error}") from error
        if header != {"ready": True}:
            process.end()
            raise RunError(f"cannot start a process to load {self._path} in: {_shown(header)}")
        return process

    def _load(self) -> None:
        """Hand over the transform, wait until the index is loaded, and compare it with its description."""
        arrays = {} if self.transform is None else self.transform.to_arrays()
        shapes = {name: array.shape for name, array in arrays.items()}
        deadline = self._deadline(self._limits.load_s)
        try:
            data = [np.ascontiguousarray(array).data for array in arrays.values()]
            self._process.send(shapes, *data, deadline=deadline)
            header = self._process.receive_header(deadline)
        except ProcessFailed as error:
            self._fail(f"{_PROCESS} {error}")
        if "error" in header:
            self._fail(f"cannot be loaded: {_shown(header['error'])}")
        wanted = {"dim": self.dim, "index_dim": self._index_dim, "n_vectors": self.n_vectors}
        if header != wanted:
            self._fail(f"is {_shown(header)}, not {json.dumps(wanted)} as its description says")

    def _ask(self, vectors: Float32Array, k: int, allowed: BoolArray | None) -> tuple[Float32Array, IntArray]:
        packed = b"" if allowed is None else np.packbits(allowed, bitorder="little").tobytes()
        n_allowed = 0 if allowed is None else len(allowed)
        request = {"n_queries": len(vectors), "dim": self.dim, "k": k, "n_allowed": n_allowed}
        with self._lock:
            try:
                deadline = self._deadline(self._limits.answer_s)
                self._process.send(request, vectors.data, packed, deadline=deadline)
                header = self._process.receive_header(deadline)
                if "error" in header:
                    raise UserError(f"{self._path}: {_shown(header['error'])}")
                if header != {"found": True}:
                    self._fail(f"{_PROCESS} gave a garbled answer")
                scores = self._array(np.float32, len(vectors), k, deadline)
                positions = self._array(np.int64, len(vectors), k, deadline)
            except UserError:
                raise
            except ProcessFailed as error:
                self._fail(f"{_PROCESS} {error}")
            except BaseException:
                # The answer, which nobody waits for any more, would be taken for that to the next request.
                self._process.end()
                raise
        if reason := self._oddity(scores, positions, allowed):
            self._fail(f"{_PROCESS} {reason}")
        return scores, positions

    def _array(self, kind: type[np.generic], n_rows: int, n_columns: int, deadline: float) -> npt.NDArray[Any]:
        data = self._process.receive(n_rows * n_columns * np.dtype(kind).itemsize, deadline)
        return np.frombuffer(data, kind).reshape(n_rows, n_columns)

    def _oddity(self, scores: Float32Array, positions: IntArray, allowed: BoolArray | None) -> str | None:
        """Return what is wrong with hits, (n_queries, k), or None."""
        if int(positions.min()) < -1 or int(positions.max()) >= self.n_vectors:
            return "found a position that there is not"
        there = positions >= 0
        if not np.isfinite(scores[there]).all():
            return "gave a score that is no number"
        if not np.isnan(scores[~there]).all():
            return "gave a score where it found nothing"
        if not self._can_be(scores[there]):
            return f"gave a score that no {self.metric} has"
        if allowed is not None and not allowed[positions[there]].all():
            return "found a vector that was not allowed"
        ordered = np.sort(positions, axis=1)
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
            return "found a vector twice"
        return None

    def _can_be(self, scores: Float32Array) -> bool:
        if self.metric is Metric.COSINE:
            return bool((np.abs(scores) <= 1).all())
        return self.metric is Metric.IP or bool((scores >= 0).all())

    def _deadline(self, seconds: float) -> float:
        return time.monotonic() + seconds

    def _fail(self, reason: str) -> NoReturn:
        self._process.end()
        raise UserError(f"{self._path}: {reason}; the file is damaged or hostile, build the index again")


def _table_bytes(description: IndexDescription) -> int:
    try:
        return describe(description.factory, description.index_dim, description.metric).table_bytes
    except UserError:
        # Not an index that bertfeat builds; whether faiss has it is for faiss to say.
        return 0


def _shown(value: object) -> str:
    """Show what the process said, on one line and not too long."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(letter if letter.isprintable() else "?" for letter in text[:300])
