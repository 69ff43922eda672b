"""Text to packs: tokens with their characters and words, windows over long documents, packs without padding."""

__all__ = [
    "alignment", "packing", "spans", "statictokenizer", "template", "tokenizer", "tokens", "windows",
]  # fmt: skip
