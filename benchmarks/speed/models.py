"""The models that rivals run: MiniLM as it is installed, and BERT's shapes with random weights from a seed."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from bertfeat.encoder.packaged import minilm

SHAPES = {
    "tiny": {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2},
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "bert-large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
}


@dataclass(frozen=True)
class Shape:
    """A model's folder, and the shapes of its matrix products."""

    folder: Path
    n_layers: int
    hidden_size: int
    inner_size: int
    n_heads: int

    def flops(self, lengths: list[int], n_layers: int | None = None) -> float:
        """Return the floating-point operations of all matrix products for windows of these lengths.

        Args:
            lengths: Tokens of each window; attention grows with their squares.
            n_layers: Blocks that run; all, if it is None.
        """
        in_block = 2 * (4 * self.hidden_size**2 + 2 * self.hidden_size * self.inner_size)
        attention = 2 * 2 * self.hidden_size
        each = sum(in_block * n + attention * n * n for n in lengths)
        return float(each * (self.n_layers if n_layers is None else n_layers))


def get_model(name: str, folder: Path) -> Shape:
    """Return MiniLM, or make a model of a shape in `folder`, with the tokenizer of MiniLM, which is BERT's."""
    packaged = minilm().folder
    made = packaged if name == "minilm" else folder / name
    if not made.exists():
        _build(name, made, packaged)
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))
    return Shape(
        made,
        config["num_hidden_layers"],
        config["hidden_size"],
        config["intermediate_size"],
        config["num_attention_heads"],
    )


def _build(name: str, folder: Path, packaged: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    shape = SHAPES[name]
    config = BertConfig(
        vocab_size=30522, max_position_embeddings=512, intermediate_size=4 * shape["hidden_size"], **shape
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(packaged / file, folder / file)
