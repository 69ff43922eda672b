"""File operations that a crash, a full disk or a symbolic link cannot turn into wrong files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import xxhash

from bertfeat.errors import BertfeatError, RunError, StoreError
from bertfeat.storage import AnyPath

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Errors of os.link on file systems without hard links (FAT, some network and FUSE mounts).
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV}
# Errors of F_FULLFSYNC on file systems that do not support it (network mounts, some folders).
_NO_FULL_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY}
_REMEDIES = {
    errno.ENOSPC: "free space and run the same command again",
    errno.EDQUOT: "free space or raise the quota, and run the same command again",
    errno.EFBIG: "raise the file size limit (ulimit -f) and run the same command again",
}


class Sink(io.RawIOBase):
    """A new file that is hashed as it is written, so that its digest costs no second read.

    `file` is a path that must not exist, or the descriptor of an open file, which is closed with the sink.
    """

    def __init__(self, file: Path | int) -> None:
        super().__init__()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = file if isinstance(file, int) else os.open(file, flags, 0o666)
        self._hash = xxhash.xxh3_128()
        self.n_bytes = 0
        self.error: OSError | None = None

    @property
    def descriptor(self) -> int:
        """The descriptor of the file, to read what was written; not `fileno`, which writers would use directly."""
        return self._fd

    @property
    def digest(self) -> str:
        """The xxh3-128 of what was written so far, hex."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        """Return that the file can be written."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of `data`, with as many system calls as needed."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        try:
            rest = view
            while rest:
                n_written = os.write(self._fd, rest)
                self.n_bytes += n_written
                rest = rest[n_written:]
        except OSError as error:
            # Parquet writers replace the error of a file by their own; the cause is kept here.
            self.error = error
            raise
        return len(view)

    def sync(self) -> None:
        """Wait until the bytes are on the disk. After a failed write it raises: the file must not become visible."""
        if self.error is not None:
            raise self.error
        try:
            sync_fd(self._fd)
        except OSError as error:
            self.error = error
            raise

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            # First, so that a second close cannot close another file that got the same number.
            super().close()
            os.close(self._fd)


@contextlib.contextmanager
def write_errors(path: AnyPath, sink: Sink | None = None) -> Iterator[None]:
    """Turn a failed write into a RunError of one line.

    An OSError that names another file is not that of `sink`, which the block writes.
    """
    try:
        yield
    except OSError as error:
        if sink is not None and sink.error is None and error.filename is not None:
            raise RunError(f"{error.filename}: {_reason(error)}") from error
        raise RunError(f"{path}: {_reason(error, sink)}") from error
    except Exception as error:
        if sink is None or sink.error is None:
            raise
        raise RunError(f"{path}: {_reason(sink.error, sink)}") from error


def _reason(error: OSError, sink: Sink | None = None) -> str:
    after = "" if sink is None else f" after {sink.n_bytes} bytes"
    remedy = _REMEDIES.get(error.errno or 0, "fix the cause and run the same command again")
    return f"{(error.strerror or str(error)).lower()}{after}; {remedy}"


def os_errors(kind: type[BertfeatError]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that turns an unhandled OSError of a function into one line, an error of type `kind`."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def decorated(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return function(*args, **kwargs)
            except OSError as error:
                raise kind(f"{error.filename or 'a file'}: {_reason(error)}") from error

        return decorated

    return decorate


def link_exclusive(source: Path, target: Path) -> bool:
    """Give a finished file its final name unless that name exists; return whether the file has it now.

    On a file system without hard links the file is renamed: the store's lock keeps other writers out.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(target):
            return False
        source.rename(target)
    return True


def sync_path(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_fd(fd)
    finally:
        os.close(fd)


def sync_fd(fd: int) -> None:
    """Wait until an open file is on the disk.

    On macOS `fsync` leaves data in the drive's cache, which a power failure erases; F_FULLFSYNC writes that out, too.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    try:
        if full is not None:
            fcntl.fcntl(fd, full)
            return
    except OSError as error:
        if error.errno not in _NO_FULL_SYNC:
            raise
    os.fsync(fd)


def make_folder(folder: Path) -> bool:
    """Create a folder durably; return whether it was missing. StoreError if the path is not a folder."""
    try:
        folder.mkdir()
    except FileExistsError:
        if folder.is_symlink() or not folder.is_dir():
            raise StoreError(f"{folder}: not a folder ({kind_of(folder)}); choose another `output`") from None
        return False
    except OSError as error:
        raise StoreError(f"{folder}: cannot create the folder: {(error.strerror or str(error)).lower()}") from error
    with write_errors(folder):
        sync_path(folder.parent)
    return True


@os_errors(StoreError)
def make_parents(path: Path) -> list[Path]:
    """Create the missing folders above a path durably; return them, innermost first."""
    made: list[Path] = []
    try:
        for folder in reversed([parent for parent in path.absolute().parents if not parent.exists()]):
            if make_folder(folder):
                made.insert(0, folder)
    except BaseException:
        remove_empty(made)
        raise
    return made


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove those of some folders that are empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def kind_of(path: Path) -> str:
    """Return the kind of file at a path, for a message."""
    if path.is_symlink():
        return "a symbolic link"
    if path.is_dir():
        return "a folder"
    return "a file" if path.is_file() else "a special file"


def read_small(path: Path) -> bytes:
    """Read a whole regular file, or what a symbolic link leads to, as in a download cache; OSError for another kind."""
    with _opened(path) as file:
        return file.readall()


def digest_of(path: Path) -> str:
    """Return the xxh3-128 of a regular file, hex, or of what a symbolic link leads to."""
    with _opened(path) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _opened(path: Path) -> io.FileIO:
    # Without O_NONBLOCK, to open a pipe waits for its other end.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    except OSError:
        os.close(fd)
        raise
    return io.FileIO(fd, "rb")
