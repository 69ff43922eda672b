"""Shipping: a fitted probe and the blocks that it needs become a model folder that works without bertfeat."""

__all__ = ["ship"]
