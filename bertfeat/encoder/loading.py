"""Loader of a checked model: the blocks up to the highest layer asked for, from safetensors only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from bertfeat.encoder import attention
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.comparison import Comparison, Way, blocks_of, cut
from bertfeat.encoder.encoder import PackEncoder
from bertfeat.encoder.entry_points import (
    build_config,
    encoder_of,
    model_class_of,
    pooler_options,
    read_kept,
    takes_type_ids,
    write_kept,
)
from bertfeat.encoder.file_digests import weights_digest
from bertfeat.encoder.torch_modules import Lookup, can_pack, keep_float32, pack_linears
from bertfeat.errors import CheckpointError, ConfigError, Shared, checkpoint_errors
from bertfeat.forks import limit_threads


def load_encoder(
    checkpoint: Checkpoint,
    layers: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype = torch.float32,
    with_pooler: bool = False,
    packs_linears: bool = True,
) -> PackEncoder:
    """Build the encoder for some absolute layers and load its weights; blocks above the highest are not built.

    Each layer is that of `output_hidden_states` of the whole model. How packs run is found out by a comparison with
    transformers, once per model, versions, depth, type and device; see `bertfeat.encoder.comparison`. The model's own
    pooler needs the last block, so nothing is cut if it is asked for.

    Raises:
        CheckpointError: Weights are missing or do not fit the config, the files changed since they were checked, or
            the model cannot be run as transformers runs it.
        ConfigError: The model has no pooler, or a layer is out of range.
    """
    limit_threads()
    if not layers or not all(0 <= layer <= checkpoint.n_layers for layer in layers):
        raise ConfigError(f"layers {list(layers)} are not in 0 to {checkpoint.n_layers} of {checkpoint.name}")
    if weights_digest(checkpoint.weights_files) != checkpoint.weights_sha256:
        raise CheckpointError("the weights changed since the run was planned; start it again", place=checkpoint.folder)
    if checkpoint.static is not None:
        return PackEncoder(Lookup(*checkpoint.static.read()).to(device).eval(), "lookup", [0])
    facts = checkpoint.facts
    assert facts is not None
    n_blocks = checkpoint.n_layers if with_pooler else max(1, *layers)
    device = torch.device(device)
    # The comparison runs these weights, and packs longer than a window.
    files = checkpoint.weights_sha256, checkpoint.max_length
    how = *files, compute_dtype, device.type, attention.has_varlen(device), n_blocks, with_pooler
    way = read_kept(Way, checkpoint.config, *how)
    n_loaded = way.n_blocks if way else min(checkpoint.n_layers, n_blocks + 1)
    with no_progress_bars():
        model, blocks = _load(checkpoint, n_loaded, compute_dtype, with_pooler)
    for name in {name for name, _ in model.named_modules()}.intersection(checkpoint.family.unused):
        model.set_submodule(name, nn.Identity())
    _set_types(model, compute_dtype, checkpoint.family.in_float32)
    if compute_dtype is torch.float32 and device.type == "cuda":
        keep_float32(model)
    model = model.to(device).eval().requires_grad_(False)
    own = model.config._attn_implementation

    def make(way: Way, layers: Sequence[int]) -> PackEncoder:
        if way.final_norm is not None:
            model.set_submodule(way.final_norm, nn.Identity())
        attention.switch(model, attention.NAME if way.path == "packed" else own)
        # Weights of the type that they have in the file are mapped into memory from there: packing would copy them.
        is_mapped = checkpoint.is_bfloat16 and compute_dtype is torch.bfloat16
        if packs_linears and can_pack(device, compute_dtype) and not is_mapped:
            pack_linears(model)
        return PackEncoder(
            model,
            way.path,
            sorted(set(layers)),
            n_blocks=n_blocks,
            compute_dtype=compute_dtype,
            with_pooler=with_pooler,
            padding_idx=facts.padding_idx,
            supports_type_ids=takes_type_ids(model),
        )

    if way is None:
        comparison = Comparison(checkpoint, model, n_blocks, with_pooler=with_pooler)
        way = comparison.find(blocks, n_loaded if blocks else checkpoint.n_layers, make)
        write_kept(way, checkpoint.config, *how)
    else:
        cut(model, blocks, way.n_blocks)
    return make(way, layers)


def _load(checkpoint: Checkpoint, n_blocks: int, dtype: torch.dtype, with_pooler: bool) -> tuple[Any, str | None]:
    """Load a model's encoder with its lowest blocks, run by transformers' own attention; return their name as well."""
    config = build_config(checkpoint.folder, checkpoint.config)
    model_class = model_class_of(config)
    blocks: str | None = None

    def build(model: Any, config: Any, **options: Any) -> None:
        nonlocal blocks
        model_class.__init__(model, config, **options)
        # The config keeps its depth, from which some models compute.
        if (blocks := blocks_of(encoder_of(model), checkpoint.n_layers)) is not None:
            cut(encoder_of(model), blocks, n_blocks)

    lower = type(model_class.__name__, (model_class,), {"__init__": build, "__module__": model_class.__module__})
    # Models without the attention interface use their own attention, or torch's fused one if they offer it.
    own = "sdpa" if getattr(model_class, "_supports_sdpa", False) else "eager"
    with checkpoint_errors(checkpoint.folder, "its weights do not load"):
        model, report = lower.from_pretrained(  # type: ignore[attr-defined]
            checkpoint.folder,
            config=config,
            dtype=dtype,
            attn_implementation=own,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            # The report names them, and they are refused below.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **pooler_options(model_class, with_pooler=with_pooler),
        )
    encoder = encoder_of(model)
    if with_pooler and getattr(encoder, "pooler", None) is None:
        raise ConfigError(f"`pooling='pooler'`: {checkpoint.name} has no pooler; use mean, max or cls")
    inner = next(name for name, module in model.named_modules() if module is encoder)
    _check_report(checkpoint, report, inner, with_pooler)
    return encoder, blocks


def _check_report(checkpoint: Checkpoint, report: dict[str, Any], inner: str, with_pooler: bool) -> None:
    unused = tuple(f"{name}." for name in checkpoint.family.unused)
    wrong = [
        f"weight {name!r} has shape {tuple(in_file)}, config.json asks for {tuple(in_model)}"
        for name, in_file, in_model in sorted(report["mismatched_keys"])
        if not name.startswith(unused)
    ]
    inside = (f"{inner}.", "shared.") if inner else ("",)
    missing = sorted(
        name
        for name in report["missing_keys"]
        if (with_pooler if name.startswith("pooler") else name.startswith(inside) and not name.startswith(unused))
    )
    if missing and all(name.startswith("pooler") for name in missing):
        raise CheckpointError(
            "the model has no trained pooler; use `pooling` mean, max or cls", place=checkpoint.folder
        )
    wrong += [f"weight {name!r} is not in the files, and would be random" for name in missing]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise CheckpointError(f"{wrong[0]}{more}", place=checkpoint.folder)


def _set_types(model: nn.Module, dtype: torch.dtype, in_float32: tuple[str, ...]) -> None:
    """Convert weights that a family always creates as float32, and let parts with these last names compute in float32.

    Buffers stay: rotary frequencies lose too much in half precision. So do weights that transformers keeps in float32.
    """
    for parameter in [] if getattr(model, "_keep_in_fp32_modules", None) else model.parameters():
        parameter.data = parameter.data.to(dtype)
    for name, module in model.named_modules():
        if name.endswith(tuple(f".{last}" for last in in_float32)):
            compute = module.forward
            module.forward = lambda states, compute=compute: (compute(states.float())[0].to(states.dtype),)


@Shared
@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switch off transformers' progress bars, and restore them."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()
