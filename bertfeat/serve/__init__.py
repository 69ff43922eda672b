"""Search page of an index on this machine: parameters, answers, checks, and the server."""

__all__ = ["page"]
