"""Random models like Llama of any depth, in one file for each block, written without ever holding the whole model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.families import build_tokenizer

WIDTH, INNER, VOCAB_SIZE = 512, 1376, 320
BLOCK_VALUES = 4 * WIDTH * WIDTH + 3 * WIDTH * INNER


def write_decoder(folder: Path, n_blocks: int, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write a model folder whose weights have type `dtype` and return it; a block of bfloat16 takes 6 MB."""
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    top = {"model.embed_tokens.weight": _draw(VOCAB_SIZE, WIDTH), "lm_head.weight": _draw(VOCAB_SIZE, WIDTH)}
    top["model.norm.weight"] = torch.ones(WIDTH)
    files: dict[str, str] = {}
    for number in range(n_blocks + 1):
        weights = _block(number - 1) if number else top
        name = f"model-{number:05d}.safetensors"
        save_file({key: value.to(dtype) for key, value in weights.items()}, folder / name, metadata={"format": "pt"})
        files |= dict.fromkeys(weights, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    config = {
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": n_blocks,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    build_tokenizer("bytes", folder)
    return folder


def _draw(*shape: int) -> torch.Tensor:
    return 0.02 * torch.randn(shape)


def _block(number: int) -> dict[str, torch.Tensor]:
    weights = {f"self_attn.{name}_proj": _draw(WIDTH, WIDTH) for name in "qkvo"}
    weights |= {"mlp.gate_proj": _draw(INNER, WIDTH), "mlp.up_proj": _draw(INNER, WIDTH)}
    weights |= {"mlp.down_proj": _draw(WIDTH, INNER), "input_layernorm": torch.ones(WIDTH)}
    weights["post_attention_layernorm"] = torch.ones(WIDTH)
    return {f"model.layers.{number}.{name}.weight": values for name, values in weights.items()}
