"""Durable writing: files and folders appear whole; locks, checked JSON, and checks of output places."""

__all__ = [
    "differences",
    "filelock",
    "files",
    "placecheck",
    "publication",
    "records",
    "steps",
    "usercache",
]
