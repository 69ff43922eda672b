"""Tiny random models of every supported family, each in a folder with a real fast tokenizer.

Weights are drawn wide (not at the 0.02 of a fresh model), so that a wrong position, mask or norm shows in the states.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from bertfeat.encoder.families import families, family_of
from bertfeat.encoder.family import Family
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

_BERT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": MAX_LENGTH,
    "pad_token_id": 0,
}
_ROBERTA = {**_BERT, "max_position_embeddings": MAX_LENGTH + 2, "pad_token_id": 1, "type_vocab_size": 1}
_T5 = {
    "vocab_size": VOCAB_SIZE,
    "d_model": HIDDEN,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": N_LAYERS,
    "num_decoder_layers": 1,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "decoder_start_token_id": 0,
}
_BART = {
    "vocab_size": VOCAB_SIZE,
    "d_model": HIDDEN,
    "encoder_layers": N_LAYERS,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": MAX_LENGTH,
    "pad_token_id": 1,
    "scale_embedding": True,
}
_GPT = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": HIDDEN,
    "n_layer": N_LAYERS,
    "n_head": 4,
    "n_positions": MAX_LENGTH,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_XLM = {
    "vocab_size": VOCAB_SIZE,
    "emb_dim": HIDDEN,
    "n_layers": N_LAYERS,
    "n_heads": 4,
    "max_position_embeddings": MAX_LENGTH,
    "n_langs": 2,
}
# The config of each family.
_CONFIGS: dict[str, dict[str, Any]] = {
    "bert": _BERT,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm"), _ROBERTA),
    "data2vec-text": _ROBERTA,
    "xmod": {**_ROBERTA, "languages": ["en_XX", "de_DE"], "default_language": "de_DE"},
    "bert-generation": _BERT,
    "splinter": _BERT,
    "gte": {**_BERT, "pad_token_id": 1, "type_vocab_size": 1},
    "jina_embeddings_v3": {**_BERT, "pad_token_id": 1, "type_vocab_size": 1},
    "ultrabert": {**_BERT, "num_key_value_heads": 2, "sliding_window": 4},
    "esmc": _BERT,
    "esm": {**_ROBERTA, "position_embedding_type": "absolute", "mask_token_id": 7, "token_dropout": True},
    "luke": {**_ROBERTA, "entity_vocab_size": 50, "entity_emb_size": 8},
    "xlm": _XLM,
    "flaubert": _XLM,
    "ibert": _ROBERTA,
    "squeezebert": {**_BERT, "embedding_size": HIDDEN},
    "distilbert": {
        "vocab_size": VOCAB_SIZE,
        "dim": HIDDEN,
        "n_layers": N_LAYERS,
        "n_heads": 4,
        "hidden_dim": 48,
        "max_position_embeddings": MAX_LENGTH,
    },
    "albert": {**_BERT, "embedding_size": 16},
    "ernie": {**_BERT, "use_task_id": True, "task_type_vocab_size": 3},
    "electra": {**_BERT, "embedding_size": 16},
    "modernbert": {**_BERT, "local_attention": 8, "global_attn_every_n_layers": 2},
    "nomic_bert": _BERT,
    "eurobert": {**_BERT, "num_key_value_heads": 2},
    "gpt2": {**_GPT, "scale_attn_by_inverse_layer_idx": True},
    "mobilebert": {
        **_BERT,
        "embedding_size": 16,
        "intra_bottleneck_size": 16,
        "num_feedforward_networks": 2,
        "true_hidden_size": 16,
    },
    "xlnet": {"vocab_size": VOCAB_SIZE, "d_model": HIDDEN, "n_layer": N_LAYERS, "n_head": 4, "d_inner": 48},
    "deberta": {
        **_BERT,
        "type_vocab_size": 2,
        "relative_attention": True,
        "position_biased_input": True,
        "pos_att_type": ["c2p", "p2c"],
    },
    "deberta-v2": {
        **_BERT,
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "conv_kernel_size": 3,
        "conv_act": "gelu",
    },
    "mpnet": {**_BERT, "max_position_embeddings": MAX_LENGTH + 2, "pad_token_id": 1},
    "megatron-bert": _BERT,
    "roformer": {**_BERT, "embedding_size": 16},
    "rembert": {**_BERT, "input_embedding_size": 16, "output_embedding_size": 16},
    "longformer": {
        **_BERT,
        "max_position_embeddings": MAX_LENGTH + 2,
        "pad_token_id": 1,
        "type_vocab_size": 1,
        "attention_window": [8, 8, 4, 4],
    },
    "big_bird": _BERT,
    "convbert": {**_BERT, "embedding_size": 16, "conv_kernel_size": 3, "head_ratio": 2},
    "layoutlm": {**_BERT, "max_2d_position_embeddings": 64},
    "nystromformer": {**_BERT, "segment_means_seq_len": 8, "num_landmarks": 8, "conv_kernel_size": 5},
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5),
    "longt5": {**_T5, "local_radius": 4},
    **dict.fromkeys(("bart", "mbart", "m2m_100"), _BART),
    "openai-gpt": _GPT,
}
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
    "mt5": "MT5Model",
    "umt5": "UMT5Model",
    "bart": "BartForConditionalGeneration",
}
_BYTE_BPE = "roberta gpt2 openai-gpt longformer bart modernbert deberta eurobert data2vec-text ultrabert luke ibert"
_UNIGRAM = (
    "albert camembert xlm-roberta xlm-roberta-xl xlnet deberta-v2 t5 mt5 umt5 mbart rembert big_bird xmod gte "
    "jina_embeddings_v3 bert-generation longt5 m2m_100"
)
_TOKENIZER_KINDS = dict.fromkeys(_BYTE_BPE.split(), "bpe") | dict.fromkeys(_UNIGRAM.split(), "unigram")


def build_model(model_type: str, folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Save a tiny random model of a family, with its tokenizer, and return its folder.

    Args:
        model_type: One of `bertfeat.encoder.families`.
        folder: Where to save it; created.
        seed: Of the weights.
        changes: Config values that differ from the tiny model's.
    """
    family = family_of(model_type)
    assert family is not None
    config = _config(model_type, changes)
    torch.manual_seed(seed)
    model = getattr(transformers, _SAVED_AS.get(model_type, family.model_class))(config)
    _randomize(model)
    model.save_pretrained(folder, safe_serialization=True)
    return _with_tokenizer(model_type, folder)


