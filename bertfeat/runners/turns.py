"""Who may work beside whom in one worker: shards overlap, but one that is suspected of killing runs alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets threads in side by side, or one alone; whoever asks to be alone is not overtaken for ever."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_inside = 0
        self._n_waiting_alone = 0

    @contextmanager
    def take(self, *, alone: bool) -> Iterator[None]:
        """Wait for a turn and keep it for the block."""
        with self._changed:
            self._n_waiting_alone += alone
            self._changed.wait_for(lambda: self._n_inside == 0 if alone else self._n_waiting_alone == 0)
            self._n_inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._n_inside -= 1
                # Counted as waiting until it is done, which keeps the others out.
                self._n_waiting_alone -= alone
                self._changed.notify_all()
