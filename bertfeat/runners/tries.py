"""How often each shard was tried, as files that outlive the workers: one a try, without a server to keep count."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bertfeat.errors import RunError

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

    Each try is a file, created exclusively, so that two machines never take the same one.
    """

    def __init__(self, folder: Path) -> None:
        """Count in `folder`, which must exist."""
        self._folder = folder

    def begin(self, name: str) -> bool:
        """Count a try of `name` (lower-case letters, digits, hyphens); False when it has had them all."""
        for number in range(MAX_TRIES):
            with suppress(FileExistsError):
                os.close(os.open(self._path(name, number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
                return True
        return False

    def count(self, name: str) -> int:
        """Return how many tries are counted."""
        return sum(self._path(name, number).exists() for number in range(MAX_TRIES))

    def take_back(self, name: str) -> None:
        """Uncount the last try: it was ended by no fault of its own."""
        if n_tries := self.count(name):
            self._path(name, n_tries - 1).unlink(missing_ok=True)

    def forget(self, name: str) -> None:
        """Uncount all tries: the last one came to its end."""
        for number in range(MAX_TRIES):
            self._path(name, number).unlink(missing_ok=True)

    def explain(self, name: str, reason: str) -> None:
        """Keep why the last try failed, one line."""
        n_tries = self.count(name)
        # The file is there, or the run has ended: it is never made anew.
        with suppress(FileNotFoundError), self._path(name, n_tries - 1).open("r+", encoding="utf-8") as file:
            file.write(reason)

    def reason(self, name: str) -> str:
        """Return why the last try failed that could say so."""
        for number in reversed(range(MAX_TRIES)):
            with suppress(FileNotFoundError):
                if reason := self._path(name, number).read_text(encoding="utf-8"):
                    return reason
        return _UNEXPLAINED

    def _path(self, name: str, number: int) -> Path:
        return self._folder / f"try-{name}.{number}.tmp"
