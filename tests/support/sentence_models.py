"""Folders that sentence-transformers saves: a model with its pooling, dense layers and prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_OLD_FLAGS = {"cls": "pooling_mode_cls_token", "lasttoken": "pooling_mode_lasttoken"}


def save_sentence_model(
    model: Path,
    folder: Path,
    *,
    modes: Sequence[str] = ("mean",),
    include_prompt: bool = True,
    dense: Sequence[dict[str, Any]] = (),
    normalize: bool = False,
    max_length: int | None = None,
    **settings: Any,
) -> Path:
    """Save a model with a sentence embedding, and return its folder.

    Args:
        model: The folder of the model itself.
        folder: The new folder.
        modes: The pooling modes.
        include_prompt: Whether the prompt is pooled.
        dense: The arguments of each dense layer, but for `in_features`.
        normalize: Whether the vectors get unit length at the end.
        max_length: Tokens per text.
        settings: `prompts` and `default_prompt_name`.
    """
    transformer = Transformer(str(model), max_seq_length=max_length)
    hidden = transformer.get_embedding_dimension()
    modules: list[torch.nn.Module] = [transformer, Pooling(hidden, tuple(modes), include_prompt=include_prompt)]
    width = len(modes) * hidden
    torch.manual_seed(0)
    for arguments in dense:
        modules.append(Dense(width, **arguments))
        width = arguments["out_features"]
    modules += [Normalize()] if normalize else []
    SentenceTransformer(modules=modules, device="cpu", **settings).save_pretrained(str(folder), create_model_card=False)
    return folder


def respell(folder: Path, max_length: int | None = None) -> None:
    """Rewrite the settings of a folder as sentence-transformers 2 spelled them."""
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    (folder / "modules.json").write_text(json.dumps(modules))
    path = folder / "1_Pooling" / "config.json"
    said = json.loads(path.read_text())
    chosen = [said["pooling_mode"]] if isinstance(said["pooling_mode"], str) else said["pooling_mode"]
    flags = {
        _OLD_FLAGS.get(mode, f"pooling_mode_{mode}_tokens".replace("_tokens_tokens", "_tokens")): mode for mode in MODES
    }
    old = {flag: mode in chosen for flag, mode in flags.items()}
    path.write_text(json.dumps({"word_embedding_dimension": said["embedding_dimension"], **old}))
    settings = {"max_seq_length": max_length, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
