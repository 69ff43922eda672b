"""The output of a workload: a level, its layers and its columns. All rivals of a workload give the same output.

Peers read this file in environments of their own: it imports nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["token", "word", "sentence"]


@dataclass(frozen=True)
class Output:
    """One output.

    Attributes:
        level: `word` takes the first token of each given word; `sentence` is the mean over all tokens.
        layers: Layers, negative ones from the end; None is all.
        each: Write one column per layer.
        concat: Write one column of all the layers, lowest first.
        dtype: The stored type.
    """

    level: Level
    layers: tuple[int, ...] | None
    each: bool = True
    concat: bool = False
    dtype: Literal["float16", "float32"] = "float16"

    def absolute(self, n_layers: int) -> tuple[int, ...]:
        """Return the layers of a model of `n_layers` blocks; 0 is the output of its embeddings."""
        if self.layers is None:
            return tuple(range(n_layers + 1))
        return tuple(sorted(layer + n_layers + 1 if layer < 0 else layer for layer in self.layers))

    def columns(self, n_layers: int) -> dict[str, tuple[int, ...]]:
        """Return the vector columns and the layers that each is made of."""
        layers = self.absolute(n_layers)
        columns = {f"layer_{layer:02d}": (layer,) for layer in layers} if self.each else {}
        if self.concat:
            columns[f"concat_last{len(layers)}"] = layers
        return columns

    def settings(self) -> dict[str, Any]:
        """Return the settings that make bertfeat write it."""
        combine = [name for name, on in (("none", self.each), ("concat", self.concat)) if on]
        return {
            "levels": self.level,
            "layers": "all" if self.layers is None else self.layers,
            "combine": combine,
            "store_dtype": self.dtype,
            # The mean of rivals includes [CLS] and [SEP], as in sentence-transformers.
            "include_special_tokens": self.level == "sentence",
        }


_LAST4 = (-4, -3, -2, -1)

OUTPUTS = {
    "sentence": Output("sentence", (-1,), dtype="float32"),
    "sentence-layer-6": Output("sentence", (6,), dtype="float32"),
    "sentence-layers-1-12": Output("sentence", tuple(range(1, 13)), dtype="float32"),
    "word-concat4": Output("word", _LAST4, each=False, concat=True),
    "token-last": Output("token", (-1,)),
    "token-last4": Output("token", _LAST4),
    "token-last4-concat": Output("token", _LAST4, concat=True),
    "token-all": Output("token", None),
}
