"""Loader of a checked model: the blocks up to the highest layer asked for, from safetensors only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from bertfeat.encoder import attention
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.convolutions import keep_float32
from bertfeat.encoder.encoder import PackEncoder
from bertfeat.encoder.filedigests import weights_digest
from bertfeat.encoder.linears import can_pack, pack_linears
from bertfeat.encoder.lookup import Lookup
from bertfeat.encoder.modelconfig import NOT_LOADED
from bertfeat.encoder.staticvectors import StaticVectors
from bertfeat.encoder.weightdraws import draw_weights
from bertfeat.errors import CheckpointError, ConfigError, checkpoint_errors
from bertfeat.forks import limit_threads
from bertfeat.memory import free_memory

# Tied and unused weights make the two counts differ; more than twice as many belong to another model.
_MAX_PARAMETERS_PER_VALUE = 2


def load_encoder(
    checkpoint: Checkpoint,
    layers: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    compute_dtype: torch.dtype = torch.float32,
    with_pooler: bool = False,
) -> PackEncoder:
    """Build the encoder and load its weights, or draw them where the checkpoint has a seed for random ones.

    Each layer is that of `output_hidden_states` of the whole model: where transformers norms the last hidden state
    only, a cut model leaves that norm out.

    Args:
        checkpoint: What `open_checkpoint` found.
        layers: The absolute layers that will be asked for; blocks above the highest are neither built nor run.
        device: The device that computes.
        compute_dtype: float32, bfloat16 or float16.
        with_pooler: Load the model's own pooler as well; it needs the last block, so nothing is cut.

    Raises:
        CheckpointError: Weights are missing or do not fit the config, or the files changed since they were checked.
        ConfigError: The model has no pooler, or a layer is out of range.

    Examples:
        >>> from bertfeat.encoder.checkpoint import open_checkpoint
        >>> encoder = load_encoder(open_checkpoint("minilm"), [1, 2])
        >>> encoder.n_blocks, encoder.layers, encoder.family.path
        (2, (1, 2), 'packed')
    """
    limit_threads()
    _check_request(checkpoint, layers, with_pooler)
    is_random = checkpoint.random_weights is not None
    if not is_random and weights_digest(checkpoint.weights_files) != checkpoint.weights_sha256:
        raise CheckpointError(f"{checkpoint.folder}: the weights changed since the run was planned; start it again")
    if checkpoint.static is not None:
        return _load_static(checkpoint, checkpoint.static, device)
    n_blocks = checkpoint.n_layers if with_pooler else max(1, *layers)
    with no_progress_bars():
        config = _config(checkpoint, n_blocks)
        model = _load(checkpoint, config, compute_dtype, with_pooler)
    dropped = list(checkpoint.family.unused)
    if checkpoint.family.final_norm is not None and n_blocks < checkpoint.n_layers:
        dropped.append(checkpoint.family.final_norm)
    # The last norm is optional in OPT.
    for name in {name for name, _ in model.named_modules()}.intersection(dropped):
        model.set_submodule(name, nn.Identity())
    _unify_dtype(model, compute_dtype)
    _compute_in_float32(model, checkpoint.family.in_float32)
    if compute_dtype is torch.float32 and torch.device(device).type == "cuda":
        keep_float32(model)
    model = model.to(device).eval().requires_grad_(False)
    # Weights of the type that they have in the file are mapped into memory from there: packing would copy them.
    is_mapped = checkpoint.is_bfloat16 and compute_dtype is torch.bfloat16
    if can_pack(torch.device(device), compute_dtype) and not is_mapped:
        pack_linears(model)
    padding_idx = getattr(config, "pad_token_id", None)
    return PackEncoder(
        model,
        checkpoint.family,
        sorted(set(layers)),
        hidden_size=checkpoint.hidden_size,
        n_blocks=n_blocks,
        compute_dtype=compute_dtype,
        with_pooler=with_pooler,
        padding_idx=1 if padding_idx is None else padding_idx,
        supports_type_ids=checkpoint.family.type_ids and getattr(config, "type_vocab_size", 2) >= 2,
    )


def _load_static(checkpoint: Checkpoint, found: StaticVectors, device: torch.device | str) -> PackEncoder:
    return PackEncoder(
        Lookup.of(found).to(device).eval(),
        checkpoint.family,
        [0],
        hidden_size=checkpoint.hidden_size,
        n_blocks=0,
        compute_dtype=torch.float32,
        with_pooler=False,
        padding_idx=0,
        supports_type_ids=False,
    )


def _check_request(checkpoint: Checkpoint, layers: Sequence[int], with_pooler: bool) -> None:
    if not layers or not all(0 <= layer <= checkpoint.n_layers for layer in layers):
        raise ConfigError(f"layers {list(layers)} are not in 0 to {checkpoint.n_layers} of {checkpoint.name}")
    if with_pooler and checkpoint.family.pooler == "none":
        raise ConfigError(f"`pooling='pooler'`: {checkpoint.family.title} has no pooler; use mean, max or cls")


def _config(checkpoint: Checkpoint, n_blocks: int) -> Any:
    """Build the config of the cut model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    plain = {key: value for key, value in checkpoint.config.items() if key not in NOT_LOADED}
    with checkpoint_errors(checkpoint.folder, "config.json does not fit its family"):
        config = CONFIG_MAPPING[checkpoint.family.model_type].from_dict(plain)
        read = config.num_hidden_layers, config.hidden_size, config.vocab_size
        if read != (checkpoint.n_layers, checkpoint.hidden_size, checkpoint.n_ids):
            raise CheckpointError(
                f"{checkpoint.folder}: config.json says {checkpoint.n_layers} blocks of {checkpoint.hidden_size} and "
                f"{checkpoint.n_ids} tokens, transformers reads {read[0]} of {read[1]} and {read[2]}"
            )
        for key, value in checkpoint.family.overrides.items():
            setattr(config, key, value)
        # Every window is run once: keys and values for later tokens are not kept.
        for key in ("use_cache", "use_mems_eval"):
            if hasattr(config, key):
                setattr(config, key, False)
        # ALBERT spreads its groups of shared blocks over the whole depth: fewer blocks would change who shares.
        if getattr(config, "num_hidden_groups", 1) == 1 and not checkpoint.family.whole:
            for key in checkpoint.family.per_layer:
                if isinstance(getattr(config, key, None), (list, tuple)):
                    setattr(config, key, list(getattr(config, key))[:n_blocks])
            config.num_hidden_layers = n_blocks
    return config


