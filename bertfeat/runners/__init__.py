"""Where shards run: in this process, in a process for each device, or on Ray."""

from __future__ import annotations

from bertfeat.runners.dispatch import run_shards

__all__ = ["run_shards"]
