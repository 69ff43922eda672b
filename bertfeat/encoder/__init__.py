"""Encoders: find and check a model by its name, load what is needed of it, and run packs through it.

This module imports nothing: `packaged`, `layers`, `families`, `modeltypes`, `randomweights`, `sentencemodel`,
`modelplaces`, `checkpoint`, the readers of static vectors and, until it has written, `conversion` work without torch;
the rest needs it.
"""

__all__ = [
    "checkpoint",
    "conversion",
    "encoder",
    "families",
    "lanes",
    "layers",
    "loading",
    "modelplaces",
    "modeltypes",
    "packaged",
    "randomweights",
    "sentencemodel",
    "sentencesteps",
    "staticvectors",
    "tokenvectors",
    "transfers",
    "weights",
    "wordvectors",
]
