"""Geometry of layers: how the vectors of each layer lie in space, and how two layers or two models differ."""

__all__ = ["measures", "result"]
