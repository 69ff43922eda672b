"""Counts of tries per shard, as marker files that outlive the workers; no server is needed."""

from __future__ import annotations

from collections.abc import Mapping

from bertfeat.errors import RunError
from bertfeat.runners.marks import Marks
from bertfeat.storage import AnyPath

MAX_TRIES = 3
_UNEXPLAINED = "its worker died each time, perhaps because it ran out of memory"


def given_up(failures: Mapping[int, str]) -> RunError:
    """Return the error of a run that finished all shards except these; `failures` holds the reason per shard."""
    names = ", ".join(f"{number:05d} ({why})" for number, why in sorted(failures.items()))
    return RunError(
        f"shards failed {MAX_TRIES} times: {names}; the others are done: run the same command again to try them"
    )


class Tries:
    """The tries of a run in a folder that all its workers see; the next run on the store starts again at zero.

    Each try is a marker file that is created exclusively, so two machines never take the same try.

    Args:
        folder: An existing folder, or a URL.
    """

    def __init__(self, folder: AnyPath) -> None:
        self._marks = Marks(folder)

    def begin(self, name: str) -> bool:
        """Count a try of `name` (lower-case letters, digits, hyphens); return False if no try is left."""
        return any(self._marks.create(_mark(name, number)) for number in range(MAX_TRIES))

    def count(self, name: str) -> int:
        """Return the number of tries."""
        return sum(self._marks.exists(_mark(name, number)) for number in range(MAX_TRIES))

    def take_back(self, name: str) -> None:
        """Uncount the last try, which ended for a reason outside the shard."""
        if n_tries := self.count(name):
            self._marks.remove(_mark(name, n_tries - 1))

    def forget(self, name: str) -> None:
        """Uncount all tries, since the last one succeeded."""
        for number in range(MAX_TRIES):
            self._marks.remove(_mark(name, number))

    def explain(self, name: str, reason: str) -> None:
        """Keep the reason, one line, why the last try failed."""
        if n_tries := self.count(name):
            self._marks.write(_mark(name, n_tries - 1), reason)

    def reason(self, name: str) -> str:
        """Return the last known reason why a try failed."""
        texts = (self._marks.read(_mark(name, number)) for number in reversed(range(MAX_TRIES)))
        return next(filter(None, texts), _UNEXPLAINED)


def _mark(name: str, number: int) -> str:
    return f"try-{name}.{number}.tmp"
