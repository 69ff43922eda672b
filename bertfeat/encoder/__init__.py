"""Encoders: find and check a model by its name, load what is needed of it, and run packs through it.

This module imports nothing: `packaged`, `layers`, `families`, `sentencemodel`, `checkpoint` and the readers of static
vectors work without torch, the rest needs it.
"""

__all__ = [
    "checkpoint",
    "encoder",
    "families",
    "lanes",
    "layers",
    "loading",
    "packaged",
    "sentencemodel",
    "sentencesteps",
    "staticvectors",
    "tokenvectors",
    "transfers",
    "weights",
    "wordvectors",
]
