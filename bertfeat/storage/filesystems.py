"""File systems of fsspec for URLs, and their errors turned into ours."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from bertfeat.errors import BertfeatError, RunError, StorageError, require

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


class _Package(NamedTuple):
    name: str
    credentials: str
    no_bucket: str = "no such bucket; create it, or check its name and the endpoint"
    options: Mapping[str, Any] = {}


_S3 = _Package("s3fs", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")
_GCS = _Package("gcsfs", "GOOGLE_APPLICATION_CREDENTIALS, or gcloud auth application-default login")
# A read fetches what it needs and one block more.
_HUB = _Package(
    "huggingface_hub",
    "HF_TOKEN, or hf auth login",
    "no such data set or revision; check the names and the right to read it (HF_TOKEN, or hf auth login)",
    {"block_size": 1 << 16},
)
#: The scheme of data sets of a hub, which are only read.
HUB = "hf"
PACKAGES = {"s3": _S3, "gs": _GCS, "gcs": _GCS, HUB: _HUB}

# Names of error classes, because only fsspec imports the libraries that define them, when they are needed.
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "DefaultCredentialsError"}
_NO_BUCKET = {"NoSuchBucket", "RepositoryNotFoundError", "RevisionNotFoundError", "HFValidationError"}
# s3fs needs the name of the condition that failed, which not every server gives; only this condition is ever set. A
# missing upload was completed by a request whose answer was lost, or ended by another run.
_IS_THERE = {"PreconditionFailed", "412", "NoSuchUpload"}


def open_filesystem(scheme: str) -> AbstractFileSystem:
    """Return the file system of a scheme, configured by the environment and by fsspec's configuration."""
    require(PACKAGES[scheme].name, what=f"{scheme}:// needs", kind=StorageError)
    return _filesystem(scheme, os.getpid())


@functools.cache
def _filesystem(scheme: str, pid: int) -> AbstractFileSystem:  # noqa: ARG001
    """Return one file system per process, shared by its threads; fsspec itself has one per thread."""
    import fsspec

    # Cached listings would not show what other processes write.
    options = PACKAGES[scheme].options
    return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True, **options)


@contextlib.contextmanager
def clear_errors(scheme: str, url: str, *, needs_no_object: bool = False) -> Iterator[None]:
    """Turn the errors of a file system into a few kinds.

    With `needs_no_object`, the operation makes or lists objects, so only a bucket can be missing.

    Raises:
        FileNotFoundError: There is no such object.
        FileExistsError: The object to create exists already.
        StorageError: There is no such bucket, or the credentials are missing or give no access.
        RunError: Anything else, such as a network failure after the retries of the file system.
    """
    try:
        yield
    except (BertfeatError, FileExistsError):
        raise
    except Exception as error:
        cause = error.__cause__ or error
        if _code(cause) in _IS_THERE:
            raise FileExistsError(f"{url}: there is such an object") from error
        names = {kind.__name__ for kind in (*type(error).__mro__, *type(cause).__mro__)}
        if names & _NO_BUCKET or (needs_no_object and isinstance(error, FileNotFoundError)):
            raise StorageError(f"{url}: {PACKAGES[scheme].no_bucket}") from error
        if isinstance(error, FileNotFoundError):
            raise
        if names & _NO_CREDENTIALS or isinstance(error, PermissionError) or _is_forbidden(error):
            raise StorageError(
                f"{url}: no access ({_line(error)}); check the credentials ({PACKAGES[scheme].credentials}) and their "
                "rights"
            ) from error
        raise RunError(f"{url}: {_line(error)}; fix the cause and run the same command again") from error


def _code(cause: BaseException) -> object:
    """Return the error code in the answer of an S3 server."""
    response = getattr(cause, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None


def _is_forbidden(error: Exception) -> bool:
    """Return whether an error of gcsfs, which has no class for it, means no access."""
    return getattr(error, "code", None) in (401, 403) or str(error).startswith("Forbidden")


def _line(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(text.split()).rstrip(".") or type(error).__name__
