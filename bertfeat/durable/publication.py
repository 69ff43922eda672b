"""Publication of files and folders: written under another name, synced, renamed, and the parent folder synced.

After a kill, a full disk or a power failure, either the old version or the new one exists, whole. A folder is replaced
by two renames, which every system has: the old folder is moved aside, then the new one gets its name. Between the two
no folder has the name. A reader then uses the folder that was moved aside (`standing`), and the next writer renames it
back (`recover`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bertfeat.durable.file_lock import ALONE_AFTER_OTHERS, lock
from bertfeat.durable.files import Sink, make_parents, sync_path, write_errors
from bertfeat.durable.output_check import check_folder
from bertfeat.durable.steps import step
from bertfeat.storage import local_path


def unfinished(final: Path) -> Path:
    """Return a new hidden name beside a place, for an unfinished file or folder."""
    return final.with_name(f".{final.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def publish_file(
    final: Path,
    *,
    kind: str = "",
    aside: Path | None = None,
    place: Callable[[Path, Path], object] = Path.replace,
) -> Iterator[Sink]:
    """Yield a sink for a new file, which gets its place at the end and is removed if the block raises.

    `kind` begins the names of its steps. `aside` is where it is written, on the same file system. `place` gives the
    first path the name of the second.
    """
    kind = kind or final.name
    new = aside or unfinished(final)
    try:
        with write_errors(final):
            new.unlink(missing_ok=True)
            with contextlib.closing(Sink(new)) as sink, write_errors(final, sink):
                step(f"{kind}.opened")
                yield sink
                step(f"{kind}.written")
                sink.sync()
            step(f"{kind}.synced")
            place(new, final)
            step(f"{kind}.renamed")
            sync_path(final.parent)
            step(f"{kind}.durable")
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def publish_bytes(final: Path, data: bytes, *, kind: str = "", aside: Path | None = None) -> None:
    """Publish a small file; arguments and errors are those of `publish_file`."""
    with publish_file(final, kind=kind, aside=aside) as sink:
        sink.write(data)


@contextlib.contextmanager
def publish_folder(final: Path, check: Callable[[], object] | None = None) -> Iterator[Path]:
    """Yield a new folder to fill, which gets its place at the end (see `replace_folder`); it is removed on an error."""
    final = final.absolute()
    make_parents(final)
    new = unfinished(final)
    try:
        with write_errors(final):
            new.mkdir()
            step("folder.opened")
            yield new
        replace_folder(new, final, check)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def replace_folder(new: Path, final: Path, check: Callable[[], object] | None = None) -> None:
    """Sync a folder of files and give it its place; an existing folder moves aside first, and back on failure.

    `new` is on the same file system. `check` is called while no other process can replace the folder; it raises if the
    existing folder must stay.
    """
    old = replaced(final)
    step("folder.written")
    with write_errors(final):
        for file in new.iterdir():
            sync_path(file)
        sync_path(new)
    step("folder.synced")
    with write_errors(final), _alone_in(old.parent):
        _recover(final)
        if check is not None:
            check()
        if final.is_dir() and any(final.iterdir()):
            final.rename(old)
            sync_path(old.parent)
            step("folder.aside")
        try:
            new.rename(final)
        except OSError:
            with contextlib.suppress(OSError):
                _recover(final)
            raise
        step("folder.renamed")
        sync_path(old.parent)
        step("folder.durable")
        shutil.rmtree(old, ignore_errors=True)


def replaced(final: Path) -> Path:
    """Return the hidden name of a folder that is being replaced, beside its place."""
    final = final.absolute()
    return final.with_name(f".{final.name}.replaced")


def standing(final: Path) -> Path:
    """Return where to read a folder: its place, or the old folder if a replacement was killed between its renames."""
    old = replaced(final)
    return old if not os.path.lexists(final) and old.is_dir() else final


def recover(final: Path) -> None:
    """Finish a killed replacement: the old folder gets its name back, or is removed if the new one exists."""
    with write_errors(final):
        if replaced(final).is_dir():
            with _alone_in(final.absolute().parent):
                _recover(final)


def _recover(final: Path) -> None:
    old = replaced(final)
    if not old.is_dir():
        return
    if final.is_dir() and any(final.iterdir()):
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.rename(final)
        sync_path(old.parent)


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """A kind of folder that is published whole: what it is, with its article, and its files (see `check_folder`)."""

    what: str
    files: tuple[str, ...]

    def check(self, folder: str | Path, *, overwrite: bool) -> Path:
        """Return a local folder, which need not be there yet, if such files may be written there.

        One that a killed replacement moved aside returns first.
        """
        out = local_path(folder, self.what)
        recover(out)
        check_folder(out, self.what, self.files, overwrite=overwrite)
        return out

    @contextlib.contextmanager
    def publish(self, folder: str | Path, *, overwrite: bool) -> Iterator[Path]:
        """Yield a new folder to fill, which gets its place at the end if that may still be written."""
        out = self.check(folder, overwrite=overwrite)
        with publish_folder(out, lambda: check_folder(out, self.what, self.files, overwrite=overwrite)) as new:
            yield new


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from moving folders into or out of `folder` during the block."""
    fd = lock(folder.resolve(), os.O_RDONLY | os.O_DIRECTORY, ALONE_AFTER_OTHERS)
    try:
        yield
    finally:
        os.close(fd)
