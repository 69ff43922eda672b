"""The entries of config.json that decide no vector, and the digest of all others.

Loads neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# Names of files and versions.
NAMES = ("_name_or_path", "architectures", "transformers_version")
# What a forward pass returns, how it is computed, or which files are loaded: left out when a model is built.
NOT_LOADED = (
    *("_attn_implementation", "_attn_implementation_internal", "attn_implementation", "chunk_size_feed_forward"),
    *("dtype", "fusion_config", "gradient_checkpointing", "output_attentions", "output_hidden_states", "return_dict"),
    *("torch_dtype", "torchscript", "transformers_weights", "use_cache", "use_return_dict"),
)
# The classes and the tasks of heads, which are not loaded.
_OF_HEADS = ("finetuning_task", "id2label", "label2id", "num_labels", "problem_type", "task_specific_params")
# Rates of dropout are not here: the `token_dropout` of ESM scales the embeddings of every pass.
_OF_NO_VECTOR = frozenset((*NAMES, *NOT_LOADED, *_OF_HEADS))


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) over what decides vectors in the content of config.json.

    Examples:
        >>> config_digest({"hidden_act": "gelu"}) == config_digest({"hidden_act": "gelu", "id2label": {}})
        True
    """
    decisive = {name: value for name, value in config.items() if name not in _OF_NO_VECTOR}
    # Not canonical JSON, because the file may hold an infinite number.
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
