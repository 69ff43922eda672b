"""Families of decoders, of which the hidden states of a given text are taken: nothing is generated."""

from __future__ import annotations

from typing import Any

from bertfeat.encoder.family import Family
from bertfeat.encoder.refusals import gpt_neo_fault, opt_fault, smollm3_fault, square_fault

_NORMED = "the last layer alone is normed"
# Many take 32,768 tokens and more: windows of that length would need memory that short texts do not.
_DECODER: dict[str, Any] = {"final_norm": "norm", "window": 8_192, "attention": "causal", "note": _NORMED}
_PACKED: dict[str, Any] = {**_DECODER, "path": "packed", "per_layer": ("layer_types",)}
_SLIDING: dict[str, Any] = {**_PACKED, "attention": "causal, sliding"}
_ALONE: dict[str, Any] = {**_DECODER, "path": "equal-length"}
_SLIDING_ALONE: dict[str, Any] = {**_SLIDING, "path": "equal-length"}
_EXPERTS: dict[str, Any] = {"note": f"{_NORMED}; in bfloat16, rounding may choose other experts for a token"}
_GPT: dict[str, Any] = {
    "layers_key": ("n_layer", "num_hidden_layers"),
    "hidden_key": ("n_embd", "hidden_size"),
    "positions_key": ("n_positions", "max_position_embeddings"),
    "final_norm": "ln_f",
}
_PACKED_GPT: dict[str, Any] = {**_PACKED, **_GPT}
_GPT_ALONE: dict[str, Any] = {**_ALONE, **_GPT}
# Old configs name no limit; the models were trained on 2,048 tokens.
_BLOOM: dict[str, Any] = {
    **_ALONE,
    "layers_key": ("n_layer", "num_hidden_layers"),
    "hidden_key": ("hidden_size", "n_embed"),
    "positions": "unlimited",
    "window": 2_048,
    "final_norm": "ln_f",
    "picks_states": False,
}