def _load(checkpoint: Checkpoint, config: Any, dtype: torch.dtype, with_pooler: bool) -> nn.Module:
    import transformers

    family = checkpoint.family
    model_class = getattr(transformers, family.model_class)
    options: dict[str, Any] = {"add_pooling_layer": with_pooler} if family.pooler == "optional" else {}
    _check_parameter_count(checkpoint, model_class, config, options)
    attention.register()
    # Families without the attention interface use their own attention, or torch's fused one if they offer it.
    own = "sdpa" if getattr(model_class, "_supports_sdpa", False) else "eager"
    with checkpoint_errors(checkpoint.folder, "its weights do not load"):
        is_random = checkpoint.random_weights is not None
        drawn = draw_weights(checkpoint, model_class, config, options) if is_random else None
        model, report = model_class.from_pretrained(
            checkpoint.folder if drawn is None else None,
            state_dict=drawn,
            config=config,
            dtype=dtype,
            attn_implementation=attention.NAME if family.path == "packed" else own,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            # The report names them, and they are refused below.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )
    _check_report(checkpoint, report, with_pooler)
    encoder = model if family.inner is None else model.get_submodule(family.inner)
    assert isinstance(encoder, nn.Module)
    return encoder


def _check_parameter_count(checkpoint: Checkpoint, model_class: Any, config: Any, options: dict[str, Any]) -> None:
    """Refuse a config that asks for far more weights than the files hold, before memory is allocated."""
    with checkpoint_errors(checkpoint.folder, "config.json does not fit its family"), torch.device("meta"):
        model = model_class._from_config(config, **options)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    if checkpoint.n_values is None:
        if (n_bytes := 4 * n_parameters) > (free := free_memory()):
            raise CheckpointError(
                f"{checkpoint.folder}: random weights are drawn in memory as float32, {n_bytes:,} bytes for "
                f"{n_parameters:,} weights, and {free:,} are free; ask for lower layers, or use a larger machine"
            )
    elif n_parameters > _MAX_PARAMETERS_PER_VALUE * checkpoint.n_values:
        raise CheckpointError(
            f"{checkpoint.folder}: config.json asks for {n_parameters} weights, the files hold {checkpoint.n_values}; "
            "they do not belong together"
        )


def _check_report(checkpoint: Checkpoint, report: dict[str, Any], with_pooler: bool) -> None:
    unused = tuple(f"{name}." for name in checkpoint.family.unused)
    mismatched = sorted(found for found in report["mismatched_keys"] if not found[0].startswith(unused))
    if mismatched:
        name, in_file, in_model = mismatched[0]
        raise CheckpointError(
            f"{checkpoint.folder}: weight {name!r} has shape {tuple(in_file)}, config.json asks for {tuple(in_model)}"
            f"{_more(mismatched)}"
        )
    missing = sorted(key for key in report["missing_keys"] if _is_needed(checkpoint, key, with_pooler))
    if not missing:
        return
    if all(key.startswith("pooler") for key in missing):
        raise CheckpointError(f"{checkpoint.folder}: the model has no trained pooler; use `pooling` mean, max or cls")
    raise CheckpointError(
        f"{checkpoint.folder}: weight {missing[0]!r} is not in the files{_more(missing)}; it would be random"
    )


def _is_needed(checkpoint: Checkpoint, key: str, with_pooler: bool) -> bool:
    if key.startswith("pooler"):
        return with_pooler
    if key.startswith(tuple(f"{name}." for name in checkpoint.family.unused)):
        return False
    return checkpoint.family.inner is None or key.startswith((f"{checkpoint.family.inner}.", "shared."))


def _more(names: Sequence[object]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _unify_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert weights that a family always creates as float32 (XLNet, DeBERTa).

    Buffers stay: rotary frequencies lose too much in half precision. So do weights that transformers keeps in float32.
    """
    if getattr(model, "_keep_in_fp32_modules", None):
        return
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def _compute_in_float32(model: nn.Module, names: tuple[str, ...]) -> None:
    """Make the parts with these last names compute in float32, and return states of the type they were given."""
    for name, module in model.named_modules():
        if name.endswith(tuple(f".{last}" for last in names)):
            compute = module.forward
            module.forward = lambda states, compute=compute: (compute(states.float())[0].to(states.dtype),)


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
