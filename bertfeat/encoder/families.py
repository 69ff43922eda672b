"""The encoder families that are supported: one table for the code, the tests and `bertfeat models`.

Two paths: `packed` lays windows end to end without padding and hands attention their bounds (families that take
transformers' attention interface and treat every token by its position alone); `equal-length` runs the windows of one
length as a plain batch, which needs no padding either (families with relative positions, convolutions or attention of
their own; MobileBERT too, whose embeddings look at the neighbouring tokens).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Path = Literal["packed", "equal-length"]
Positions = Literal["absolute", "after-padding", "unlimited"]
Pooler = Literal["none", "optional", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What must be known of one `model_type` to load a part of it and to run it right.

    Attributes:
        model_type: The value in config.json.
        title: The name for people.
        model_class: The class of transformers that holds the encoder.
        path: How packs run, see the module.
        layers_key: Keys of config.json for the number of blocks; the first that is there counts. Likewise the next two.
        hidden_key: Keys for the width.
        positions_key: Keys for the number of positions.
        positions: `absolute`: as many tokens as positions; `after-padding`: positions start at padding_idx + 1, so
            as many fewer; `unlimited`: relative positions, where the tokenizer's limit counts, else 512.
        inner: Attribute of the encoder inside an encoder-decoder.
        final_norm: Attribute of the norm that transformers applies to the last hidden state only. Cut below the last
            block it is left out, as in `output_hidden_states` of the whole model.
        per_layer: Config lists with an entry a block, cut along with the blocks.
        overrides: Config values that are set on loading.
        type_ids: The model takes `token_type_ids` (where its config has two types or more, or names no number).
        pooler: Whether the model has a pooler, and whether it can be built without.
        pooler_activation: Attribute of the activation that stands outside the pooler.
        picks_states: `output_hidden_states` takes a list of layers, so that the others are freed on the way.
        causal: Tokens see earlier tokens only.
        note: A line for `bertfeat models`.
    """

    model_type: str
    title: str
    model_class: str
    path: Path
    layers_key: tuple[str, ...] = ("num_hidden_layers",)
    hidden_key: tuple[str, ...] = ("hidden_size",)
    positions_key: tuple[str, ...] = ("max_position_embeddings",)
    positions: Positions = "absolute"
    inner: str | None = None
    final_norm: str | None = None
    per_layer: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    type_ids: bool = False
    pooler: Pooler = "none"
    pooler_activation: str | None = None
    picks_states: bool = True
    causal: bool = False
    note: str = ""


def families() -> tuple[Family, ...]:
    """Return every supported family, packed ones first."""
    return _FAMILIES


def family_of(model_type: str) -> Family | None:
    """Return the family of a config's `model_type`, or None where it is not supported.

    Example:
        >>> family_of("roberta").path, family_of("llama")
        ('packed', None)
    """
    return _BY_TYPE.get(model_type)


def refused_families() -> Mapping[str, str]:
    """Return the model types that are refused for a reason of their own, with that reason."""
    return _REFUSED


_REFUSED = {
    "funnel": "its layers have different lengths, so that a token has no vector in most of them",
}

_BERT_LIKE: dict[str, Any] = {"path": "packed", "type_ids": True, "pooler": "optional"}
_ROBERTA_LIKE: dict[str, Any] = {**_BERT_LIKE, "positions": "after-padding"}
_SEVERAL: dict[str, Any] = {"path": "equal-length", "picks_states": False}
_T5_LIKE: dict[str, Any] = {
    "path": "equal-length",
    "layers_key": ("num_layers", "num_hidden_layers"),
    "hidden_key": ("d_model", "hidden_size"),
    "positions_key": (),
    "positions": "unlimited",
    "inner": "encoder",
    "final_norm": "final_layer_norm",
    "note": "encoder only; relative positions without a limit: 512 tokens unless the tokenizer says less or more",
}
_GPT_LIKE: dict[str, Any] = {
    "layers_key": ("n_layer", "num_hidden_layers"),
    "hidden_key": ("n_embd", "hidden_size"),
    "positions_key": ("n_positions", "max_position_embeddings"),
    "causal": True,
}
_BART_LIKE: dict[str, Any] = {
    "path": "equal-length",
    "layers_key": ("encoder_layers", "num_hidden_layers"),
    "hidden_key": ("d_model", "hidden_size"),
    "inner": "encoder",
    # The decoder is never run: one without blocks costs next to nothing.
    "overrides": {"decoder_layers": 0},
}

