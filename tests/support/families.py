"""Tiny random models of many families, each in a folder with a real fast tokenizer.

Weights are drawn wide (not at the 0.02 of a fresh model), so that a wrong position, mask or norm shows in the states.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from bertfeat.encoder.encoder import PackEncoder
from bertfeat.records import Pack

N_LAYERS = 4
HIDDEN = 32
MAX_LENGTH = 30
VOCAB_SIZE = 320
# Made by training on SENTENCES.
_VOCABULARIES = Path(__file__).parents[1] / "data/vocabularies.json"

SENTENCES = (
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "Contextual vectors of a token depend on every other token of its sentence.",
    "She sells sea shells by the sea shore, and he buys them for 42 pounds.",
    "Die Katze sitzt auf der Matte; le chat est assis sur le tapis.",
    "Extract once, probe many times: features are cheap when stored well!",
    "Überraschung: naïve café owners résumé their façade work in Zürich.",
)

# By the names that every config takes.
_SIZES = {"vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "num_hidden_layers": N_LAYERS, "num_attention_heads": 4}
_BERT = {**_SIZES, "intermediate_size": 48, "max_position_embeddings": MAX_LENGTH, "pad_token_id": 0}
_ROBERTA = {**_BERT, "max_position_embeddings": MAX_LENGTH + 2, "pad_token_id": 1, "type_vocab_size": 1}
_T5 = (
    _SIZES
    | {"num_layers": N_LAYERS, "d_kv": 8, "d_ff": 48, "num_decoder_layers": 1, "decoder_start_token_id": 0}
    | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 16}
)
_BART = (
    {"vocab_size": VOCAB_SIZE, "d_model": HIDDEN, "max_position_embeddings": MAX_LENGTH, "pad_token_id": 1}
    | {"encoder_layers": N_LAYERS, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "scale_embedding": True}
    | {"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
)
_GPT = {**_SIZES, "n_positions": MAX_LENGTH, "bos_token_id": 0, "eos_token_id": 0}
_XLM = {**_SIZES, "max_position_embeddings": MAX_LENGTH, "n_langs": 2}
# Grouped heads, no token for padding; sliding windows are shorter than the texts.
_DECODER = {**_BERT, "vocab_size": 448, "num_key_value_heads": 2, "pad_token_id": None, "bos_token_id": 1}
_WINDOWED = {**_DECODER, "sliding_window": 6}
_IN_TURNS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
_MIXED = {**_WINDOWED, "use_sliding_window": True, "layer_types": _IN_TURNS}
_GEMMA = {**_DECODER, "head_dim": 16}
_CLIP = {**_BERT, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "projection_dim": 16}
_SMALL_HEADS = {**_DECODER, "head_dim": 8, "pad_token_id": 0}
_MIXED_SMALL_HEADS = {**_MIXED, "head_dim": 8}
_EXPERTS = (
    _MIXED_SMALL_HEADS
    | {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
)
_LATENT = (
    _DECODER
    | {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "first_k_dense_replace": 1}
    | {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "moe_intermediate_size": 16}
    | {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}
)
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_HALF_ROPE = {"rope_type": "default", "partial_rotary_factor": 0.5}
_SECTIONS = {**_SMALL_HEADS, "rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}}
_MULTIPLIERS = {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5}
_NARROW = {**_BERT, "embedding_size": 16}
_ONE_TYPE = {**_BERT, "pad_token_id": 1, "type_vocab_size": 1}
_RELATIVE = {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_PAGES = {**_ROBERTA, "max_2d_position_embeddings": 64}


def _each(names: str, config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(names.split(), config)


# The config of each family.
_CONFIGS: dict[str, dict[str, Any]] = {
    **_each("bert bert-generation splinter esmc nomic_bert megatron-bert big_bird fnet yoso", _BERT),
    **_each("chinese_clip_text_model align_text_model flava_text_model visual_bert", _BERT),
    **_each("roberta xlm-roberta camembert xlm-roberta-xl roberta-prelayernorm data2vec-text ibert", _ROBERTA),
    "clap_text_model": _ROBERTA,
    "xmod": {**_ROBERTA, "languages": ["en_XX", "de_DE"], "default_language": "de_DE"},
    **_each("gte jina_embeddings_v3", _ONE_TYPE),
    "ultrabert": {**_BERT, "num_key_value_heads": 2, "sliding_window": 4},
    "esm": {**_ROBERTA, "position_embedding_type": "absolute", "mask_token_id": 7, "token_dropout": True},
    "luke": {**_ROBERTA, "entity_vocab_size": 50, "entity_emb_size": 8},
    **_each("xlm flaubert", _XLM),
    "squeezebert": {**_BERT, "embedding_size": HIDDEN},
    "distilbert": {**_SIZES, "hidden_dim": 48, "max_position_embeddings": MAX_LENGTH},
    **_each("albert electra roformer", _NARROW),
    "ernie": {**_BERT, "use_task_id": True, "task_type_vocab_size": 3},
    **_each("modernbert modernbert-decoder", {**_BERT, "local_attention": 8, "global_attn_every_n_layers": 2}),
    "eurobert": {**_BERT, "num_key_value_heads": 2},
    "gpt2": {**_GPT, "scale_attn_by_inverse_layer_idx": True},
    "mobilebert": {**_NARROW, "intra_bottleneck_size": 16, "num_feedforward_networks": 2, "true_hidden_size": 16},
    "xlnet": {"vocab_size": VOCAB_SIZE, "d_model": HIDDEN, "n_layer": N_LAYERS, "n_head": 4, "d_inner": 48},
    "deberta": {**_RELATIVE, "type_vocab_size": 2, "position_biased_input": True},
    "deberta-v2": _RELATIVE
    | {"type_vocab_size": 0, "position_biased_input": False, "position_buckets": 8, "norm_rel_ebd": "layer_norm"}
    | {"share_att_key": True, "conv_kernel_size": 3, "conv_act": "gelu"},
    "mpnet": {**_BERT, "max_position_embeddings": MAX_LENGTH + 2, "pad_token_id": 1},
    "rembert": {**_BERT, "input_embedding_size": 16, "output_embedding_size": 16},
    "longformer": {**_ROBERTA, "attention_window": [8, 8, 4, 4]},
    "convbert": {**_NARROW, "conv_kernel_size": 3, "head_ratio": 2},
    "layoutlm": {**_BERT, "max_2d_position_embeddings": 64},
    "nystromformer": {**_BERT, "segment_means_seq_len": 8, "num_landmarks": 8, "conv_kernel_size": 5},
    **_each("t5 mt5 umt5", _T5),
    "longt5": {**_T5, "local_radius": 4},
    **_each("bart mbart m2m_100 pegasus blenderbot blenderbot-small marian plbart mvp", _BART),
    **_each("openai-gpt gpt_bigcode", _GPT),
    **_each("llama olmo2 phi", _DECODER),
    **_each("mistral phi3 starcoder2", _WINDOWED),
    "qwen2": _MIXED,
    "qwen3": {**_MIXED, "head_dim": 16},
    "gemma": _GEMMA,
    "gemma2": {**_MIXED, **_GEMMA, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**_MIXED, **_GEMMA, "query_pre_attn_scalar": 24},
    "gpt_neox": {**_BERT, "pad_token_id": None, "rope_parameters": _HALF_ROPE},
    "opt": {**_BERT, "pad_token_id": 1, "ffn_dim": 48},
    "smollm3": {**_MIXED, "no_rope_layers": [1, 0, 0, 1]},
    "bloom": {"vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "n_layer": N_LAYERS, "n_head": 4, "pad_token_id": None},
    "falcon": {**_BERT, "pad_token_id": None, "ffn_hidden_size": 48},
    **_each("clip_text_model metaclip_2_text_model clipseg_text_model owlvit_text_model owlv2_text_model", _CLIP),
    **_each("xclip_text_model groupvit_text_model siglip_text_model siglip2_text_model tipsv2_text_model", _CLIP),
    "altclip_text_model": {**_ROBERTA, "project_dim": HIDDEN},
    "blip_text_model": {**_BERT, "bos_token_id": 0, "eos_token_id": 2, "sep_token_id": 2, "encoder_hidden_size": 16},
    "led": _BART
    | {"max_encoder_position_embeddings": MAX_LENGTH, "max_decoder_position_embeddings": MAX_LENGTH}
    | {"attention_window": [10, 10, 10, 10]},
    "bigbird_pegasus": {**_BART, "attention_type": "original_full"},
    "nllb-moe": {**_BART, "num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 1, "expert_capacity": 64},
    "switch_transformers": {**_T5, "num_experts": 4, "num_sparse_encoder_layers": 2, "expert_capacity": 8},
    # A token, a place and a third of the box of six take equal parts of the width.
    "lilt": {**_PAGES, "hidden_size": 48},
    "layoutlmv3": {**_PAGES, "coordinate_size": 6, "shape_size": 4, "input_size": 32},
    "markuplm": {**_ROBERTA, "type_vocab_size": 2, "max_depth": 4, "xpath_unit_hidden_size": 8},
    "openai_privacy_filter": {**_EXPERTS, "rope_parameters": _ROPE},
    **_each("apertus arcee cohere ernie4_5 glm glm4 helium hunyuan_v1_dense internlm3 jais2 nemotron", _SMALL_HEADS),
    **_each("olmo seed_oss stablelm", _SMALL_HEADS),
    **_each("granite hyperclovax", {**_SMALL_HEADS, **_MULTIPLIERS}),
    **_each("cohere2 cwm exaone4 ministral ministral3 olmo3 vaultgemma kolibri1", _MIXED_SMALL_HEADS),
    **_each("qwen2_vl_text qwen2_5_vl_text", {**_MIXED, **_SECTIONS}),
    "qwen3_vl_text": _SECTIONS,
    "persimmon": {**_BERT, "pad_token_id": 0},
    "biogpt": {**_BERT, "pad_token_id": 1},
    "ctrl": {**_GPT, "dff": 48},
    **_each("gptj codegen", {**_GPT, "rotary_dim": 4}),
    "gpt_neo": _BERT
    | {"num_layers": N_LAYERS, "num_heads": 4, "bos_token_id": 0, "eos_token_id": 2}
    | {"attention_types": [[["global", "local"], 2]], "window_size": 6},
    "xglm": {"vocab_size": VOCAB_SIZE, "d_model": HIDDEN, "num_layers": N_LAYERS, "attention_heads": 4}
    | {"max_position_embeddings": MAX_LENGTH, "ffn_dim": 48},
    "mpt": {**_SIZES, "max_seq_len": MAX_LENGTH, "expansion_ratio": 2},
    **_each("mixtral qwen2_moe qwen3_moe ernie4_5_moe flex_olmo olmoe phimoe gpt_oss", _EXPERTS),
    **_each("minimax_m2 flint cohere2_moe", _EXPERTS),
    **_each("granitemoe granitemoeshared", {**_EXPERTS, **_MULTIPLIERS, "shared_intermediate_size": 16}),
    "glm4_moe": {**_LATENT, "head_dim": 16, "use_qk_norm": True},
    **_each("deepseek_v2 deepseek_v3 minicpm3", _LATENT),
    # Chunks of attention are shorter than the texts.
    "llama4_text": {**_EXPERTS, "intermediate_size_mlp": 48, "attention_chunk_size": 6, "layer_types": None},
    "laguna": {**_EXPERTS, "layer_types": None},
    "solar_open": {**_LATENT, "head_dim": 16},
    "exaone_moe": {**_LATENT, **_MIXED, "head_dim": 8, "num_key_value_heads": 4},
    "jetmoe": {**_DECODER, "kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_vl_moe_text": {**_EXPERTS, **_SECTIONS},
    "aria_text": {**_EXPERTS, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
    "mimo_v2_flash": {**_EXPERTS, "v_head_dim": 6},
}
# Those that differ from another family in names, or that few people run: only the long tests run them.
_RARE = (
    "metaclip_2_text_model clipseg_text_model owlvit_text_model owlv2_text_model xclip_text_model "
    "groupvit_text_model siglip2_text_model tipsv2_text_model chinese_clip_text_model align_text_model "
    "clap_text_model flava_text_model blip_text_model blenderbot blenderbot-small plbart mvp bigbird_pegasus "
    "nllb-moe lilt visual_bert yoso apertus arcee cwm ernie4_5 exaone4 glm glm4 granite helium hunyuan_v1_dense "
    "hyperclovax internlm3 jais2 nemotron olmo olmo3 seed_oss stablelm ministral ministral3 vaultgemma "
    "qwen2_vl_text qwen3_vl_text persimmon biogpt ctrl codegen qwen2_moe ernie4_5_moe flex_olmo glm4_moe granitemoe "
    "granitemoeshared olmoe phimoe deepseek_v3 minicpm3 openai_privacy_filter cohere kolibri1 laguna minimax_m2 "
    "solar_open exaone_moe cohere2_moe qwen3_vl_moe_text aria_text mimo_v2_flash"
)
# Classes with heads and decoders, whose weights must be ignored without a message.
_SAVED_AS = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
    "gte": "GteForSequenceClassification",
    "xlm": "XLMWithLMHeadModel",
    "luke": "LukeForSequenceClassification",
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "llama": "LlamaForCausalLM",
    "opt": "OPTForCausalLM",
    "bloom": "BloomForCausalLM",
    "falcon": "FalconForCausalLM",
}
_BYTE_BPE = "roberta gpt2 openai-gpt longformer bart modernbert deberta eurobert data2vec-text ultrabert luke ibert"
_UNIGRAM = (
    "albert camembert xlm-roberta xlm-roberta-xl xlnet deberta-v2 t5 mt5 umt5 mbart rembert big_bird xmod gte "
    "jina_embeddings_v3 bert-generation longt5 m2m_100"
)
_TOKENIZER_KINDS = {
    **dict.fromkeys(_BYTE_BPE.split(), "bpe"),
    **dict.fromkeys(_UNIGRAM.split(), "unigram"),
    **dict.fromkeys(["llama", "mistral", "gemma", "gemma2", "gemma3_text", "phi3"], "sentencepiece"),
    **dict.fromkeys(["qwen2", "qwen3", "gpt_neox", "olmo2", "smollm3", "bloom", "falcon"], "bytes"),
}


def build_model(model_type: str, folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Save a tiny random model of a family with its tokenizer, and return its folder; `changes` go into its config."""
    config = CONFIG_MAPPING[model_type](**{**_CONFIGS[model_type], **changes})
    torch.manual_seed(seed)
    saved_as = _SAVED_AS.get(model_type)
    model = (getattr(transformers, saved_as) if saved_as else plain_class(model_type))(config)
    _randomize(model)
    model.save_pretrained(folder, safe_serialization=True)
    kind = _TOKENIZER_KINDS.get(model_type, "wordpiece")
    return build_tokenizer(kind, folder, model_input_names=_inputs_of(model_type))


