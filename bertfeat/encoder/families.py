"""The encoder families that are supported: one table for the code, the tests and `bertfeat models`.

Two paths: `packed` lays windows end to end without padding and hands attention their bounds (families that take
transformers' attention interface and treat every token by its position alone); `equal-length` runs the windows of one
length as a plain batch, which needs no padding either (families with relative positions, convolutions or attention of
their own; MobileBERT too, whose embeddings look at the neighbouring tokens). A third path, `lookup`, takes static
vectors from a table: the family `STATIC`, which no config.json names.
"""

from __future__ import annotations

from typing import Any

from bertfeat.encoder.family import Family
from bertfeat.encoder.refusals import esm_fault, flaubert_fault, nystromformer_fault, padding_fault, xmod_fault

_NORMED = "the last layer alone is normed"
_UNLIMITED = "relative positions without a limit: 512 tokens unless the tokenizer says less or more"
_PACKED: dict[str, Any] = {"path": "packed"}
_BERT_LIKE: dict[str, Any] = {"path": "packed", "type_ids": True, "pooler": "optional"}
_ROBERTA_LIKE: dict[str, Any] = {**_BERT_LIKE, "positions": "after-padding"}
_PLAIN: dict[str, Any] = {"path": "equal-length"}
_TYPED: dict[str, Any] = {**_PLAIN, "type_ids": True}
# These return the states of all layers.
_ALL_STATES: dict[str, Any] = {**_TYPED, "picks_states": False}
_T5_LIKE: dict[str, Any] = {
    **_PLAIN,
    "layers_key": ("num_layers", "num_hidden_layers"),
    "hidden_key": ("d_model", "hidden_size"),
    "positions_key": (),
    "positions": "unlimited",
    "inner": "encoder",
    "final_norm": "final_layer_norm",
    "note": f"encoder only; {_UNLIMITED}",
}
_GPT_LIKE: dict[str, Any] = {
    "layers_key": ("n_layer", "num_hidden_layers"),
    "hidden_key": ("n_embd", "hidden_size"),
    "positions_key": ("n_positions", "max_position_embeddings"),
}
_BART_LIKE: dict[str, Any] = {
    **_PLAIN,
    "layers_key": ("encoder_layers", "num_hidden_layers"),
    "hidden_key": ("d_model", "hidden_size"),
    "inner": "encoder",
    # The decoder is never run: one without blocks costs next to nothing.
    "overrides": {"decoder_layers": 0},
}
_MBART_LIKE: dict[str, Any] = {**_BART_LIKE, "final_norm": "layer_norm", "note": f"encoder only; {_NORMED}"}
_XLM_LIKE: dict[str, Any] = {
    **_PLAIN,
    "layers_key": ("n_layers", "num_hidden_layers"),
    "hidden_key": ("emb_dim", "hidden_size"),
    "picks_states": False,
    "slow_tokenizer": True,
    "note": "no language embedding is added",
}

_FAMILIES: tuple[Family, ...] = (
    Family("bert", "BERT", "BertModel", **_BERT_LIKE),
    Family("roberta", "RoBERTa", "RobertaModel", **_ROBERTA_LIKE),
    Family("xlm-roberta", "XLM-RoBERTa", "XLMRobertaModel", **_ROBERTA_LIKE),
    Family("camembert", "CamemBERT", "CamembertModel", **_ROBERTA_LIKE),
    Family("xlm-roberta-xl", "XLM-RoBERTa-XL", "XLMRobertaXLModel", final_norm="encoder.LayerNorm", **_ROBERTA_LIKE),
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
        note=f"{_NORMED}; sliding windows are kept",
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
        note=f"{_NORMED}; sliding windows are kept",
        **_PACKED,
    ),
    Family("esmc", "ESM C", "EsmcModel", final_norm="norm", whole=True, note=_NORMED, **_PACKED),
    Family("gpt2", "GPT-2", "GPT2Model", final_norm="ln_f", note=f"causal; {_NORMED}", **_PACKED, **_GPT_LIKE),
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
        **_ALL_STATES,
    ),
    Family("deberta", "DeBERTa", "DebertaModel", **_ALL_STATES),
    Family("deberta-v2", "DeBERTa v2 and v3", "DebertaV2Model", **_ALL_STATES),
    Family("mpnet", "MPNet", "MPNetModel", positions="after-padding", pooler="optional", picks_states=False, **_PLAIN),
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
    Family("nystromformer", "Nyströmformer", "NystromformerModel", fault=nystromformer_fault, **_ALL_STATES),
    Family("convbert", "ConvBERT", "ConvBertModel", **_TYPED),
    Family("layoutlm", "LayoutLM", "LayoutLMModel", pooler="always", note="text only: every box is zero", **_TYPED),
    Family("t5", "T5", "T5EncoderModel", **_T5_LIKE),
    Family("mt5", "mT5", "MT5EncoderModel", **_T5_LIKE),
    Family("umt5", "UMT5", "UMT5EncoderModel", **_T5_LIKE),
    Family("longt5", "LongT5", "LongT5EncoderModel", **_T5_LIKE),
    Family("bart", "BART", "BartModel", note="encoder only", **_BART_LIKE),
    Family("mbart", "mBART", "MBartModel", **_MBART_LIKE),
    Family("m2m_100", "M2M100 and NLLB", "M2M100Model", fault=padding_fault, **_MBART_LIKE),
    Family("openai-gpt", "OpenAI GPT", "OpenAIGPTModel", note="causal", picks_states=False, **_PLAIN, **_GPT_LIKE),
)
# Files of word vectors and model2vec folders, which have no encoder: a token's vector is looked up.
STATIC = Family(
    "static",
    "Static vectors",
    "",
    path="lookup",
    note="a file of word2vec, GloVe or fastText, or a folder of model2vec; layer 0 only",
)
_BY_TYPE = {family.model_type: family for family in _FAMILIES}


def families() -> tuple[Family, ...]:
    """Return every supported family, packed ones first."""
    return _FAMILIES


def family_of(model_type: str) -> Family | None:
    """Return the family of a config's `model_type`, or None where it is not supported.

    Examples:
        >>> family_of("roberta").path, family_of("llama")
        ('packed', None)
    """
    return _BY_TYPE.get(model_type)
