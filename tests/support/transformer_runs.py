"""`BertFeatures` in processes that share a cache, for `drill.Zygote`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import bertfeat
from bertfeat.encoder.encoder import PackEncoder


def fit_transform(model: str, cache: str, n_texts: int, said: str) -> None:
    """Transform texts; write the digest of the vectors and the number of windows that were encoded."""
    plain, n_windows = PackEncoder._run, []

    def run(self: PackEncoder, pack: Any) -> Any:
        n_windows.append(len(pack.served[0]))
        return plain(self, pack)

    PackEncoder._run = run  # type: ignore[method-assign]
    texts = [f"text {n} of the sea" for n in range(n_texts)]
    vectors = bertfeat.BertFeatures(model, cache=cache).fit_transform(texts)
    Path(said).write_text(f"{hashlib.sha256(vectors.tobytes()).hexdigest()} {sum(n_windows)}")
