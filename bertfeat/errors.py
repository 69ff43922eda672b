"""The errors that bertfeat raises on purpose; each carries the exit code that the command line ends with.

A message says what was wrong (the value), where (file and row), and what to do, in one line:
`corpus.csv:118: no column 'text'; columns are id, body, label; pass --text-column`.
"""

from __future__ import annotations

from collections.abc import Mapping


class BertfeatError(Exception):
    """Base of every error that bertfeat raises on purpose."""

    exit_code = 3


class CheckFailed(BertfeatError):
    """A check (`verify`, a comparison) found something; exit code 1."""

    exit_code = 1


class UserError(BertfeatError):
    """The user's input, flags or environment are at fault; exit code 2."""

    exit_code = 2


class InputError(UserError):
    """A corpus cannot be read as asked: a missing file or column, a malformed row, bad UTF-8."""

    def __init__(self, reason: str, *, path: str | None = None, row: int | None = None) -> None:
        """Build the one-line message `path:row: reason`.

        Args:
            reason: What was wrong, with the value, and what to do.
            path: The file, as the user gave it.
            row: The 1-based line (text formats) or row (Parquet) in that file.
        """
        where = "" if path is None else f"{path}: " if row is None else f"{path}:{row}: "
        super().__init__(where + reason)
        self.reason = reason
        self.path = path
        self.row = row


class TokenizingError(InputError):
    """The model's tokenizer fails on a document, or takes too long over it."""


class ConfigError(UserError):
    """A setting has a value that cannot be used, alone or with this model."""


class CheckpointError(UserError):
    """A model folder is missing, unsafe, incomplete or of an unsupported family."""


class StoreError(UserError):
    """An output folder cannot be used: it holds something else, another plan, or a running process."""


class StorageError(UserError):
    """An object store cannot be used: a package, credentials or a bucket is missing, or it lacks what is needed."""


class PlanMismatch(StoreError):
    """A store was made under a different plan; `fields` names what differs, with both values."""

    def __init__(self, message: str, fields: Mapping[str, tuple[object, object]]) -> None:
        super().__init__(message)
        self.fields = fields

    def __reduce__(self) -> tuple[type[PlanMismatch], tuple[str, Mapping[str, tuple[object, object]]]]:
        """Pickle with every argument, as from a worker process; exceptions keep only the message."""
        return type(self), (str(self), dict(self.fields))


class RunError(BertfeatError):
    """A run failed and can be resumed with the same command; exit code 3."""


class FeatureError(RunError):
    """A feature is not a finite number in the stored type; the message names document and column."""
