"""From a model's name to hidden states: find and check a checkpoint, load what is needed of it, run packs through it.

Nothing is imported here: `packaged`, `layers`, `families` and `checkpoint` work without torch, the rest needs it.
"""

__all__ = ["checkpoint", "encoder", "families", "lanes", "layers", "loading", "packaged", "transfers"]
