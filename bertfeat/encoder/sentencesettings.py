"""Reader of the settings of a sentence-transformers module, each key and type known; those of its Transformer first.

A setting that would change a vector in a way that is not supported is refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfeat.encoder.weights import inside, read_json
from bertfeat.errors import CheckpointError

# In the order in which sentence-transformers looks for them.
TRANSFORMER_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# transformers reads a tokenizer's files whole, several times. A vocabulary of half a million takes 64 MB.
MAX_TOKENIZER_BYTES = 64_000_000
SAVE_AGAIN = (
    'if you trust it, save the model again: python -c "from sentence_transformers import '
    "SentenceTransformer; SentenceTransformer('FOLDER').save_pretrained('NEW')\""
)
_MAX_LENGTH = 10_000_000
_NONE = type(None)
_ARGUMENTS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
_TRANSFORMER: Mapping[str, tuple[type, ...]] = {
    "max_seq_length": (int, _NONE),
    "do_lower_case": (bool,),
    "unpad_inputs": (bool, _NONE),
    "modality_config": (dict,),
    **dict.fromkeys(("transformer_task", "module_output_name"), (str,)),
    **dict.fromkeys(_ARGUMENTS, (dict,)),
    # Settings of multi-vector models and of inputs; only their empty values are taken.
    **dict.fromkeys(("processing_kwargs", "query_length", "document_length", "query_expansion"), (dict, _NONE)),
    "tokenizer_name_or_path": (_NONE,),
}
_FIXED: Mapping[str, object] = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
# Arguments of loading that leave the states of a text as they are.
_HARMLESS = {"attn_implementation", "dtype", "padding_side", "torch_dtype", "trust_remote_code"}


def refusal(place: Path, what: str) -> CheckpointError:
    """Return the error of a sentence embedding that cannot be computed as its model asks."""
    return CheckpointError(f"{place}: {what}; `pooling` mean, max and cls do without it")


def read_settings(path: Path, root: Path, kinds: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """Read a JSON object whose keys and the types of whose values are known.

    Raises:
        CheckpointError: The file is missing, outside of `root` or not such an object; the message names the key.
    """
    settings = read_json(inside(path, root))
    for key, value in settings.items():
        if key not in kinds:
            raise refusal(path, f"unknown setting {key!r:.60}")
        # Not isinstance: bool is a subclass of int.
        if type(value) not in kinds[key]:
            raise refusal(path, f"{key} is {value!r:.60}, which is not supported")
    return settings


def read_max_length(folder: Path, root: Path) -> int | None:
    """Return the tokens per text that a model was tuned on, special tokens included, or None where no file says it.

    As in sentence-transformers, `max_seq_length` counts before the tokenizer's `model_max_length`.

    Raises:
        CheckpointError: The Transformer of the folder has a setting that changes its states.
    """
    names = [name for name in TRANSFORMER_SETTINGS if os.path.lexists(folder / name)]
    length = None
    if names:
        path = folder / names[0]
        settings = read_settings(path, root, _TRANSFORMER)
        _check_transformer(path, settings)
        if settings.get("do_lower_case") and not _lowers(folder, root):
            raise refusal(path, "do_lower_case is true, but the model's tokenizer keeps capitals")
        length = settings.get("max_seq_length")
        if length is not None and not 1 <= length <= _MAX_LENGTH:
            raise refusal(path, f"max_seq_length is {length!r:.60}")
    if length is None and os.path.lexists(folder / "tokenizer_config.json"):
        said = read_json(inside(folder / "tokenizer_config.json", root)).get("model_max_length")
        # transformers writes 1e30 where it knows none.
        length = said if type(said) is int and 1 <= said <= _MAX_LENGTH else None
    return length


def _check_transformer(path: Path, settings: Mapping[str, Any]) -> None:
    wrong = [key for key, value in _FIXED.items() if settings.get(key, value) != value]
    wrong += [
        key for key in ("processing_kwargs", "query_length", "document_length", "query_expansion") if settings.get(key)
    ]
    wrong += [key for key in _ARGUMENTS if set(settings.get(key, ())) - _HARMLESS]
    if settings.get("modality_config", {"text": _TEXT}).get("text") != _TEXT:
        wrong.append("modality_config")
    if wrong:
        raise refusal(path, f"{wrong[0]} is {settings[wrong[0]]!r:.80}, which is not supported")


def _lowers(folder: Path, root: Path) -> bool:
    """Return whether the tokenizer turns capitals into small letters by itself."""
    path = folder / "tokenizer.json"
    if os.path.lexists(path):
        return _lowering(read_json(inside(path, root), MAX_TOKENIZER_BYTES).get("normalizer"))
    path = folder / "tokenizer_config.json"
    said = read_json(inside(path, root)) if os.path.lexists(path) else {}
    return (folder / "vocab.txt").exists() and said.get("do_lower_case", True) is True


def _lowering(normalizer: object) -> bool:
    if not isinstance(normalizer, dict):
        return False
    steps = normalizer.get("normalizers")
    if normalizer.get("type") == "Sequence" and isinstance(steps, list):
        return any(_lowering(step) for step in steps)
    return normalizer.get("type") == "Lowercase" or (
        normalizer.get("type") == "BertNormalizer" and normalizer.get("lowercase") is True
    )
