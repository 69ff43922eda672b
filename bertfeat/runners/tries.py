"""Counts of tries per shard, as mark files that outlive the workers; no server is needed."""

from __future__ import annotations

from collections.abc import Mapping

from bertfeat.errors import RunError
from bertfeat.runners.marks import marks_in
from bertfeat.storage import AnyPath

MAX_TRIES = 3
_UNEXPLAINED = "its worker died each time, perhaps for want of memory"


def given_up(failures: Mapping[int, str]) -> RunError:
    """Return the error of a run that did all shards but these; `failures` says why, by shard."""
    names = ", ".join(f"{number:05d} ({why})" for number, why in sorted(failures.items()))
    return RunError(
        f"shards failed {MAX_TRIES} times: {names}; the others are done: run the same command again to try them"
    )


class Tries:
    """The tries of a run in a folder that all its workers see; the next run on the store begins with none.

    Each try is a mark, created exclusively, so that two machines never take the same one.
    """

    def __init__(self, folder: AnyPath) -> None:
        """Count in `folder`, which must exist, or below a URL."""
        self._marks = marks_in(folder)

    def begin(self, name: str) -> bool:
        """Count a try of `name` (lower-case letters, digits, hyphens); False when it has had them all."""
        return any(self._marks.create(_mark(name, number)) for number in range(MAX_TRIES))

    def count(self, name: str) -> int:
        """Return how many tries are counted."""
        return sum(self._marks.exists(_mark(name, number)) for number in range(MAX_TRIES))

    def take_back(self, name: str) -> None:
        """Uncount the last try: it was ended by no fault of its own."""
        if n_tries := self.count(name):
            self._marks.remove(_mark(name, n_tries - 1))

    def forget(self, name: str) -> None:
        """Uncount all tries: the last one came to its end."""
        for number in range(MAX_TRIES):
            self._marks.remove(_mark(name, number))

    def explain(self, name: str, reason: str) -> None:
        """Keep why the last try failed, one line."""
        if n_tries := self.count(name):
            self._marks.write(_mark(name, n_tries - 1), reason)

    def reason(self, name: str) -> str:
        """Return why the last try failed that could say so."""
        texts = (self._marks.read(_mark(name, number)) for number in reversed(range(MAX_TRIES)))
        return next(filter(None, texts), _UNEXPLAINED)


def _mark(name: str, number: int) -> str:
    return f"try-{name}.{number}.tmp"
