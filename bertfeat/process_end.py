"""End of a process while threads of polars still call Python.

Before Python 3.14, a foreign thread that comes back into Python while the process ends aborts the process. polars stops
some queries early: after an error, or when their rows are not taken. Its threads may then come once more.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator

# A thread that has not come back for so long will not.
_QUIET_S = 0.05

_ended = threading.Lock()
# When a thread last left a block; infinity while it is in one.
_left: dict[int, float] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_left.clear)


@contextlib.contextmanager
def called_by_polars() -> Iterator[None]:
    """Keep a thread of polars that runs this block from coming back into Python once the process ends."""
    thread = threading.get_ident()
    with _ended:
        _left[thread] = math.inf
    try:
        yield
    finally:
        _left[thread] = time.monotonic()
        with _ended:
            pass


@atexit.register
def _stop() -> None:
    """Wait until threads have left their blocks; now they wait for ever at the end of one, or at the start."""
    _ended.acquire()
    while any(time.monotonic() - at < _QUIET_S for at in _left.values()):
        time.sleep(_QUIET_S / 10)
