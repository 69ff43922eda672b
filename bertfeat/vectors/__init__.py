"""Arithmetic on rows of vectors: exact neighbours, moments, and the search for values that are not finite."""

__all__ = ["finite", "moments", "nearest"]
