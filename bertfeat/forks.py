"""Checks of a forked process, as `multiprocessing` makes them: it lacks the threads that libraries started before.

A call that needs them waits for ever. `fork` is multiprocessing's default on Linux before Python 3.14.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from bertfeat.errors import UserError

# Libraries that compute with OpenMP, and how to have them use one thread.
_OPENMP = {"torch": "set_num_threads", "faiss": "omp_set_num_threads"}
_found: set[str] = set()
_lost: set[str] = set()


def _find() -> None:
    """Find the libraries that have threads, or may have; threads of polars have names, where there is /proc."""
    _found.update(_OPENMP.keys() & sys.modules.keys())
    if "polars" in sys.modules:
        for path in Path("/proc/self/task").glob("*/comm"):
            with contextlib.suppress(OSError):
                _found.update(["polars"] if path.read_text().startswith("polars-0") else [])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_find, after_in_child=lambda: _lost.update(_found))


def check_polars() -> None:
    """Check that polars can compute here."""
    if "polars" in _lost:
        raise UserError(
            "this process is a fork of one that has used polars, which waits for ever here; start processes with spawn "
            "or forkserver: multiprocessing.get_context('spawn')"
        )


def limit_threads() -> bool:
    """Have OpenMP use one thread if this is a fork of a process that may have used more; return whether it is."""
    names = _OPENMP.keys() & _lost
    for name in names:
        getattr(sys.modules[name], _OPENMP[name])(1)
    return bool(names)