_FAMILIES: tuple[Family, ...] = (
    Family(model_type="bert", title="BERT", model_class="BertModel", **_BERT_LIKE),
    Family(model_type="roberta", title="RoBERTa", model_class="RobertaModel", **_ROBERTA_LIKE),
    Family(model_type="xlm-roberta", title="XLM-RoBERTa", model_class="XLMRobertaModel", **_ROBERTA_LIKE),
    Family(model_type="camembert", title="CamemBERT", model_class="CamembertModel", **_ROBERTA_LIKE),
    Family(
        model_type="xlm-roberta-xl",
        title="XLM-RoBERTa-XL",
        model_class="XLMRobertaXLModel",
        final_norm="encoder.LayerNorm",
        **_ROBERTA_LIKE,
    ),
    Family(
        model_type="roberta-prelayernorm",
        title="RoBERTa-PreLayerNorm",
        model_class="RobertaPreLayerNormModel",
        final_norm="LayerNorm",
        **_ROBERTA_LIKE,
    ),
    Family(
        model_type="distilbert",
        title="DistilBERT",
        model_class="DistilBertModel",
        path="packed",
        layers_key=("n_layers", "num_hidden_layers"),
        hidden_key=("dim", "hidden_size"),
    ),
    Family(
        model_type="albert",
        title="ALBERT",
        model_class="AlbertModel",
        pooler_activation="pooler_activation",
        note="blocks share their weights; layer 0 is widened to the hidden size, as in output_hidden_states",
        **_BERT_LIKE,
    ),
    Family(model_type="ernie", title="ERNIE", model_class="ErnieModel", **_BERT_LIKE),
    Family(
        model_type="electra",
        title="ELECTRA",
        model_class="ElectraModel",
        path="packed",
        type_ids=True,
        note="layer 0 stands after the projection to the hidden size, as in output_hidden_states",
    ),
    Family(
        model_type="modernbert",
        title="ModernBERT",
        model_class="ModernBertModel",
        path="packed",
        final_norm="final_norm",
        per_layer=("layer_types",),
        note="the last layer alone is normed; sliding windows are kept",
    ),
    Family(model_type="nomic_bert", title="NomicBERT", model_class="NomicBertModel", path="packed", type_ids=True),
    Family(
        model_type="eurobert",
        title="EuroBERT",
        model_class="EuroBertModel",
        path="packed",
        final_norm="norm",
        note="the last layer alone is normed",
    ),
    Family(
        model_type="gpt2",
        title="GPT-2",
        model_class="GPT2Model",
        path="packed",
        final_norm="ln_f",
        note="causal; the last layer alone is normed",
        **_GPT_LIKE,
    ),
    Family(
        model_type="mobilebert",
        title="MobileBERT",
        model_class="MobileBertModel",
        path="equal-length",
        type_ids=True,
        pooler="optional",
        note="embeddings look at the neighbouring tokens, hence no packs",
    ),
    Family(
        model_type="xlnet",
        title="XLNet",
        model_class="XLNetModel",
        layers_key=("n_layer", "num_hidden_layers"),
        hidden_key=("d_model", "hidden_size"),
        positions_key=(),
        positions="unlimited",
        type_ids=True,
        note="relative positions without a limit: 512 tokens unless the tokenizer says less or more",
        **_SEVERAL,
    ),
    Family(model_type="deberta", title="DeBERTa", model_class="DebertaModel", type_ids=True, **_SEVERAL),
    Family(model_type="deberta-v2", title="DeBERTa v2 and v3", model_class="DebertaV2Model", type_ids=True, **_SEVERAL),
    Family(
        model_type="mpnet",
        title="MPNet",
        model_class="MPNetModel",
        positions="after-padding",
        pooler="optional",
        **_SEVERAL,
    ),
    Family(
        model_type="megatron-bert",
        title="MegatronBERT",
        model_class="MegatronBertModel",
        final_norm="encoder.ln",
        type_ids=True,
        pooler="optional",
        note="the last layer alone is normed",
        **_SEVERAL,
    ),
    Family(model_type="roformer", title="RoFormer", model_class="RoFormerModel", type_ids=True, **_SEVERAL),
    Family(
        model_type="rembert",
        title="RemBERT",
        model_class="RemBertModel",
        type_ids=True,
        pooler="optional",
        **_SEVERAL,
    ),
    Family(
        model_type="longformer",
        title="Longformer",
        model_class="LongformerModel",
        positions="after-padding",
        per_layer=("attention_window",),
        type_ids=True,
        pooler="optional",
        note="local attention only: no token is given global attention",
        **_SEVERAL,
    ),
    Family(
        model_type="big_bird",
        title="BigBird",
        model_class="BigBirdModel",
        path="equal-length",
        # Block-sparse attention picks blocks at random, and transformers drops it for good after one short text.
        overrides={"attention_type": "original_full"},
        type_ids=True,
        pooler="optional",
        pooler_activation="activation",
        note="full attention at every length",
    ),
    Family(model_type="convbert", title="ConvBERT", model_class="ConvBertModel", path="equal-length", type_ids=True),
    Family(
        model_type="layoutlm",
        title="LayoutLM",
        model_class="LayoutLMModel",
        path="equal-length",
        type_ids=True,
        pooler="always",
        note="text only: every box is zero",
    ),
    Family(model_type="t5", title="T5", model_class="T5EncoderModel", **_T5_LIKE),
    Family(model_type="mt5", title="mT5", model_class="MT5EncoderModel", **_T5_LIKE),
    Family(model_type="umt5", title="UMT5", model_class="UMT5EncoderModel", **_T5_LIKE),
    Family(model_type="bart", title="BART", model_class="BartModel", note="encoder only", **_BART_LIKE),
    Family(
        model_type="mbart",
        title="mBART",
        model_class="MBartModel",
        final_norm="layer_norm",
        note="encoder only; the last layer alone is normed",
        **_BART_LIKE,
    ),
    Family(
        model_type="openai-gpt",
        title="OpenAI GPT",
        model_class="OpenAIGPTModel",
        note="causal",
        **_GPT_LIKE,
        **_SEVERAL,
    ),
)
_BY_TYPE = {family.model_type: family for family in _FAMILIES}