def _inputs_of(model_type: str) -> list[str]:
    """Return what the family's own tokenizer of transformers gives when it is asked for nothing special."""
    names = TOKENIZER_MAPPING_NAMES.get(model_type) or "TokenizersBackend"
    assert isinstance(names, str)
    return list(getattr(transformers, names).model_input_names)


def _randomize(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            is_norm = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.1 * noise if is_norm else 0.2 * noise)


def build_tokenizer(kind: str, folder: Path, **changes: Any) -> Path:
    """Save a small fast tokenizer into `folder`.

    Those of BERT and others, `wordpiece`, `bpe` and `unigram`, put special tokens around a text. Those of decoders have
    no token for padding: `sentencepiece`, with a token before the text, leaves the text whole; `bytes` has no template.

    Args:
        kind: Of the tokenizer.
        folder: Where to save it; created.
        changes: Further values of tokenizer_config.json.
    """
    specials = _SPECIALS.get(kind, _SPECIALS["bpe"])
    tokenizer = _trained(kind, list(specials.values()))
    if kind != "bytes":
        first, last = specials.get("cls", "<s>"), specials.get("sep")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}" if last else f"{first} $A",
            pair=f"{first} $A {last} $B:1 {last}:1" if last else f"{first} $A $B:1",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last) if token],
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {f"{name}_token": token for name, token in specials.items()}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **changes}), encoding="utf-8")
    return folder


