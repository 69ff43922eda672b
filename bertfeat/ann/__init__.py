"""FAISS indexes over batches of vectors: transforms, building, search, and how much of the truth they find."""
