"""The process with limits that an index from elsewhere is loaded and searched in; `sandbox_process.py` starts it.

It is run as a file, and loads NumPy, faiss and `bertfeat.search.index`, and with these nothing that the command line or
a store needs. Requests come on standard input, answers go to what was standard output: the length of a JSON header (4
bytes, little-endian), the header, and after it raw arrays.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import re
import resource
import stat
import struct
import sys
from pathlib import Path
from typing import IO, Any

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_MAX_REASON = 300


def _limit(settings: dict[str, Any]) -> None:
    """Take away what loading an index does not need; what is already mapped does not count as memory."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        n_mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * mmap.PAGESIZE
        _set(resource.RLIMIT_AS, n_mapped + settings["max_bytes"])
    # The first limit ends the process by a signal that tells why, the second one in any case.
    _set(resource.RLIMIT_CPU, settings["cpu_s"], settings["cpu_s"] + 5)
    _set(resource.RLIMIT_FSIZE, 0)
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_NPROC, 0)


def _set(what: int, limit: int, hard_limit: int | None = None) -> None:
    wanted = (limit, limit if hard_limit is None else hard_limit)
    there = resource.getrlimit(what)[1]
    if there != resource.RLIM_INFINITY:
        wanted = (min(wanted[0], there), min(wanted[1], there))
    resource.setrlimit(what, wanted)


def _mapped(path: str) -> Any:
    """Return the bytes of a file, uint8, as they lie in the page cache; after that no file can be opened any more."""
    import numpy as np

    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise ValueError("not a regular file")
    data = np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), np.uint8)
    os.close(fd)
    _set(resource.RLIMIT_NOFILE, 0)
    return data


def _load(settings: dict[str, Any], data: Any, transform: Any) -> Any:
    import faiss as library

    from bertfeat.search.index import VectorIndex
    from bertfeat.search.metrics import Metric

    # Types for faiss lack much of it.
    faiss: Any = library
    index = faiss.read_index(faiss.ZeroCopyIOReader(faiss.swig_ptr(data), data.size))
    return VectorIndex(index, Metric(settings["metric"]), transform, settings["parameters"])


def _transform(source: IO[bytes]) -> Any:
    """Receive the fitted transform; None if there is none."""
    import numpy as np

    from bertfeat.search.transforms import Transform

    shapes = _header(source) or {}
    kinds = {"mean": np.float64, "matrix": np.float32}
    arrays = {name: _array(source, kinds[name], shape) for name, shape in shapes.items()}
    return Transform.from_arrays(arrays) if arrays else None


def _search(index: Any, request: dict[str, int], source: IO[bytes]) -> tuple[bytes, bytes]:
    import numpy as np

    queries = _array(source, np.float32, [request["n_queries"], request["dim"]])
    allowed = None
    if request["n_allowed"]:
        bits = _array(source, np.uint8, [-(-request["n_allowed"] // 8)])
        allowed = np.unpackbits(bits, count=request["n_allowed"], bitorder="little").view(np.bool_)
    hits = index.search(queries, request["k"], allowed=allowed)
    return hits.scores.tobytes(), hits.positions.tobytes()


def _array(source: IO[bytes], kind: Any, shape: list[int]) -> Any:
    import numpy as np

    dtype = np.dtype(kind)
    return np.frombuffer(source.read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


def _answer(out: IO[bytes], header: dict[str, Any], *arrays: bytes) -> None:
    text = json.dumps(header).encode()
    out.write(struct.pack("<I", len(text)) + text)
    for array in arrays:
        out.write(array)
    out.flush()


def _refuse(out: IO[bytes], error: Exception) -> None:
    # Without the place in faiss's sources that comes first.
    reason = re.sub(r"^Error in .* at \S+:\d+: (Error: )?", "", " ".join(str(error).split()))
    reason = reason[:_MAX_REASON] or type(error).__name__
    _answer(out, {"error": reason})


def _header(source: IO[bytes]) -> dict[str, Any] | None:
    head = source.read(4)
    if len(head) < 4:
        return None
    found: dict[str, Any] = json.loads(source.read(struct.unpack("<I", head)[0]))
    return found


def main() -> None:
    """Load the index that the arguments name, and answer requests until there are no more."""
    settings = json.loads(sys.argv[1])
    # Behind the standard library, whose modules nothing may stand in for.
    sys.path.extend(settings["import_path"])
    source, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What a library prints must not come between answers.
    os.dup2(2, 1)
    try:
        # Nothing can be imported once files cannot be opened; `np.unique` imports masked arrays when it is called.
        import faiss
        import numpy.ma

        import bertfeat.search.index

        assert numpy.ma
        assert bertfeat.search.index
        faiss.omp_set_num_threads(1)
        _limit(settings)
    except (ImportError, OSError, ValueError) as error:
        _refuse(out, error)
        return
    _answer(out, {"ready": True})
    try:
        transform = _transform(source)
        # The index points into these bytes: they have to stay.
        data = _mapped(settings["path"])
        index = _load(settings, data, transform)
    except Exception as error:
        _refuse(out, error)
        return
    _answer(out, {"dim": index.dim, "index_dim": index.index.d, "n_vectors": index.n_vectors})
    while (request := _header(source)) is not None:
        try:
            found = _search(index, request, source)
        except Exception as error:
            _refuse(out, error)
        else:
            _answer(out, {"found": True}, *found)


if __name__ == "__main__":
    main()
