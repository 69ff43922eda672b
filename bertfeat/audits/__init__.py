"""Audits of stores by their features: what is wrong with labels, splits and texts."""

__all__ = ["build", "duplicates", "result", "shift"]