def build_without_weights(model_type: str, folder: Path, **changes: Any) -> Path:
    """Save the config and the tokenizer of a tiny model; see `build_model`."""
    _config(model_type, changes).save_pretrained(folder)
    return _with_tokenizer(model_type, folder)


def _config(model_type: str, changes: dict[str, Any]) -> Any:
    return CONFIG_MAPPING[model_type](**{**_CONFIGS[model_type], **changes})


def _with_tokenizer(model_type: str, folder: Path) -> Path:
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
    """Train a small tokenizer (`wordpiece`, `bpe` or `unigram`) and save it as a fast tokenizer into `folder`.

    Args:
        kind: Of the tokenizer.
        folder: Where to save it; created.
        changes: Further values of tokenizer_config.json.
    """
    specials = _SPECIALS[kind == "wordpiece"]
    tokenizer = _trained(kind, list(specials.values()))
    first, last = specials["cls"], specials["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {f"{name}_token": token for name, token in specials.items()}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **changes}), encoding="utf-8")
    return folder


# In the order of their ids: those of BERT, and those of the others.
_SPECIALS = {
    True: {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    False: {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
}


def _trained(kind: str, specials: list[str]) -> Tokenizer:
    """Return a tokenizer with a vocabulary from tests/data: training one again breaks its ties at random."""
    found = json.loads(_VOCABULARIES.read_text(encoding="utf-8"))[kind]
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(_numbered([*specials, *found]), unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    elif kind == "bpe":
        merges = [(first, second) for first, second in found["merges"]]
        tokenizer = Tokenizer(models.BPE(_numbered([*specials, *found["pieces"]]), merges))
        tokenizer.pre_tokenizer, tokenizer.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
    else:
        pieces = [*((piece, 0.0) for piece in specials), *((piece, score) for piece, score in found)]
        tokenizer = Tokenizer(models.Unigram(pieces, unk_id=specials.index("<unk>")))
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(specials)
    return tokenizer


def _numbered(pieces: list[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(pieces)}


def reference_encoder(family: Family, folder: Path) -> torch.nn.Module:
    """Load the whole encoder with plain transformers."""
    # Some classes make a pooler only when they are asked for it.
    options = {"add_pooling_layer": True} if family.pooler == "optional" else {}
    model = getattr(transformers, family.model_class).from_pretrained(folder, **options).eval()
    return model if family.inner is None else model.get_submodule(family.inner)


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


def all_model_types() -> list[str]:
    """Return the model types of the table, so that a family without a tiny model fails the tests."""
    return [family.model_type for family in families()]
