"""Text to packs: tokens with their characters and words, windows over long documents, packs without padding."""

__all__ = ["alignment", "backend", "packing", "spans", "template", "tokenizer", "tokens", "window_ranges", "windows"]
