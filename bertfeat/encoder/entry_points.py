"""Facts of a model that transformers knows: its class, sizes and limits, found out once per config.

The class comes from transformers' own mappings, the sizes from the attributes of its config, the rest from the model
built without memory. The result is kept in the user's cache, so that a model that was seen before is opened without
torch and transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from bertfeat._version import __version__
from bertfeat.durable.records import decode, encode, hash_of_json
from bertfeat.durable.user_cache import read_cached, write_cached
from bertfeat.encoder.families import FAMILIES, NOT_LOADED, config_digest, family_of
from bertfeat.errors import CheckpointError, checkpoint_errors

_T = TypeVar("_T")
_MAX_LAYERS = 1_000
_MAX_SIZE = 1 << 24


@dataclass(frozen=True, slots=True)
class Facts:
    """What transformers tells of a model without its weights; `model_class` holds the encoder.

    `n_ids` are the rows of the embedding matrix. `n_positions` is None if positions are relative, without a limit.
    `padding_idx` is the padding token after whose number positions start, as in RoBERTa; None if they start at 0.
    """

    model_class: str
    n_layers: int
    hidden_size: int
    n_ids: int
    n_positions: int | None
    padding_idx: int | None
    n_parameters: int


def find_facts(folder: Path, content: Mapping[str, Any]) -> Facts:
    """Return the facts of the model whose config.json has this content; the folder is for messages.

    Raises:
        CheckpointError: transformers does not know the type, it is not a model of text, or a value cannot be used.
    """
    found = read_kept(Facts, content)
    if found is None:
        found = _find(folder, content)
        write_kept(found, content)
    return found


def read_kept(kind: type[_T], content: Mapping[str, Any], *how: object) -> _T | None:
    """Return what is kept of a model's config and the versions here, computed in some way; None if nothing is."""
    try:
        return decode(kind, read_cached(_kept_name(kind, content, how)) or b"")
    except ValueError:
        return None


def write_kept(record: object, content: Mapping[str, Any], *how: object) -> None:
    """Keep a record for `read_kept`."""
    write_cached(_kept_name(type(record), content, how), encode(record))


def _kept_name(kind: type, content: Mapping[str, Any], how: tuple[object, ...]) -> str:
    versions = [__version__, *map(metadata.version, ("transformers", "torch"))]
    key = [config_digest(content), str(family_of(content["model_type"])), *versions, *map(str, how)]
    return f"models/{kind.__name__.lower()}-{hash_of_json(key)}.json"


def build_config(folder: Path, content: Mapping[str, Any]) -> Any:
    """Return the config of transformers for this config.json, with the values that bertfeat sets.

    Raises:
        CheckpointError: transformers does not know the type, or a value does not fit it.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = content["model_type"]
    if model_type not in CONFIG_MAPPING:
        version = metadata.version("transformers")
        raise CheckpointError(f"transformers {version} has no model type {model_type!r:.60}", place=folder)
    plain = {key: value for key, value in content.items() if key not in NOT_LOADED}
    with checkpoint_errors(folder / "config.json", "it does not fit its family"):
        config = CONFIG_MAPPING[model_type].from_dict(plain)
        # Every window is run once: keys and values for later tokens are not kept.
        values = {"use_cache": False, "use_mems_eval": False, **family_of(model_type).overrides}
        if getattr(config, "is_encoder_decoder", False):
            # Decoders are never run: one without blocks costs next to nothing.
            values |= {"decoder_layers": 0, "num_decoder_layers": 0}
        for key in filter(partial(hasattr, config), values):
            setattr(config, key, values[key])
    return config


def model_class_of(config: Any) -> Any:
    """Return the class of transformers for a config: of an encoder-decoder, that of the encoder if there is one.

    Models that are part of others are in no mapping; their class is named like their config.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    stem = type(config).__name__.removesuffix("Config")
    names = [modeling_auto.MODEL_MAPPING_NAMES.get(config.model_type), f"{stem}Model"]
    if getattr(config, "is_encoder_decoder", False):
        encoders = modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES
        names = [encoders.get(config.model_type), f"{stem}EncoderModel", *names]
    # Some have a class for each task in the mapping, the plain one first.
    names = [name[0] if isinstance(name, (list, tuple)) else name for name in names if name]
    return next((found for name in names if (found := getattr(transformers, name, None)) is not None), None)