DECODERS: tuple[Family, ...] = (
    Family("gpt2", "GPT-2", "GPT2Model", **_PACKED_GPT),
    Family("llama", "Llama", "LlamaModel", **_PACKED),
    Family("mistral", "Mistral", "MistralModel", **_SLIDING),
    Family("qwen2", "Qwen2", "Qwen2Model", **_SLIDING),
    Family("qwen3", "Qwen3", "Qwen3Model", **_SLIDING),
    Family("gemma", "Gemma", "GemmaModel", **_PACKED),
    Family("gemma2", "Gemma 2", "Gemma2Model", **_SLIDING),
    Family("gemma3_text", "Gemma 3 text", "Gemma3TextModel", **_SLIDING),
    Family("gpt_neox", "GPT-NeoX and Pythia", "GPTNeoXModel", **{**_PACKED, "final_norm": "final_layer_norm"}),
    Family("opt", "OPT", "OPTModel", inner="decoder", fault=opt_fault, **{**_PACKED, "final_norm": "final_layer_norm"}),
    Family("phi", "Phi", "PhiModel", **{**_PACKED, "final_norm": "final_layernorm"}),
    Family("phi3", "Phi-3", "Phi3Model", **_SLIDING),
    Family("olmo", "OLMo", "OlmoModel", **_PACKED),
    Family("olmo2", "OLMo 2", "Olmo2Model", **_PACKED),
    Family("olmo3", "OLMo 3", "Olmo3Model", **_SLIDING),
    Family(
        "smollm3",
        "SmolLM3",
        "SmolLM3Model",
        fault=smollm3_fault,
        **{**_SLIDING, "per_layer": ("layer_types", "no_rope_layers")},
    ),
    Family("apertus", "Apertus", "ApertusModel", **_PACKED),
    Family("arcee", "Arcee", "ArceeModel", **_PACKED),
    Family("biogpt", "BioGPT", "BioGptModel", slow_tokenizer=True, **{**_PACKED, "final_norm": "layer_norm"}),
    Family("cohere", "Cohere", "CohereModel", **_PACKED),
    Family("cohere2", "Cohere 2", "Cohere2Model", **_SLIDING),
    Family(
        "ctrl",
        "CTRL",
        "CTRLModel",
        picks_states=False,
        slow_tokenizer=True,
        **{**_PACKED_GPT, "final_norm": "layernorm"},
    ),
    Family("cwm", "CWM", "CwmModel", **_SLIDING),
    Family("ernie4_5", "ERNIE 4.5", "Ernie4_5Model", **_PACKED),
    Family("exaone4", "EXAONE 4", "Exaone4Model", **_SLIDING),
    Family("glm", "GLM", "GlmModel", **_PACKED),
    Family("glm4", "GLM-4", "Glm4Model", **_PACKED),
    Family("gpt_bigcode", "GPTBigCode (StarCoder)", "GPTBigCodeModel", fault=square_fault, **_PACKED_GPT),
    Family("granite", "Granite", "GraniteModel", **_PACKED),
    Family("helium", "Helium", "HeliumModel", **_PACKED),
    Family("hunyuan_v1_dense", "Hunyuan", "HunYuanDenseV1Model", **_PACKED),
    Family("hyperclovax", "HyperCLOVA X", "HyperCLOVAXModel", **_PACKED),
    Family("internlm3", "InternLM3", "LlamaModel", **_PACKED),
    Family("jais2", "Jais 2", "Jais2Model", **_PACKED),
    Family("ministral", "Ministral", "MinistralModel", **_SLIDING),
    Family("ministral3", "Ministral 3", "Ministral3Model", **_SLIDING),
    Family(
        "modernbert-decoder",
        "ModernBERT decoder",
        "ModernBertDecoderModel",
        **{**_SLIDING, "final_norm": "final_norm"},
    ),
    Family("nemotron", "Nemotron", "NemotronModel", **_PACKED),
    Family("persimmon", "Persimmon", "PersimmonModel", **{**_PACKED, "final_norm": "final_layernorm"}),
    Family("qwen2_vl_text", "Qwen2-VL text", "Qwen2VLTextModel", **_SLIDING),
    Family("qwen2_5_vl_text", "Qwen2.5-VL text", "Qwen2_5_VLTextModel", **_SLIDING),
    Family("qwen3_vl_text", "Qwen3-VL text", "Qwen3VLTextModel", **_PACKED),
    Family("seed_oss", "Seed-OSS", "SeedOssModel", **_PACKED),
    Family("stablelm", "StableLM", "StableLmModel", **_PACKED),
    Family("starcoder2", "StarCoder2", "Starcoder2Model", **_SLIDING),
    Family("vaultgemma", "VaultGemma", "VaultGemmaModel", **_SLIDING),
    Family("mixtral", "Mixtral", "MixtralModel", **{**_SLIDING, **_EXPERTS}),
    Family("qwen3_moe", "Qwen3 MoE", "Qwen3MoeModel", **{**_SLIDING, **_EXPERTS}),
    Family("ernie4_5_moe", "ERNIE 4.5 MoE", "Ernie4_5_MoeModel", **{**_PACKED, **_EXPERTS}),
    Family("flex_olmo", "FlexOLMo", "FlexOlmoModel", **{**_PACKED, **_EXPERTS}),
    Family("glm4_moe", "GLM-4 MoE", "Glm4MoeModel", **{**_PACKED, **_EXPERTS}),
    Family("granitemoe", "Granite MoE", "GraniteMoeModel", **{**_PACKED, **_EXPERTS}),
    Family("granitemoeshared", "Granite MoE, shared", "GraniteMoeSharedModel", **{**_PACKED, **_EXPERTS}),
    # Its attention takes a sliding window that its masks do not know.
    Family("olmoe", "OLMoE", "OlmoeModel", overrides={"sliding_window": None}, **{**_PACKED, **_EXPERTS}),
    # Sliding windows that only their masks know.
    Family("qwen2_moe", "Qwen2 MoE", "Qwen2MoeModel", **{**_SLIDING_ALONE, **_EXPERTS}),
    Family("phimoe", "Phi MoE", "PhimoeModel", **{**_SLIDING_ALONE, **_EXPERTS}),
    Family(
        "gpt_oss",
        "gpt-oss",
        "GptOssModel",
        **{**_SLIDING_ALONE, **_EXPERTS, "attention": "causal, sliding, with sinks"},
    ),
    # Keys and values of different widths.
    Family("deepseek_v2", "DeepSeek-V2", "DeepseekV2Model", **{**_ALONE, **_EXPERTS}),
    Family("deepseek_v3", "DeepSeek-V3", "DeepseekV3Model", **{**_ALONE, **_EXPERTS}),
    Family("minicpm3", "MiniCPM3", "MiniCPM3Model", whole=True, **_ALONE),
    # Attention of their own, or relative positions.
    Family(
        "gpt_neo",
        "GPT-Neo",
        "GPTNeoModel",
        layers_key=("num_layers", "num_hidden_layers"),
        per_layer=("attention_layers", "attention_types"),
        fault=gpt_neo_fault,
        **{**_ALONE, "final_norm": "ln_f", "attention": "causal, sliding"},
    ),
    Family("gptj", "GPT-J", "GPTJModel", fault=square_fault, **_GPT_ALONE),
    Family("codegen", "CodeGen", "CodeGenModel", fault=square_fault, **_GPT_ALONE),
    Family(
        "xglm",
        "XGLM",
        "XGLMModel",
        layers_key=("num_layers", "num_hidden_layers"),
        hidden_key=("d_model", "hidden_size"),
        **{**_ALONE, "final_norm": "layer_norm"},
    ),
    Family(
        "mpt",
        "MPT",
        "MptModel",
        layers_key=("n_layers", "num_hidden_layers"),
        hidden_key=("d_model", "hidden_size"),
        positions_key=("max_seq_len",),
        **{**_ALONE, "final_norm": "norm_f", "attention": "causal, relative"},
    ),
    Family("bloom", "BLOOM", "BloomModel", **{**_BLOOM, "attention": "causal, relative"}),
    Family("falcon", "Falcon", "FalconModel", **_BLOOM),
    Family(
        "openai-gpt",
        "OpenAI GPT",
        "OpenAIGPTModel",
        fault=square_fault,
        picks_states=False,
        **{**_GPT_ALONE, "final_norm": None, "note": ""},
    ),
)
