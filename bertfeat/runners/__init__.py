"""Runners of shards: in this process, in a process for each device, or on Ray."""

from __future__ import annotations

from bertfeat.runners.dispatch import run_shards
from bertfeat.runners.fence import end_earlier_runs
from bertfeat.runners.ray import OnRay
from bertfeat.runners.ray_cluster import check_ray

__all__ = ["OnRay", "check_ray", "end_earlier_runs", "run_shards", "task"]
