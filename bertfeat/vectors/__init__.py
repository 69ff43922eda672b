"""Chosen rows of vectors, from an array or a store, read in ranges; their moments and exact nearest neighbors."""

__all__ = ["array", "nearest", "standardized", "store"]
