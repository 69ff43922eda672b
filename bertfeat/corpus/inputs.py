"""Resolver of the INPUT arguments of a command: files with a format, a compression and a digest."""

from __future__ import annotations

import glob
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

import xxhash

from bertfeat.choices import CorpusFormat
from bertfeat.corpus.formats import READER_OF, READER_OF_ENDING
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
_OTHER_ARCHIVES = {".7z", ".bz2", ".lz4", ".rar", ".tar", ".tgz", ".xz", ".zip"}
# What to save the files of office programs as, by their endings.
_SAVE_AS = dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods"), "CSV UTF-8")
_SAVE_AS |= dict.fromkeys((".docx", ".doc", ".odt", ".rtf", ".pdf"), "plain text (UTF-8)")


def resolve_inputs(
    arguments: Sequence[str], corpus_format: CorpusFormat = CorpusFormat.AUTO, *, spooled: Path | None = None
) -> tuple[InputFile, ...]:
    """Find the files that the arguments name, in the order given; a glob's matches are sorted.

    Args:
        arguments: Paths, URLs of objects, globs of both, or `-` for standard input. A file may be named twice.
        corpus_format: Overrides the file endings; `-` is read as txt unless it is given.
        spooled: The file that `spool_stdin` wrote; needed where an argument is `-`.

    Raises:
        InputError: A file does not exist, is a folder or has an unknown ending, or a glob matches nothing.
    """
    files: list[InputFile] = []
    for argument in arguments:
        try:
            if argument == STDIN:
                if spooled is None:
                    raise InputError("'-' (standard input) has no bytes here; name files instead")
                is_auto = corpus_format is CorpusFormat.AUTO
                files.append(_describe(str(spooled), CorpusFormat.TXT if is_auto else corpus_format))
            else:
                files += [_describe(path, corpus_format) for path in _expand(argument)]
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"cannot be read ({reason}); check the path and its permissions", path=argument) from error
    return tuple(files)


def may_be_file(item: str | Path) -> bool:
    """Return whether a string names a file, an object or standard input, or ends as files do, as in `.csv` or `.gz`."""
    if isinstance(item, Path) or item == STDIN or is_url(item) or os.path.lexists(item):
        return True
    ending = PurePosixPath(item).suffix.lower()
    if any(ending in known for known in (READER_OF_ENDING, _COMPRESSIONS, _OTHER_ARCHIVES, _SAVE_AS)):
        return True
    return glob.has_magic(item) and not any(map(str.isspace, item)) and bool(glob.glob(item))  # noqa: PTH207


def spool_stdin(stream: BinaryIO, folder: Path) -> Path:
    """Copy a stream into a file of `folder`, since a corpus is read more than once; the caller deletes it.

    The digest of the bytes is part of the file's name, so that the same input has the same name in a rerun.

    Raises:
        InputError: The disk is full, or the stream ends with an error.
    """
    path = None
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="stdin-", delete=False) as out:
            path = Path(out.name)
            _, digest = _digest(stream, copy=out)
        return path.rename(folder / f"stdin-{digest}")
    except OSError as error:
        if path is not None:
            path.unlink(missing_ok=True)
        reason = f"standard input cannot be copied here ({error.strerror}); check the disk and the pipe"
        raise InputError(reason, path=str(folder)) from error


def begins_with(file: InputFile, earlier: InputFile) -> bool:
    """Return whether a file has all bytes of an earlier one at its beginning, and more.

    Raises:
        InputError: The file cannot be read.
    """
    return file.n_bytes > earlier.n_bytes and _digest_file(file.path, earlier.n_bytes)[1] == earlier.digest


def has_changed(file: InputFile, since: float, *, may_grow: bool = False) -> bool:
    """Return whether a local file has other bytes now; it is read only if its times are not before `since`.

    Args:
        file: The file; an object, a copy of an input, or a file that is no longer there counts as unchanged.
        since: A time before its digest was taken, in seconds as `time.time` gives it.
        may_grow: New bytes at its end do not count.

    Raises:
        InputError: The file cannot be read.
    """
    if shown_path(file.path) != file.path:
        return False
    try:
        status = os.stat(file.path)  # noqa: PTH116
    except OSError:
        return False
    if max(status.st_mtime, status.st_ctime) < since - _CLOCK_S:
        return False
    return _digest_file(file.path, file.n_bytes if may_grow else sys.maxsize) != (file.n_bytes, file.digest)


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


def _digest_file(path: str, most: int = sys.maxsize) -> tuple[int, str]:
    """Return the size in bytes and the digest of a file, or of the bytes up to `most` at its beginning."""
    place = as_path(path)
    try:
        with place.open_buffered() if isinstance(place, ObjectPath) else place.open("rb") as stream:
            return _digest(stream, most=most)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}); check its permissions", path=path) from error


