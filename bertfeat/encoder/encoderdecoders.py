"""Families of encoder-decoders, of which the encoder is run: nothing is generated."""

from __future__ import annotations

from typing import Any

from bertfeat.encoder.family import Family
from bertfeat.encoder.refusals import padding_fault

_ENCODER_ONLY = "encoder only"
_NORMED = "the last layer alone is normed"
_UNLIMITED = "relative positions without a limit: 512 tokens unless the tokenizer says less or more"
_PLAIN: dict[str, Any] = {"path": "equal-length"}
_T5_LIKE: dict[str, Any] = {
    **_PLAIN,
    "layers_key": ("num_layers", "num_hidden_layers"),
    "hidden_key": ("d_model", "hidden_size"),
    "positions_key": (),
    "positions": "unlimited",
    "inner": "encoder",
    "final_norm": "final_layer_norm",
    "attention": "full, relative",
    "note": f"{_ENCODER_ONLY}; {_UNLIMITED}",
}
_BART_LIKE: dict[str, Any] = {
    **_PLAIN,
    "layers_key": ("encoder_layers", "num_hidden_layers"),
    "hidden_key": ("d_model", "hidden_size"),
    "inner": "encoder",
    # The decoder is never run: one without blocks costs next to nothing.
    "overrides": {"decoder_layers": 0},
}
_MBART_LIKE: dict[str, Any] = {**_BART_LIKE, "final_norm": "layer_norm", "note": f"{_ENCODER_ONLY}; {_NORMED}"}

ENCODER_DECODERS: tuple[Family, ...] = (
    Family("t5", "T5", "T5EncoderModel", **_T5_LIKE),
    Family("mt5", "mT5", "MT5EncoderModel", **_T5_LIKE),
    Family("umt5", "UMT5", "UMT5EncoderModel", **_T5_LIKE),
    Family("longt5", "LongT5", "LongT5EncoderModel", **{**_T5_LIKE, "attention": "sliding, relative"}),
    Family("switch_transformers", "Switch Transformers", "SwitchTransformersEncoderModel", **_T5_LIKE),
    Family("bart", "BART", "BartModel", note=_ENCODER_ONLY, **_BART_LIKE),
    Family("mbart", "mBART", "MBartModel", **_MBART_LIKE),
    Family("m2m_100", "M2M100 and NLLB", "M2M100Model", fault=padding_fault, **_MBART_LIKE),
    Family("pegasus", "PEGASUS", "PegasusModel", **_MBART_LIKE),
    Family("blenderbot", "BlenderBot", "BlenderbotModel", **_MBART_LIKE),
    Family(
        "blenderbot-small",
        "BlenderBot small",
        "BlenderbotSmallModel",
        slow_tokenizer=True,
        note=_ENCODER_ONLY,
        **_BART_LIKE,
    ),
    Family("marian", "Marian (Opus-MT)", "MarianModel", slow_tokenizer=True, note=_ENCODER_ONLY, **_BART_LIKE),
    Family("plbart", "PLBART", "PLBartModel", slow_tokenizer=True, note=_ENCODER_ONLY, **_BART_LIKE),
    Family("mvp", "MVP", "MvpModel", note=_ENCODER_ONLY, **_BART_LIKE),
    Family(
        "led",
        "LED",
        "LEDModel",
        positions_key=("max_encoder_position_embeddings",),
        per_layer=("attention_window",),
        attention="sliding",
        note=f"{_ENCODER_ONLY}; no token is given global attention",
        **_BART_LIKE,
    ),
    Family(
        "bigbird_pegasus",
        "BigBird-PEGASUS",
        "BigBirdPegasusModel",
        final_norm="layernorm_embedding",
        note=f"{_ENCODER_ONLY}; {_NORMED}; full attention at every length",
        **{**_BART_LIKE, "overrides": {"decoder_layers": 0, "attention_type": "original_full"}},
    ),
    Family(
        "nllb-moe",
        "NLLB-MoE",
        "NllbMoeModel",
        # With another share, the tokens that an expert takes would depend on the other texts of a batch.
        **{**_MBART_LIKE, "overrides": {"decoder_layers": 0, "moe_eval_capacity_token_fraction": 1.0}},
    ),
)
