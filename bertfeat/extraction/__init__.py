"""Corpora in, stores out: the flow, its plan, its jobs, and what else runs the same flow."""

__all__ = ["deepcheck", "embedding", "estimation", "plan", "run"]