def types_of_text() -> dict[str, str]:
    """Return the model types of text in the mappings of transformers, sorted, each with the name of its class.

    They have a model for words, next words or classes of texts, or an encoder of texts alone; or they are the text part
    of another model, by their name. What they need besides text shows only when one is built.
    """
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    words = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "TEXT_ENCODING")
    tasks = (*words, "SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION", "QUESTION_ANSWERING")
    of_text = {kind for task in tasks for kind in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")}
    of_text |= {family.model_type for family in FAMILIES}
    of_images = {*modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, *modeling_auto.MODEL_FOR_IMAGE_MAPPING_NAMES}
    known, found = set(dir(transformers)), {}
    for kind, config_class in sorted(CONFIG_MAPPING_NAMES.items()):
        mapped = modeling_auto.MODEL_MAPPING_NAMES.get(kind, config_class.replace("Config", "Model"))
        name = mapped if isinstance(mapped, str) else mapped[0]
        if name in known and kind not in of_images and (kind in of_text or kind.endswith(("_text", "_text_model"))):
            found[kind] = name
    return found


def encoder_of(model: Any) -> Any:
    """Return the encoder of an encoder-decoder, and any other model itself."""
    return model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model


def pooler_options(model_class: Any, *, with_pooler: bool) -> dict[str, bool]:
    """Return the arguments with which a class makes its pooler, or makes none."""
    takes = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": with_pooler} if takes else {}


def takes_type_ids(encoder: Any) -> bool:
    """Return whether a model takes `token_type_ids` of two types or more."""
    config = encoder.config
    takes = "token_type_ids" in inspect.signature(encoder.forward).parameters
    return takes and (family_of(config.model_type).type_ids or (getattr(config, "type_vocab_size", None) or 0) >= 2)


def _find(folder: Path, content: Mapping[str, Any]) -> Facts:
    import torch

    family = family_of(content["model_type"])
    if family.refusal:
        raise CheckpointError(f"model type {family.model_type!r} is not run: {family.refusal}", place=folder)
    config = build_config(folder, content)
    inner = getattr(config, "text_config", None)
    if inner is not None:
        raise CheckpointError(
            f"model type {family.model_type!r} reads images, sound or other data besides text; save its text "
            f"model alone, of the type {getattr(inner, 'model_type', None)!r}",
            place=folder,
        )
    model_class = model_class_of(config)
    if model_class is None or "input_ids" not in inspect.signature(model_class.forward).parameters:
        raise CheckpointError(f"model type {family.model_type!r} is not a model of text", place=folder)
    n_layers = _size(folder, config, "num_hidden_layers", _MAX_LAYERS)
    hidden_size, n_ids = (_size(folder, config, name) for name in ("hidden_size", "vocab_size"))
    with checkpoint_errors(folder / "config.json", "it does not fit its family"), torch.device("meta"):
        model = model_class._from_config(config, **pooler_options(model_class, with_pooler=False))
    # A table of positions has a padding token only where positions are counted from it.
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    found = (getattr(table, "padding_idx", None) for table in tables)
    padding_idx = next((number for number in found if isinstance(number, int)), None)
    n_before = 0 if padding_idx is None else padding_idx + 1
    # MPT has another name for it, and XLNet's config has -1 here.
    positions = "max_position_embeddings" if hasattr(config, "max_position_embeddings") else "max_seq_len"
    is_limited = getattr(config, positions, None) not in (None, -1)
    return Facts(
        model_class=model_class.__name__,
        n_layers=n_layers,
        hidden_size=hidden_size,
        n_ids=n_ids,
        n_positions=_size(folder, config, positions, n_left_out=n_before) if is_limited else None,
        padding_idx=padding_idx,
        n_parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def _size(folder: Path, config: Any, name: str, most: int = _MAX_SIZE, *, n_left_out: int = 0) -> int:
    value = getattr(config, name, None)
    if isinstance(value, bool) or not isinstance(value, int) or not n_left_out < value <= most:
        wanted = f"expected a whole number from {n_left_out + 1} to {most}"
        raise CheckpointError(f"{name} is {value!r:.60}; {wanted}", place=folder / "config.json")
    return value - n_left_out
