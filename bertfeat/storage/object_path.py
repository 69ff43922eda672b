"""Paths in an object store: an object, or the common prefix of several."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bertfeat.errors import RunError
from bertfeat.storage.filesystems import HUB, clear_errors, open_filesystem

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from fsspec import AbstractFileSystem

# A piece of a large upload; several are uploaded at a time.
_UPLOAD_BYTES = 50 << 20
_READ_AHEAD_BYTES = 8 << 20
_N_REQUESTS = 16

ItemT = TypeVar("ItemT")
_ResultT = TypeVar("_ResultT")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The size and version of an object.

    `version` changes with the content (the entity tag, where there is one); `modified` is by the store's clock.
    """

    n_bytes: int
    version: str
    modified: datetime


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """A place in an object store, with the few operations of `Path` that are needed; it can be pickled.

    Every operation raises the errors of `clear_errors`.
    """

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self._place}"

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        """The part after the last slash."""
        return self._place.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The part before the last slash."""
        return ObjectPath(self.scheme, self.bucket, self.key.rpartition("/")[0])

    @property
    def is_on_hub(self) -> bool:
        """Whether this is in a data set of a hub, which is only read."""
        return self.scheme == HUB

    @property
    def filesystem(self) -> AbstractFileSystem:
        """The fsspec file system, one per process."""
        return open_filesystem(self.scheme)

    @property
    def _place(self) -> str:
        return f"{self.bucket}/{self.key}" if self.key else self.bucket

    def _errors(self, *, needs_no_object: bool = False) -> AbstractContextManager[None]:
        return clear_errors(self.scheme, str(self), needs_no_object=needs_no_object)

    def exists(self) -> bool:
        """Return whether there is an object here, or one below."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Return whether there is an object of this name."""
        try:
            self.info()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Return whether there are objects below."""
        with self._errors():
            return any(entry["name"] != self._place for entry in self._entries())

    def _entries(self) -> list[dict[str, Any]]:
        try:
            return list(self.filesystem.ls(self._place, detail=True))
        except FileNotFoundError as error:
            if error.__cause__ is not None:
                raise
            return []

    def info(self) -> ObjectInfo:
        """Describe an object."""
        with self._errors():
            found = self.filesystem.info(self._place)
        if found.get("type") == "directory":
            raise FileNotFoundError(f"{self}: no such object")
        return _info(found)

    def find(self) -> dict[str, ObjectInfo]:
        """Describe all objects below by their relative names, without the empty objects that stand for folders."""
        prefix = self._place + "/"
        with self._errors(needs_no_object=True):
            found = self.filesystem.find(self._place, detail=True)
        return {
            name.removeprefix(prefix): _info(entry)
            for name, entry in sorted(found.items())
            if name.startswith(prefix) and not name.endswith("/")
        }

    def glob(self) -> list[ObjectPath]:
        """Return the objects that match this path as a pattern, sorted."""
        with self._errors(needs_no_object=True):
            found = self.filesystem.glob(self._place, detail=True)
        names = sorted(name for name, entry in found.items() if entry["type"] == "file")
        return [ObjectPath(self.scheme, self.bucket, name.partition("/")[2]) for name in names]

    def pinned(self) -> ObjectPath:
        """Return a place in a data set of a hub at the commit that its revision has now; another place as it is."""
        if not self.is_on_hub:
            return self
        from huggingface_hub import HfApi

        with self._errors(needs_no_object=True):
            filesystem: Any = self.filesystem
            found = filesystem.resolve_path(self._place)
            api = HfApi(endpoint=filesystem.endpoint, token=filesystem.token)
            commit = api.repo_info(found.repo_id, repo_type=found.repo_type, revision=found.revision).sha
        return ObjectPath(HUB, self.bucket, f"{found.repo_id}@{commit}/{found.path_in_repo}")

    def read_bytes(self, start: int | None = None, stop: int | None = None) -> bytes:
        """Return an object's content, or the bytes `start` to `stop - 1` of it."""
        with self._errors():
            data = bytes(self.filesystem.cat_file(self._place, start=start, end=stop))
        if start is not None and stop is not None and len(data) != stop - start:
            raise RunError(
                f"{self}: {len(data)} bytes came where {stop - start} were asked for; was it replaced meanwhile? run "
                "the same command again"
            )
        return data

    def write_bytes(self, data: bytes) -> None:
        """Write an object in one request; an old one is replaced."""
        with self._errors(needs_no_object=True):
            self.filesystem.pipe_file(self._place, data)

    def create_bytes(self, data: bytes) -> None:
        """Create an object in one request; FileExistsError if there is one with other content.

        One with the same content is accepted: the answer to an earlier request was lost, and the request was sent
        again.
        """
        try:
            with self._errors(needs_no_object=True):
                self.filesystem.pipe_file(self._place, data, mode="create")
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if self.read_bytes() == data:
                    return
            raise

    def upload(self, file: Path) -> None:
        """Write an object from a local file, a large one in several pieces; an old one is replaced.

        The object appears whole, at the end. A killed upload leaves pieces without a name, which a rule of the bucket
        for incomplete uploads removes.
        """
        try:
            with self._errors(needs_no_object=True):
                self.filesystem.put_file(str(file), self._place, chunksize=_UPLOAD_BYTES)
        except FileExistsError:
            # The upload was completed by a request whose answer was lost.
            if self.info().n_bytes != file.stat().st_size:
                raise

    def unlink(self) -> None:
        """Remove an object if it is there."""
        try:
            with self._errors():
                self.filesystem.rm_file(self._place)
        except FileNotFoundError:
            return

    def open(self) -> ObjectReader:
        """Open an object for reading anywhere in it."""
        return ObjectReader(self, self.info().n_bytes)

    def open_buffered(self) -> io.BufferedReader:
        """Open an object for reading from beginning to end."""
        return io.BufferedReader(self.open(), _READ_AHEAD_BYTES)

    def scan_options(self) -> dict[str, Any]:
        """Return the arguments with which `polars.scan_parquet` reads an object as fsspec does.

        Endpoint, region and credentials of `s3://` are those of s3fs: from its configuration, or from the environment
        and files of AWS. For `gs://` polars itself finds Google's default credentials, as gcsfs does.
        """
        if self.scheme != "s3":
            return {}
        with self._errors():
            filesystem: Any = self.filesystem
            meta = filesystem.s3.meta
            options = {"aws_endpoint_url": str(meta.endpoint_url)}
            if meta.region_name:
                options["aws_region"] = str(meta.region_name)
            if options["aws_endpoint_url"].startswith("http://"):
                options["aws_allow_http"] = "true"
            if filesystem.anon:
                return {"storage_options": {**options, "aws_skip_signature": "true"}, "credential_provider": None}

        def credentials() -> tuple[dict[str, str], int | None]:
            with self._errors():
                return _aws_credentials(filesystem)

        return {"storage_options": options, "credential_provider": credentials}


