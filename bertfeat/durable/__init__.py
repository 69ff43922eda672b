"""Durable writing: files and folders appear whole; locks, checked JSON, and what may be written where."""

__all__ = ["decoding", "differences", "filelock", "files", "placecheck", "publication", "steps"]
