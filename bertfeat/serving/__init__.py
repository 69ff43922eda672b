"""Search page of an index on this machine: parameters, answers, bounds, and the server."""

__all__ = ["localserver"]