class ObjectReader(io.RawIOBase):
    """An object as a seekable file; each read is one request."""

    def __init__(self, path: ObjectPath, n_bytes: int) -> None:
        super().__init__()
        self._path = path
        self._n_bytes = n_bytes
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a byte."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._n_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read as much as the buffer holds, or what is left."""
        view = memoryview(buffer).cast("B")
        stop = min(self._position + len(view), self._n_bytes)
        if stop <= self._position:
            return 0
        data = self._path.read_bytes(self._position, stop)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def _info(entry: dict[str, Any]) -> ObjectInfo:
    # s3fs, gcsfs, and the file systems that come with fsspec.
    modified = next((entry[key] for key in ("LastModified", "mtime", "created") if entry.get(key)), None)
    when = modified if isinstance(modified, datetime) else datetime.fromtimestamp(0, UTC)
    tags = (str(entry[key]) for key in ("ETag", "etag", "generation") if entry.get(key))
    return ObjectInfo(int(entry["size"]), next(tags, when.isoformat()), when.astimezone(UTC))


def _aws_credentials(filesystem: Any) -> tuple[dict[str, str], int | None]:
    """Return the current credentials of s3fs by the names of polars, and their end in seconds since 1970."""
    from fsspec.asyn import sync

    async def find() -> tuple[str, str, str | None, int | None]:
        if filesystem.key and filesystem.secret:
            return filesystem.key, filesystem.secret, filesystem.token, None
        found = await filesystem.session.get_credentials()
        if found is None:
            raise PermissionError("no credentials were found")
        # This refreshes expiring credentials; their expiry time is known only afterwards.
        frozen = await found.get_frozen_credentials()
        ends = getattr(found, "_expiry_time", None)
        return frozen.access_key, frozen.secret_key, frozen.token, None if ends is None else int(ends.timestamp())

    key, secret, token, ends = sync(filesystem.loop, find)
    names = {"aws_access_key_id": key, "aws_secret_access_key": secret, "aws_session_token": token}
    return {name: value for name, value in names.items() if value}, ends


def concurrently(function: Callable[[ItemT], _ResultT], items: Iterable[ItemT]) -> Iterator[_ResultT]:
    """Yield the result of a function for each item, in order, several at a time, because requests mostly wait."""
    with ThreadPoolExecutor(_N_REQUESTS, "objects") as pool:
        yield from pool.map(function, items)
