"""Paths of files: local ones, and objects at URLs (`s3://`, `gs://`, `hf://`)."""

from __future__ import annotations

from bertfeat.storage.object_path import ObjectInfo, ObjectPath, ObjectReader
from bertfeat.storage.paths import AnyPath, as_path, is_url, local_path

__all__ = ["AnyPath", "ObjectInfo", "ObjectPath", "ObjectReader", "as_path", "is_url", "local_path", "object_path"]
