"""The encoder families that are supported: one table for the code, the tests and `bertfeat models`.

Two paths: `packed` lays windows end to end without padding and hands attention their bounds (families that take
transformers' attention interface and treat every token by its position alone); `equal-length` runs the windows of one
length as a plain batch, which needs no padding either (families with relative positions, convolutions or attention of
their own; MobileBERT too, whose embeddings look at the neighbouring tokens). A third path, `lookup`, takes static
vectors from a table: the family `STATIC`, which no config.json names.
"""

from __future__ import annotations

from typing import Any

from bertfeat.encoder.decoders import DECODERS
from bertfeat.encoder.encoderdecoders import ENCODER_DECODERS
from bertfeat.encoder.family import Family
from bertfeat.encoder.refusals import esm_fault, flaubert_fault, nystromformer_fault, padding_fault, xmod_fault
from bertfeat.encoder.textparts import TEXT_PARTS

_NORMED = "the last layer alone is normed"
_UNLIMITED = "relative positions without a limit: 512 tokens unless the tokenizer says less or more"
_PACKED: dict[str, Any] = {"path": "packed"}
_BERT_LIKE: dict[str, Any] = {"path": "packed", "type_ids": True, "pooler": "optional"}
_ROBERTA_LIKE: dict[str, Any] = {**_BERT_LIKE, "positions": "after-padding"}
_PLAIN: dict[str, Any] = {"path": "equal-length"}
_TYPED: dict[str, Any] = {**_PLAIN, "type_ids": True}
# These return the states of all layers.
_ALL_STATES: dict[str, Any] = {**_TYPED, "picks_states": False}
_XLM_LIKE: dict[str, Any] = {
    **_PLAIN,
    "layers_key": ("n_layers", "num_hidden_layers"),
    "hidden_key": ("emb_dim", "hidden_size"),
    "picks_states": False,
    "slow_tokenizer": True,
    "note": "no language embedding is added",
}

