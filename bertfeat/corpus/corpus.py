"""Resolver of the INPUT arguments of a command: files with a format, a compression and a digest."""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import xxhash

from bertfeat.choices import CorpusFormat
from bertfeat.corpus.formats import readers_by_ending
from bertfeat.errors import InputError
from bertfeat.records import InputFile
from bertfeat.storage import ObjectPath, as_path, is_url

STDIN = "-"
# The name of a data frame in plans and messages.
FRAME = "<frame>"
# The folder that an input without a path is copied to, by the start of its name -> the input's name in messages.
SPOOLS = {".bertfeat-stdin-": "<stdin>", ".bertfeat-frame-": FRAME}
_BLOCK_BYTES = 1 << 20
# The times of files may be that much behind the clock: some systems count them in steps of 2 seconds.
_CLOCK_S = 3.0
# The names that pyarrow gives the codecs.
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


def resolve_inputs(
    arguments: Sequence[str], corpus_format: CorpusFormat = CorpusFormat.AUTO, *, spooled: Path | None = None
) -> tuple[InputFile, ...]:
    """Find the files that paths, URLs and globs name, in the order given; a glob's matches are sorted.

    The format overrides the file endings. `-` is the file that `spool_stdin` wrote, by default a txt.
    """
    files: list[InputFile] = []
    for argument in arguments:
        is_stdin = argument == STDIN
        if is_stdin and spooled is None:
            raise InputError("'-' (standard input) has no bytes here; name files instead")
        is_unnamed = is_stdin and corpus_format is CorpusFormat.AUTO
        choose = partial(format_of, corpus_format=CorpusFormat.TXT if is_unnamed else corpus_format)
        try:
            files += [_describe(path, choose) for path in ([str(spooled)] if is_stdin else _expand(argument))]
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"cannot be read ({reason}); check the path and its permissions", path=argument) from error
    return tuple(files)


def may_be_file(item: str | Path) -> bool:
    """Return whether a string names a file, an object or standard input, or ends as files do, as in `.csv` or `.gz`."""
    if isinstance(item, Path) or item == STDIN or os.path.lexists(item):
        return True
    # A text may be the URL of a page.
    if is_url(item) and not item.lower().startswith(("http://", "https://")):
        return True
    ending, compression = endings_of(item)
    if compression is not None or (ending and ending in readers_by_ending(ending)):
        return True
    return glob.has_magic(item) and not any(map(str.isspace, item)) and bool(glob.glob(item))  # noqa: PTH207


def spool_stdin(stream: BinaryIO, folder: Path) -> Path:
    """Copy a stream into a file of `folder`, since a corpus is read more than once; the caller deletes the folder.

    The digest of the bytes is part of the file's name, so that the same input has the same name in a rerun.
    """
    path = folder / "stdin"
    try:
        with path.open("wb") as out:
            shutil.copyfileobj(stream, out, _BLOCK_BYTES)
        return path.rename(folder / f"stdin-{_digest(str(path))[1]}")
    except OSError as error:
        reason = f"standard input cannot be copied here ({error.strerror}); check the disk and the pipe"
        raise InputError(reason, path=str(folder)) from error


def begins_with(file: InputFile, earlier: InputFile) -> bool:
    """Return whether a file has all bytes of an earlier one at its beginning, and more."""
    return file.n_bytes > earlier.n_bytes and _digest(file.path, earlier.n_bytes)[1] == earlier.digest


def has_changed(file: InputFile, since: float, *, may_grow: bool = False) -> bool:
    """Return whether a local file has other bytes than when its digest was taken, after `since` (as of `time.time`).

    It is read only if its times are not before that. An object, a copy of an input, or a file that is no longer there
    counts as unchanged; with `may_grow`, new bytes at its end do not count.
    """
    if shown_path(file.path) != file.path:
        return False
    try:
        status = os.stat(file.path)  # noqa: PTH116
    except OSError:
        return False
    if max(status.st_mtime, status.st_ctime) < since - _CLOCK_S:
        return False
    return _digest(file.path, file.n_bytes if may_grow else sys.maxsize) != (file.n_bytes, file.digest)


