"""Options of the object-store client of polars, so that it reads the same objects as fsspec."""

from __future__ import annotations

from typing import Any

from bertfeat.storage.filesystems import clear_errors
from bertfeat.storage.objectpath import ObjectPath

# (credentials by the names of polars, their end in seconds since 1970)
_Credentials = tuple[dict[str, str], int | None]


def scan_options(path: ObjectPath) -> dict[str, Any]:
    """Return the arguments with which `polars.scan_parquet` reads an object as fsspec does.

    Endpoint, region and credentials of `s3://` are those of s3fs: from its configuration, or from the environment and
    files of AWS. For `gs://` polars itself finds Google's default credentials, as gcsfs does.
    """
    if path.scheme != "s3":
        return {}
    with clear_errors(path.scheme, str(path)):
        filesystem: Any = path.filesystem
        meta = filesystem.s3.meta
        options = {"aws_endpoint_url": str(meta.endpoint_url)}
        if meta.region_name:
            options["aws_region"] = str(meta.region_name)
        if options["aws_endpoint_url"].startswith("http://"):
            options["aws_allow_http"] = "true"
        if filesystem.anon:
            return {"storage_options": {**options, "aws_skip_signature": "true"}, "credential_provider": None}

    def credentials() -> _Credentials:
        with clear_errors(path.scheme, str(path)):
            return _aws_credentials(filesystem)

    return {"storage_options": options, "credential_provider": credentials}


def _aws_credentials(filesystem: Any) -> _Credentials:
    """Return the current credentials of s3fs."""
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