def _digest(stream: BinaryIO, *, copy: IO[bytes] | None = None, most: int = sys.maxsize) -> tuple[int, str]:
    """Return the size in bytes and the xxh3-128 (hex) of a stream, read in blocks; copy it if asked."""
    digest = xxhash.xxh3_128()
    n_bytes = 0
    while block := stream.read(min(_BLOCK_BYTES, most - n_bytes)):
        digest.update(block)
        n_bytes += len(block)
        if copy is not None:
            copy.write(block)
    return n_bytes, digest.hexdigest()


def _expand(argument: str) -> list[str]:
    place = as_path(argument)
    if isinstance(place, ObjectPath):
        if not glob.has_magic(argument) or place.is_file():
            return [str(place)]
        paths = [str(path) for path in place.glob()]
        if not paths:
            raise InputError(f"no object matches {argument!r}; check the pattern and the bucket")
        return paths
    # A name with brackets is not a pattern if there is such a file.
    if os.path.lexists(argument) or not glob.has_magic(argument):
        return [argument]
    paths = sorted(path for path in glob.glob(argument, recursive=True) if not os.path.isdir(path))  # noqa: PTH112, PTH207
    if not paths:
        raise InputError(f"no file matches {argument!r}; check the pattern and the folder ({Path.cwd()})")
    return paths


def _describe(path: str, corpus_format: CorpusFormat) -> InputFile:
    _check(path)
    return _described(path, *format_of(path, corpus_format))


def local_file(
    path: str,
    choose: Callable[[str], tuple[str, str | None]] = lambda path: format_of(path, CorpusFormat.AUTO),
) -> InputFile:
    """Describe one file of this machine; `choose` returns the format and the compression of a path.

    Raises:
        InputError: The file does not exist, is a folder or an object, has no bytes, or its ending names no format.
    """
    if is_url(path):
        raise InputError("is an object, which is not read here; copy it to this machine first", path=path)
    _check(path)
    found = _described(path, *choose(path))
    if not found.n_bytes:
        raise InputError("has no bytes; did the program that writes it fail?", path=path)
    return found


def endings_of(path: str) -> tuple[list[str], str | None]:
    """Return the endings of a file's name after an empty one, without that of its compression, and the compression.

    Examples:
        >>> endings_of("vectors.jsonl.gz"), endings_of("vectors")
        ((['', '.jsonl'], 'gzip'), ([''], None))
    """
    endings = ["", *(suffix.lower() for suffix in PurePosixPath(path).suffixes)]
    compression = _COMPRESSIONS.get(endings[-1])
    return endings if compression is None else endings[:-1], compression


def _described(path: str, found: str, compression: str | None) -> InputFile:
    n_bytes, digest = _digest_file(path)
    if compression is not None and n_bytes == 0:
        raise InputError(f"has no bytes, which is not a {compression} stream; write the file again", path=path)
    return InputFile(path=path, format=sys.intern(str(found)), compression=compression, n_bytes=n_bytes, digest=digest)


def _check(path: str) -> None:
    """Check that there is a file or an object."""
    try:
        path.encode()
    except UnicodeEncodeError:
        # Arrow does not open it.
        raise InputError("its name is not UTF-8; rename the file", path=path) from None
    place = as_path(path)
    if place.is_file():
        return
    kind = "object" if isinstance(place, ObjectPath) else "file"
    if place.is_dir():
        reason = f"is a folder; name its {kind}s, for example with a glob: {place / '*.jsonl'}"
        raise InputError(reason, path=path)
    if kind == "object":
        raise InputError("no such object; check the name and the bucket", path=path)
    if not place.exists():
        raise InputError(f"no such file; check the path (read from {Path.cwd()})", path=path)
    raise InputError("is not a regular file; pipe it in instead: `bertfeat extract - < FILE`", path=path)


def format_of(path: str, corpus_format: CorpusFormat) -> tuple[CorpusFormat, str | None]:
    """Return the format and the compression of a file, by its name unless the format is given.

    Raises:
        InputError: The name tells no format, or a compression that is not read.
    """
    (*others, ending), compression = endings_of(path)
    if compression is None and ending in _OTHER_ARCHIVES:
        raise InputError(f"{ending} is not read; decompress it, or compress it as .gz or .zst", path=path)
    reader = READER_OF_ENDING.get(ending)
    if corpus_format is not CorpusFormat.AUTO:
        reader = READER_OF[corpus_format]
    elif reader is not None and reader.format is CorpusFormat.TXT:
        inner = READER_OF_ENDING.get(others[-1])
        if inner is not None and inner.has_words:
            hint = f"pass `format='{inner.format}'` (or `format='txt'` if it is not)"
            raise InputError(f"looks like CoNLL; {hint}", path=path)
    if reader is None and ending in _SAVE_AS:
        raise InputError(f"{ending} is not read; save it as {_SAVE_AS[ending]}", path=path)
    if reader is None:
        known = ", ".join(READER_OF_ENDING)
        raise InputError(f"ending {ending!r} names no format; rename it to one of {known}, or pass `format`", path=path)
    if reader.is_compressed and compression is not None:
        around = PurePosixPath(path).suffix
        raise InputError(f"{reader.format} is compressed inside; decompress the {around} around it", path=path)
    return reader.format, compression
