"""Encoders: find and check a model by its name, load what is needed of it, and run packs through it.

This module imports nothing: `packaged`, `layers`, `families`, `sentencemodel`, `hub`, `staticvectors`,
`checkpoint` for a config that was seen before and, until it has written, `conversion` work without torch; the rest
needs it.
"""

__all__ = [
    "attention", "checkpoint", "comparison", "conversion", "device_copies", "encoder", "entry_points", "families",
    "hub", "layers", "loading", "packaged", "sentence_model", "sentence_steps", "static_vectors", "weights",
]  # fmt: skip
