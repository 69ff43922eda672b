"""Table of what transformers cannot tell of a model type: values that must be set, limits, and notes for people.

A type without a row is run in the same way: `discovery` finds its class and its sizes, `comparison` how packs run.
Below the table are the entries of config.json that decide no vector of any type.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """A model type, and what cannot be found out about it.

    Attributes:
        model_type: The value in config.json.
        note: A line for `bertfeat models`.
        refusal: Why the type is not run; empty if it is tried.
        overrides: Config values that are set on loading.
        unused: Parts of the model that are never run: their weights are not needed, and are dropped.
        in_float32: Last names of parts that are computed in float32, because torch has no half precision for them.
        unlimited: Tokens of a window where neither the model nor its tokenizer has a limit.
        window: Tokens of a window unless the user says otherwise, where the model takes more: the memory of a forward
            pass grows with the longest window.
        type_ids: The model takes `token_type_ids` although its config has no number of them.
    """

    model_type: str
    note: str = ""
    _: KW_ONLY
    refusal: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    in_float32: tuple[str, ...] = ()
    unlimited: int = 512
    window: int = 8_192
    type_ids: bool = False

    def usual_length(self, max_length: int) -> int:
        """Return the tokens of a window unless the user says otherwise, for a model that takes `max_length`."""
        return min(max_length, self.window)


# Files of word vectors and model2vec folders, which have no encoder: a token's vector is looked up.
STATIC = Family(
    "static",
    "a file of word2vec, GloVe or fastText, or a folder of model2vec; layer 0 only",
    window=1 << 62,
)
_NO_BOXES = "text only: every box is zero"
_LOCAL = "local attention only: no token is given global attention"
_FULL = "full attention at every length"
# Block-sparse attention picks blocks at random, and transformers drops it for good after one short text.
_NOT_SPARSE = {"attention_type": "original_full"}
# Those without an encoder first.
FAMILIES = (
    STATIC,
    Family("albert", "blocks share their weights; layer 0 is widened to the hidden size"),
    Family("big_bird", _FULL, overrides=_NOT_SPARSE),
    Family("bigbird_pegasus", _FULL, overrides=_NOT_SPARSE),
    # Old configs name no limit; the model was trained on 2,048 tokens.
    Family("bloom", unlimited=2_048),
    Family("electra", "layer 0 is taken after the projection to the hidden size"),
    # ESM-2 was trained on 1,024 tokens, which its config does not say.
    Family("esm", "embeddings are scaled by the share of masked tokens", unused=("contact_head",), window=1_024),
    # The other form of the same transform takes texts of one length only.
    Family("fnet", overrides={"use_tpu_fourier_optimizations": False}, in_float32=("fourier.self",)),
    Family("jina_embeddings_v3", "no task adapter"),
    Family("layoutlm", _NO_BOXES),
    Family("layoutlmv3", _NO_BOXES, overrides={"visual_embed": False}),
    Family("led", _LOCAL),
    Family("lilt", _NO_BOXES),
    Family("longformer", _LOCAL),
    # Entities are never given: a table without rows takes no memory.
    Family("luke", "words only, no entities", overrides={"entity_vocab_size": 1}, unused=("entity_embeddings",)),
    Family("markuplm", "text only: no places in a page"),
    Family("mra", refusal="its attention gives zeros without CUDA kernels that transformers downloads"),
    Family("new", refusal="transformers has it under another name; take a copy of the model with the model type 'gte'"),
    # With another share, the tokens that an expert takes would depend on the other texts of a batch.
    Family("nllb-moe", overrides={"moe_eval_capacity_token_fraction": 1.0}),
    # Its attention takes a sliding window that its masks do not know.
    Family("olmoe", overrides={"sliding_window": None}),
    Family("visual_bert", "text only: no pictures"),
    Family("xlm", "no language embedding is added"),
    Family("flaubert", "no language embedding is added"),
    Family("xlnet", type_ids=True),
    Family("xmod", "runs the adapters of default_language, which config.json must name"),
    # Its hashes need CUDA kernels that transformers downloads, and are random.
    Family("yoso", "attention is what its hashes give on average", overrides={"use_expectation": True}),
)
_BY_TYPE = {family.model_type: family for family in FAMILIES}

# What a forward pass returns, how it is computed, or which files are loaded: left out when a model is built.
NOT_LOADED = (
    *("_attn_implementation", "_attn_implementation_internal", "attn_implementation", "chunk_size_feed_forward"),
    *("dtype", "fusion_config", "gradient_checkpointing", "output_attentions", "output_hidden_states", "return_dict"),
    *("torch_dtype", "torchscript", "transformers_weights", "use_cache", "use_return_dict"),
)
# Names of files and versions; classes and tasks of heads, which are not loaded. Rates of dropout are not here: the
# `token_dropout` of ESM scales the embeddings of every pass.
_OF_NO_VECTOR = (
    *("_name_or_path", "architectures", "transformers_version", "finetuning_task", "id2label", "label2id"),
    *("num_labels", "problem_type", "task_specific_params", *NOT_LOADED),
)


def family_of(model_type: str) -> Family:
    """Return the row of a config's `model_type`, or an empty one.

    Examples:
        >>> family_of("bloom").unlimited, family_of("bert").note
        (2048, '')
    """
    return _BY_TYPE.get(model_type) or Family(model_type)


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) over what decides vectors in the content of config.json.

    Examples:
        >>> config_digest({"hidden_act": "gelu"}) == config_digest({"hidden_act": "gelu", "id2label": {}})
        True
    """
    decisive = {name: value for name, value in config.items() if name not in _OF_NO_VECTOR}
    # Not canonical JSON, because the file may hold an infinite number.
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
