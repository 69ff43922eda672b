"""FAISS indexes over batches of vectors: transforms, building, search, and recall; codes of tokens."""

__all__ = [
    "budget", "build", "description", "evaluation", "exact", "folder", "index", "neighbors", "search_parameters",
    "token_codes", "transforms", "tuning",
]  # fmt: skip
