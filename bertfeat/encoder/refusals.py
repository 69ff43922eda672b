"""Reasons why models of supported families are refused: by a value in their config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WIDTHS = "its last layer is projected to another width than that of the others"
# The published model has 81 languages; each of them has modules in every block.
_MAX_LANGUAGES = 1_000


def rope_fault(config: Mapping[str, Any]) -> str | None:
    """Return why a model cannot run in packs: transformers sets these frequencies by the longest text of a batch."""
    for key in ("rope_parameters", "rope_scaling"):
        values = config.get(key)
        for rope in (values, *values.values()) if isinstance(values, dict) else ():
            if isinstance(rope, dict) and "longrope" in (rope.get("rope_type"), rope.get("type")):
                return f"{key} has the type longrope, which is not supported: it depends on the length of the text"
    return None


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


def nystromformer_fault(config: Mapping[str, Any]) -> str | None:
    """Return why Nyströmformer cannot run: true landmarks need texts whose length is a multiple of their number."""
    n_means, n_landmarks = config.get("segment_means_seq_len", 64), config.get("num_landmarks", 64)
    if n_means == n_landmarks:
        return None
    return (
        f"num_landmarks is {n_landmarks!r:.60}, segment_means_seq_len {n_means!r:.60}; only equal numbers are supported"
    )
