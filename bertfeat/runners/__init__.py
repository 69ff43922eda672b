"""Runners of shards: in this process, in a process for each device, or on Ray.

The room imports none of its modules: a worker process takes what it needs.
"""

__all__ = ["dispatch", "ray", "task"]
