"""Map of a store: two coordinates and the nearest neighbors of each row, as Parquet and as a page."""

__all__ = ["build", "page"]
