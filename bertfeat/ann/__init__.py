"""FAISS indexes over batches of vectors: transforms, building, search, and recall."""

__all__ = [
    "budget", "buildsettings", "coordinates", "description", "evaluation", "exact", "growth", "indexbuild",
    "indexfiles", "indexfolder", "indexloading", "indextraining", "transforms", "tuning", "vectorindex",
]  # fmt: skip
