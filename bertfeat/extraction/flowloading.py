"""Loader of a flow: the encoder with what its levels need, and the steps of the model's own sentence embedding."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from bertfeat.choices import Level, Pooling
from bertfeat.config import ExtractConfig
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.loading import load_encoder
from bertfeat.encoder.sentencesteps import apply_steps, load_steps
from bertfeat.extraction.flow import Flow
from bertfeat.extraction.pooling import needs_pooler
from bertfeat.extraction.resolution import Resolved
from bertfeat.records import LevelSchema
from bertfeat.text.tokenizer import Tokenizer


def load_flow(
    config: ExtractConfig,
    schemas: Mapping[Level, LevelSchema],
    resolved: Resolved,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    device: torch.device,
) -> Flow:
    """Load an encoder, without the layers above the highest one that a level needs, and return its flow."""
    encoder = load_encoder(
        checkpoint,
        sorted({layer for schema in schemas.values() for column in schema.features for layer in column.layers}),
        device=device,
        compute_dtype=getattr(torch, resolved.compute_dtype),
        with_pooler=needs_pooler(config),
    )
    finish = None
    if config.pooling is Pooling.MODEL and (sentence := checkpoint.sentence_model()) is not None:
        finish = partial(apply_steps, loaded=load_steps(sentence, device))
    return Flow(config, schemas, resolved, tokenizer, encoder, finish)
