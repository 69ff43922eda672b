"""Reasons why models of supported families are refused: by a value in their config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

WIDTHS = "its last layer is projected to another width than that of the others"
# The published model has 81 languages; each of them has modules in every block.
_MAX_LANGUAGES = 1_000
# A table for as many positions has a gigabyte.
_MAX_SQUARE = 32_768
_MAX_REPEATS = 1_000


def rope_fault(config: Mapping[str, Any]) -> str | None:
    """Return why a model cannot run: the length is unknown up to which its frequencies stay the same."""
    for key, rope in _long_ropes(config):
        values = [value for value in _original_lengths(config, rope) if value is not None]
        if not values:
            return (
                f"{key} has the type longrope without original_max_position_embeddings, which is not supported: "
                "it depends on the length of the text"
            )
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                return f"original_max_position_embeddings is {value!r:.60}; expected a whole number of 1 or more"
    return None


def rope_length(config: Mapping[str, Any]) -> int | None:
    """Return the tokens up to which the frequencies of a model stay the same; None where they always do.

    With the type longrope, transformers sets them by the longest text of a batch, in a place that threads share: up to
    this length, all texts have the short ones.
    """
    found = [value for _, rope in _long_ropes(config) for value in _original_lengths(config, rope) if value is not None]
    return min(found, default=None)


def _long_ropes(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the settings of the type longrope, which older configs of Phi-3 call su or yarn, with their key."""
    for key in ("rope_parameters", "rope_scaling"):
        values = config.get(key)
        for rope in (values, *values.values()) if isinstance(values, dict) else ():
            if isinstance(rope, dict) and (
                "longrope" in (rope.get("rope_type"), rope.get("type")) or "short_factor" in rope
            ):
                yield key, rope


def _original_lengths(config: Mapping[str, Any], rope: Mapping[str, Any]) -> tuple[Any, Any]:
    name = "original_max_position_embeddings"
    return config.get(name), rope.get(name)


def xmod_fault(config: Mapping[str, Any]) -> str | None:
    """Return why X-MOD cannot run: no language is chosen, or there are far too many."""
    languages, language = config.get("languages", ["en_XX"]), config.get("default_language")
    if not isinstance(languages, list) or not 1 <= len(languages) <= _MAX_LANGUAGES:
        return f"languages must be a list of 1 to {_MAX_LANGUAGES} names"
    if language not in languages:
        return f"default_language is {language!r:.60}; set it to one of {', '.join(map(str, languages))[:200]}"
    return None


def esm_fault(config: Mapping[str, Any]) -> str | None:
    """Return why ESM cannot run: transformers fails on these values, which its config allows."""
    if config.get("is_decoder", False) is None:
        return "is_decoder is null; expected true or false"
    if config.get("token_dropout") and config.get("mask_token_id") is None:
        return "token_dropout is set, and mask_token_id is not"
    return None


def padding_fault(config: Mapping[str, Any]) -> str | None:
    """Return why XLM or M2M100 cannot run: transformers counts the tokens that are not padding."""
    missing = [key for key in ("pad_token_id", "pad_index") if config.get(key, 2) is None]
    return f"{missing[0]} is null; expected a whole number" if missing else None


def flaubert_fault(config: Mapping[str, Any]) -> str | None:
    """Return why FlauBERT cannot run: transformers 5 fails on the norm before attention."""
    if config.get("pre_norm"):
        return "pre_norm is set, and transformers cannot run such a model"
    return padding_fault(config)


def opt_fault(config: Mapping[str, Any]) -> str | None:
    """Return why OPT cannot run: transformers narrows its last hidden state to the width of the word embeddings."""
    width, narrow = config.get("hidden_size"), config.get("word_embed_proj_dim")
    if narrow is None or narrow == width:
        return None
    return f"word_embed_proj_dim is {narrow!r:.60}, hidden_size {width!r:.60}: {WIDTHS}"


def smollm3_fault(config: Mapping[str, Any]) -> str | None:
    """Return why SmolLM3 cannot run: its config contradicts itself on sliding windows, and so do the attentions."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and "sliding_attention" in kinds and not config.get("use_sliding_window"):
        return "layer_types has sliding_attention, but use_sliding_window is not set"
    return None


def square_fault(config: Mapping[str, Any]) -> str | None:
    """Return why an older decoder cannot run: transformers makes tables whose size is the square of the positions."""
    for key in ("n_positions", "max_position_embeddings"):
        value = config.get(key)
        if isinstance(value, int) and value > _MAX_SQUARE:
            return f"{key} is {value}; expected at most {_MAX_SQUARE} in this family"
    return None


def gpt_neo_fault(config: Mapping[str, Any]) -> str | None:
    """Return why GPT-Neo cannot run: each kind of attention is repeated as often as its config says."""
    kinds = config.get("attention_types") or []
    counts = [kind[1] for kind in kinds if isinstance(kind, list) and len(kind) == 2] if isinstance(kinds, list) else []
    if counts and not all(isinstance(count, int) and 0 <= count <= _MAX_REPEATS for count in counts):
        return f"attention_types is {kinds!r:.60}; expected pairs of a list and a number up to {_MAX_REPEATS}"
    return square_fault(config)


def nystromformer_fault(config: Mapping[str, Any]) -> str | None:
    """Return why Nyströmformer cannot run: true landmarks need texts whose length is a multiple of their number."""
    n_means, n_landmarks = config.get("segment_means_seq_len", 64), config.get("num_landmarks", 64)
    if n_means == n_landmarks:
        return None
    return (
        f"num_landmarks is {n_landmarks!r:.60}, segment_means_seq_len {n_means!r:.60}; only equal numbers are supported"
    )
