"""Text to packs: tokens with their characters and words, windows over long documents, packs without padding."""

__all__ = ["alignment", "packing", "spans", "template", "tokenizer", "tokens", "windows"]
