"""Corpora in, stores out: the flow, its plan and jobs, and the estimate, embedding and deep check that run it too."""

__all__ = [
    "appending", "deepcheck", "embedding", "estimation", "importing", "plan", "run",
    "sklearntransformer", "textencoder",
]  # fmt: skip
