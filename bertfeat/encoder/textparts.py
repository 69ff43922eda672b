"""Families that are the text half of a model of images or sound, saved as a model of its own.

transformers saves one so: `CLIPTextModel.from_pretrained("openai/clip-vit-base-patch32").save_pretrained("FOLDER")`.
"""

from __future__ import annotations

from typing import Any

from bertfeat.encoder.family import Family

_FULL: dict[str, Any] = {"path": "equal-length"}
# The last hidden state is that before the norm at the end, as transformers returns it.
_CLIP_LIKE: dict[str, Any] = {**_FULL, "attention": "causal"}
_BERT_LIKE: dict[str, Any] = {"path": "packed", "type_ids": True, "pooler": "optional"}

TEXT_PARTS: tuple[Family, ...] = (
    Family("clip_text_model", "CLIP text", "CLIPTextModel", **_CLIP_LIKE),
    Family("metaclip_2_text_model", "MetaCLIP 2 text", "MetaClip2TextModel", **_CLIP_LIKE),
    Family("clipseg_text_model", "CLIPSeg text", "CLIPSegTextModel", **_CLIP_LIKE),
    Family("owlvit_text_model", "OWL-ViT text", "OwlViTTextModel", **_CLIP_LIKE),
    Family("owlv2_text_model", "OWLv2 text", "Owlv2TextModel", **_CLIP_LIKE),
    Family("xclip_text_model", "X-CLIP text", "XCLIPTextModel", **_CLIP_LIKE),
    Family("groupvit_text_model", "GroupViT text", "GroupViTTextModel", **_CLIP_LIKE),
    Family("siglip_text_model", "SigLIP text", "SiglipTextModel", slow_tokenizer=True, **_FULL),
    Family("siglip2_text_model", "SigLIP 2 text", "Siglip2TextModel", **_FULL),
    Family("tipsv2_text_model", "TIPSv2 text", "Tipsv2TextModel", **_FULL),
    Family("chinese_clip_text_model", "Chinese CLIP text", "ChineseCLIPTextModel", **_BERT_LIKE),
    Family("align_text_model", "ALIGN text", "AlignTextModel", **_BERT_LIKE),
    Family("clap_text_model", "CLAP text", "ClapTextModel", positions="after-padding", **_BERT_LIKE),
    Family(
        "altclip_text_model",
        "AltCLIP text",
        "AltCLIPTextModel",
        inner="roberta",
        positions="after-padding",
        **{**_BERT_LIKE, "pooler": "none"},
    ),
    Family("flava_text_model", "FLAVA text", "FlavaTextModel", type_ids=True, **_FULL),
    Family("blip_text_model", "BLIP text", "BlipTextModel", pooler="optional", **_FULL),
)
