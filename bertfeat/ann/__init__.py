"""FAISS indexes over batches of vectors: transforms, building, search, and recall."""

__all__ = [
    "budget", "coordinates", "description", "evaluation", "exact", "indexbuild", "indexfolder", "searchparameters",
    "transforms", "tuning", "vectorindex",
]  # fmt: skip
