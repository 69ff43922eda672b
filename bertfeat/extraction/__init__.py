"""Corpora in, stores out: the flow, its plan and jobs, and what runs the flow on texts in memory and on samples."""

__all__ = [
    "appending", "deep_check", "documents", "estimation", "flow", "importing", "plan", "pooling", "resolution", "run",
    "sklearn_transformer", "text_encoder",
]  # fmt: skip