# In the order of their ids: those of BERT, and those of the others.
_SPECIALS = {
    "wordpiece": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "bpe": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
    "bytes": {"eos": "<|endoftext|>"},
    "sentencepiece": {"unk": "<unk>", "bos": "<s>", "eos": "</s>"},
}


def _trained(kind: str, specials: list[str]) -> Tokenizer:
    """Return a tokenizer with a vocabulary from tests/data: training one again breaks its ties at random."""
    trained = json.loads(_VOCABULARIES.read_text(encoding="utf-8"))
    found = trained["bpe" if kind in ("bytes", "sentencepiece") else kind]
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(_numbered([*specials, *found]), unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    elif kind == "sentencepiece":
        tokenizer = _sentencepiece(found["merges"], specials)
    elif kind in ("bpe", "bytes"):
        merges = [(first, second) for first, second in found["merges"]]
        tokenizer = Tokenizer(models.BPE(_numbered([*specials, *found["pieces"]]), merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        pieces = [*((piece, 0.0) for piece in specials), *((piece, score) for piece, score in found)]
        tokenizer = Tokenizer(models.Unigram(pieces, unk_id=specials.index("<unk>")))
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(specials)
    return tokenizer


def _sentencepiece(byte_merges: list[list[str]], specials: list[str]) -> Tokenizer:
    """Return a tokenizer as Llama has it: BPE over the whole text, and bytes for characters that have no piece."""
    spaced = [(first.replace("Ġ", "▁"), second) for first, second in byte_merges]
    merges = [(first, second) for first, second in spaced if (first + second).replace("▁", "").isascii()]
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(33, 127)), *map("".join, merges)]
    tokenizer = Tokenizer(
        models.BPE(_numbered([*specials, *pieces]), merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _numbered(pieces: list[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(pieces)}


def plain_class(model_type: str) -> Any:
    """Return the class of transformers for a type: that of AutoModel, or the one that is named like its config."""
    name = MODEL_MAPPING_NAMES.get(model_type) or CONFIG_MAPPING[model_type].__name__.replace("Config", "Model")
    return getattr(transformers, str(name))


def has_pooler(model_type: str) -> bool:
    """Return whether models of a type have a pooler, or can be built with one."""
    takes = "add_pooling_layer" in inspect.signature(plain_class(model_type).__init__).parameters
    # NomicBERT takes the argument and has none.
    return (takes and model_type != "nomic_bert") or model_type in ("squeezebert", "layoutlm")


def reference_encoder(folder: Path, **options: Any) -> torch.nn.Module:
    """Load the whole model with plain transformers; of an encoder-decoder, return the encoder."""
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    # Some classes make a pooler only when they are asked for it.
    takes = "add_pooling_layer" in inspect.signature(plain_class(model_type).__init__).parameters
    options |= {"add_pooling_layer": True} if takes else {}
    model = plain_class(model_type).from_pretrained(folder, **options).eval()
    return model.get_encoder() if model.config.is_encoder_decoder else model


def reference_states(model: torch.nn.Module, pack: Pack, *, type_ids: bool) -> list[torch.Tensor]:
    """Run a pack's windows one at a time; returns every layer, each (n_tokens, hidden)."""
    layers: list[list[torch.Tensor]] = []
    for window in windows_of(pack):
        inputs = {"input_ids": torch.from_numpy(pack.input_ids[window])[None]}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if type_ids:
            inputs["token_type_ids"] = torch.from_numpy(pack.type_ids[window])[None]
        with torch.inference_mode():
            states = model(**inputs, output_hidden_states=True).hidden_states
        layers.append([state[0] for state in states])
    return [torch.cat(parts) for parts in zip(*layers, strict=True)]


def windows_of(pack: Pack) -> list[slice]:
    """Return each window's tokens as a slice of the pack."""
    ends = np.cumsum(pack.lengths).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def random_pack(lengths: Sequence[int], *, seed: int = 0, least_id: int = 5, most_id: int = VOCAB_SIZE) -> Pack:
    """Make a pack of random tokens without special ones; the second half of each window is of type 1."""
    rng = np.random.default_rng(seed)
    ordered = np.array(sorted(lengths, reverse=True), dtype=np.int64)
    positions = np.concatenate([np.arange(length) for length in ordered])
    return Pack(
        input_ids=rng.integers(least_id, most_id, int(ordered.sum())),
        position_ids=positions,
        type_ids=(positions >= np.repeat(ordered, ordered) // 2).astype(np.int64),
        lengths=ordered,
        windows=np.arange(len(ordered)),
    )


def note_packs(patch: pytest.MonkeyPatch) -> list[Pack]:
    """Return a list that gets the packs that encoders are given from now on."""
    encode_parts, packs = PackEncoder.encode_parts, list[Pack]()

    def noted(self: PackEncoder, pack: Pack) -> Any:
        packs.append(pack)
        return encode_parts(self, pack)

    patch.setattr(PackEncoder, "encode_parts", noted)
    return packs


def all_model_types(chosen: Callable[[str], bool] = lambda _: True, *, others_long: bool = False) -> list[Any]:
    """Return the chosen types as parameters; the rare ones, or with `others_long` all others, are for long tests."""
    rare = {name for name in _CONFIGS if name in _RARE.split() or not chosen(name)}
    return [
        pytest.param(name, marks=[pytest.mark.long] if name in rare else [])
        for name in _CONFIGS
        if others_long or chosen(name)
    ]


def is_decoder(model_type: str) -> bool:
    """Return whether a type is that of a model which predicts next words, and no masked ones."""
    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