_ENCODERS: tuple[Family, ...] = (
    Family("bert", "BERT", "BertModel", **_BERT_LIKE),
    Family("roberta", "RoBERTa", "RobertaModel", **_ROBERTA_LIKE),
    Family("xlm-roberta", "XLM-RoBERTa", "XLMRobertaModel", **_ROBERTA_LIKE),
    Family("camembert", "CamemBERT", "CamembertModel", **_ROBERTA_LIKE),
    Family(
        "xlm-roberta-xl",
        "XLM-RoBERTa-XL",
        "XLMRobertaXLModel",
        final_norm="encoder.LayerNorm",
        **_ROBERTA_LIKE,
    ),
    Family(
        "roberta-prelayernorm",
        "RoBERTa-PreLayerNorm",
        "RobertaPreLayerNormModel",
        final_norm="LayerNorm",
        **_ROBERTA_LIKE,
    ),
    Family(
        "distilbert",
        "DistilBERT",
        "DistilBertModel",
        layers_key=("n_layers", "num_hidden_layers"),
        hidden_key=("dim", "hidden_size"),
        **_PACKED,
    ),
    Family(
        "albert",
        "ALBERT",
        "AlbertModel",
        pooler_activation="pooler_activation",
        note="blocks share their weights; layer 0 is widened to the hidden size, as in output_hidden_states",
        **_BERT_LIKE,
    ),
    Family("ernie", "ERNIE", "ErnieModel", **_BERT_LIKE),
    Family("data2vec-text", "data2vec text", "Data2VecTextModel", **_ROBERTA_LIKE),
    Family(
        "xmod",
        "X-MOD",
        "XmodModel",
        final_norm="encoder.LayerNorm",
        fault=xmod_fault,
        note="runs the adapters of default_language",
        **_ROBERTA_LIKE,
    ),
    Family("bert-generation", "BertGeneration", "BertGenerationEncoder", slow_tokenizer=True, **_PACKED),
    Family("splinter", "Splinter", "SplinterModel", type_ids=True, **_PACKED),
    Family(
        "electra",
        "ELECTRA",
        "ElectraModel",
        type_ids=True,
        note="layer 0 is taken after the projection to the hidden size, as in output_hidden_states",
        **_PACKED,
    ),
    Family(
        "modernbert",
        "ModernBERT",
        "ModernBertModel",
        final_norm="final_norm",
        per_layer=("layer_types",),
        note=_NORMED,
        attention="full, sliding",
        **_PACKED,
    ),
    Family("nomic_bert", "NomicBERT", "NomicBertModel", type_ids=True, **_PACKED),
    Family("gte", "GTE", "GteModel", **_BERT_LIKE),
    Family("jina_embeddings_v3", "Jina Embeddings v3", "JinaEmbeddingsV3Model", note="no task adapter", **_BERT_LIKE),
    Family("eurobert", "EuroBERT", "EuroBertModel", final_norm="norm", note=_NORMED, **_PACKED),
    Family(
        "ultrabert",
        "UltraBERT",
        "UltrabertModel",
        final_norm="norm",
        per_layer=("layer_types",),
        note=_NORMED,
        attention="full, sliding",
        **_PACKED,
    ),
    Family("esmc", "ESM C", "EsmcModel", final_norm="norm", whole=True, note=_NORMED, **_PACKED),
    Family(
        "mobilebert",
        "MobileBERT",
        "MobileBertModel",
        pooler="optional",
        note="embeddings look at the neighbouring tokens, hence no packs",
        **_TYPED,
    ),
    Family(
        "xlnet",
        "XLNet",
        "XLNetModel",
        layers_key=("n_layer", "num_hidden_layers"),
        hidden_key=("d_model", "hidden_size"),
        positions_key=(),
        positions="unlimited",
        note=_UNLIMITED,
        attention="full, relative",
        **_ALL_STATES,
    ),
    Family("deberta", "DeBERTa", "DebertaModel", attention="full, relative", **_ALL_STATES),
    Family("deberta-v2", "DeBERTa v2 and v3", "DebertaV2Model", attention="full, relative", **_ALL_STATES),
    Family(
        "mpnet",
        "MPNet",
        "MPNetModel",
        positions="after-padding",
        pooler="optional",
        picks_states=False,
        attention="full, relative",
        **_PLAIN,
    ),
    Family(
        "megatron-bert",
        "MegatronBERT",
        "MegatronBertModel",
        final_norm="encoder.ln",
        pooler="optional",
        note=_NORMED,
        **_ALL_STATES,
    ),
    Family("roformer", "RoFormer", "RoFormerModel", **_ALL_STATES),
    Family("rembert", "RemBERT", "RemBertModel", pooler="optional", **_ALL_STATES),
    Family(
        "longformer",
        "Longformer",
        "LongformerModel",
        positions="after-padding",
        per_layer=("attention_window",),
        pooler="optional",
        note="local attention only: no token is given global attention",
        attention="sliding",
        **_ALL_STATES,
    ),
    Family(
        "big_bird",
        "BigBird",
        "BigBirdModel",
        # Block-sparse attention picks blocks at random, and transformers drops it for good after one short text.
        overrides={"attention_type": "original_full"},
        pooler="optional",
        pooler_activation="activation",
        note="full attention at every length",
        **_TYPED,
    ),
    Family(
        "esm",
        "ESM",
        "EsmModel",
        positions="after-padding",
        final_norm="encoder.emb_layer_norm_after",
        unused=("contact_head",),
        fault=esm_fault,
        pooler="optional",
        note=f"{_NORMED}; embeddings are scaled by the share of masked tokens, hence no packs",
        **_PLAIN,
    ),
    Family(
        "luke",
        "LUKE",
        "LukeModel",
        positions="after-padding",
        unused=("entity_embeddings",),
        # Entities are never given: a table without rows takes no memory.
        overrides={"entity_vocab_size": 1},
        pooler="optional",
        note="words only, no entities",
        **_ALL_STATES,
    ),
    Family("xlm", "XLM", "XLMModel", fault=padding_fault, **_XLM_LIKE),
    Family("flaubert", "FlauBERT", "FlaubertModel", fault=flaubert_fault, **_XLM_LIKE),
    Family("ibert", "I-BERT", "IBertModel", positions="after-padding", pooler="optional", **_ALL_STATES),
    Family("squeezebert", "SqueezeBERT", "SqueezeBertModel", pooler="always", **_ALL_STATES),
    Family(
        "nystromformer",
        "Nyströmformer",
        "NystromformerModel",
        fault=nystromformer_fault,
        attention="landmarks",
        **_ALL_STATES,
    ),
    Family("convbert", "ConvBERT", "ConvBertModel", attention="full, with convolutions", **_TYPED),
    Family(
        "layoutlm",
        "LayoutLM",
        "LayoutLMModel",
        pooler="always",
        note="text only: every box is zero",
        **_TYPED,
    ),
    Family(
        "layoutlmv3",
        "LayoutLMv3",
        "LayoutLMv3Model",
        positions="after-padding",
        overrides={"visual_embed": False},
        attention="full, relative",
        note="text only: every box is zero",
        **_PLAIN,
    ),
    Family(
        "lilt",
        "LiLT",
        "LiltModel",
        positions="after-padding",
        pooler="optional",
        note="text only: every box is zero",
        **_ALL_STATES,
    ),
    Family(
        "markuplm",
        "MarkupLM",
        "MarkupLMModel",
        positions="after-padding",
        pooler="optional",
        note="text only: no places in a page",
        **_TYPED,
    ),
    Family(
        "visual_bert",
        "VisualBERT",
        "VisualBertModel",
        pooler="optional",
        note="text only: no pictures",
        **_ALL_STATES,
    ),
    Family(
        "fnet",
        "FNet",
        "FNetModel",
        # The other form of the same transform takes texts of one length only.
        overrides={"use_tpu_fourier_optimizations": False},
        in_float32=("fourier.self",),
        pooler="optional",
        attention="Fourier transform",
        **_ALL_STATES,
    ),
    Family(
        "yoso",
        "YOSO",
        "YosoModel",
        # Its hashes need CUDA kernels that transformers downloads, and are random.
        overrides={"use_expectation": True},
        note="attention is what its hashes give on average",
        **_ALL_STATES,
    ),
    Family(
        "openai_privacy_filter",
        "OpenAI privacy filter",
        "OpenAIPrivacyFilterModel",
        final_norm="norm",
        per_layer=("layer_types",),
        attention="sliding, with sinks",
        note=f"{_NORMED}; in bfloat16, rounding may choose other experts for a token",
        **_PLAIN,
    ),
)
_FAMILIES = tuple(
    sorted((*_ENCODERS, *ENCODER_DECODERS, *TEXT_PARTS, *DECODERS), key=lambda family: family.path != "packed")
)
# Files of word vectors and model2vec folders, which have no encoder: a token's vector is looked up.
STATIC = Family(
    "static",
    "Static vectors",
    "",
    path="lookup",
    attention="none",
    note="a file of word2vec, GloVe or fastText, or a folder of model2vec; layer 0 only",
)
_BY_TYPE = {family.model_type: family for family in _FAMILIES}


def families() -> tuple[Family, ...]:
    """Return every supported family, packed ones first."""
    return _FAMILIES


def family_of(model_type: str) -> Family | None:
    """Return the family of a config's `model_type`, or None where it is not supported.

    Examples:
        >>> family_of("roberta").path, family_of("funnel")
        ('packed', None)
    """
    return _BY_TYPE.get(model_type)
