"""Exports: the vectors of a store as files of other tools, and a store's card for a hub of data sets."""

__all__ = ["datasetcard", "exporting", "framefiles", "wordtypes"]