def shown_path(path: str) -> str:
    """Return the name of an input in messages: its path, or `<stdin>` or `<frame>` for a copy of these."""
    if not any(start in path for start in SPOOLS):
        return path
    folder = PurePosixPath(path).parent.name
    return next((name for start, name in SPOOLS.items() if folder.startswith(start)), path)


def recorded_path(path: str) -> str:
    """Return the name of an input in plans: as in messages, but `-` for a copy of standard input."""
    shown = shown_path(path)
    return shown if shown in (path, FRAME) else STDIN


def _digest(path: str, most: int = sys.maxsize) -> tuple[int, str]:
    """Return the size in bytes and the xxh3-128 (hex) of a file, or of the bytes up to `most` at its beginning."""
    place = as_path(path)
    digest = xxhash.xxh3_128()
    n_bytes = 0
    try:
        with place.open_buffered() if isinstance(place, ObjectPath) else place.open("rb") as stream:
            while block := stream.read(min(_BLOCK_BYTES, most - n_bytes)):
                digest.update(block)
                n_bytes += len(block)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}); check its permissions", path=path) from error
    return n_bytes, digest.hexdigest()


def _expand(argument: str) -> list[str]:
    place = as_path(argument)
    is_pattern = glob.has_magic(argument)
    if isinstance(place, ObjectPath):
        place = place.pinned()
        paths = [str(path) for path in place.glob()] if is_pattern and not place.is_file() else [str(place)]
    # A name with brackets is not a pattern if there is such a file.
    elif os.path.lexists(argument) or not is_pattern:
        return [argument]
    else:
        paths = sorted(p for p in glob.glob(argument, recursive=True) if not os.path.isdir(p))  # noqa: PTH112, PTH207
    if not paths:
        raise InputError(f"no file matches {argument!r}; check the pattern and the folder or bucket")
    return paths


def endings_of(path: str) -> tuple[str, str | None]:
    """Return the ending and the compression of a file: `.jsonl` and `gzip` for `x.jsonl.gz`."""
    name = PurePosixPath(path)
    compression = _COMPRESSIONS.get(name.suffix.lower())
    return (name if compression is None else name.with_suffix("")).suffix.lower(), compression


def format_of(path: str, corpus_format: CorpusFormat = CorpusFormat.AUTO) -> tuple[CorpusFormat, str | None]:
    """Return the format and the compression of a file, by its name unless the format is given."""
    ending, compression = endings_of(path)
    if corpus_format is not CorpusFormat.AUTO:
        return corpus_format, compression
    readers = readers_by_ending(ending)
    if ending not in readers:
        known = ", ".join(readers)
        raise InputError(f"ending {ending!r} names no format; save it as one of {known}, or pass `format`", path=path)
    return CorpusFormat(readers[ending].format), compression


def local_file(path: str, choose: Callable[[str], tuple[str, str | None]] = format_of) -> InputFile:
    """Describe one file of this machine; `choose` returns the format and the compression of a path."""
    if is_url(path):
        raise InputError("is an object, which is not read here; copy it to this machine first", path=path)
    found = _describe(path, choose)
    if not found.n_bytes:
        raise InputError("has no bytes; did the program that writes it fail?", path=path)
    return found


def _describe(path: str, choose: Callable[[str], tuple[str, str | None]]) -> InputFile:
    _check(path)
    found, compression = choose(path)
    n_bytes, digest = _digest(path)
    return InputFile(path=path, format=sys.intern(str(found)), compression=compression, n_bytes=n_bytes, digest=digest)


def _check(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        # Arrow does not open it.
        raise InputError("its name is not UTF-8; rename the file", path=path) from None
    place = as_path(path)
    if place.is_file():
        return
    if place.is_dir():
        reason = f"is a folder; name its files, for example with a glob: {place / '*.jsonl'}"
    elif isinstance(place, ObjectPath):
        reason = "no such object; check the name and the bucket"
    elif not place.exists():
        reason = f"no such file; check the path (read from {Path.cwd()})"
    else:
        reason = "is not a regular file; pipe it in instead: `bertfeat extract - < FILE`"
    raise InputError(reason, path=path)
