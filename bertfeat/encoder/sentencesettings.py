"""Records of the settings of sentence-transformers modules, and their reader.

A setting that would change a vector in a way that is not supported has no field, or a type that takes only the values
without an effect, so it is refused by name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct

from bertfeat.display import printable
from bertfeat.durable.records import decode
from bertfeat.encoder.sentencemodel import SentenceMode
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
_OTHER_POOLING = "`pooling` mean, max and cls do without it"
_T = TypeVar("_T")
# Arguments of loading that leave the states of a text as they are.
_Arguments = dict[Literal["attn_implementation", "dtype", "padding_side", "torch_dtype", "trust_remote_code"], Any]
_Empty = Annotated[dict[str, Any], Meta(max_length=0)] | None
_Length = Annotated[int, Meta(ge=1, le=_MAX_LENGTH)]
_Modes = Annotated[tuple[SentenceMode, ...], Meta(min_length=1, max_length=len(SentenceMode))]


class _Text(Struct, forbid_unknown_fields=True):
    method: Literal["forward"]
    method_output_name: Literal["last_hidden_state"]


class _Modalities(Struct):
    text: _Text


class _Transformer(Struct, forbid_unknown_fields=True):
    max_seq_length: _Length | None = None
    do_lower_case: bool = False
    unpad_inputs: bool | None = None
    modality_config: _Modalities | None = None
    transformer_task: Literal["feature-extraction"] = "feature-extraction"
    module_output_name: Literal["token_embeddings"] = "token_embeddings"
    model_args: _Arguments = {}
    model_kwargs: _Arguments = {}
    tokenizer_args: _Arguments = {}
    processor_kwargs: _Arguments = {}
    config_args: _Arguments = {}
    config_kwargs: _Arguments = {}
    # Settings of multi-vector models and of inputs.
    processing_kwargs: _Empty = None
    query_length: _Empty = None
    document_length: _Empty = None
    query_expansion: _Empty = None
    tokenizer_name_or_path: None = None


class Pooling(Struct, forbid_unknown_fields=True):
    """Settings of a Pooling: the modes by name, or as flags in the older spelling."""

    embedding_dimension: int | None = None
    word_embedding_dimension: int | None = None
    pooling_mode: SentenceMode | _Modes | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False
    include_prompt: bool = True


class Normalize(Struct, forbid_unknown_fields=True):
    """Settings of a Normalize."""

    module_input_name: Literal["sentence_embedding"] = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] | None = None


class Dense(Normalize, forbid_unknown_fields=True, kw_only=True):
    """Settings of a Dense."""

    in_features: int
    out_features: Annotated[int, Meta(ge=1, le=1_000_000)]
    bias: bool = True
    use_residual: bool = False
    activation_function: str = "torch.nn.Tanh"


def refusal(place: Path, what: str) -> CheckpointError:
    """Return the error of a sentence embedding that cannot be computed as its model asks."""
    return CheckpointError(f"{place}: {what}; {_OTHER_POOLING}")


def read_settings(kind: type[_T], path: Path, root: Path, remedy: str = _OTHER_POOLING) -> _T:
    """Read the settings of a module, or another JSON file of a sentence-transformers folder.

    `remedy` is what to do about a file that is not such a record.

    Raises:
        CheckpointError: The file is missing, outside of `root` or not such a record; the message has the path.
    """
    try:
        return decode(kind, inside(path, root).read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: {printable(f'{error!s:.200}')}; {remedy}") from None


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
        settings = read_settings(_Transformer, path, root)
        if settings.do_lower_case and not _lowers(folder, root):
            raise refusal(path, "do_lower_case is true, but the model's tokenizer keeps capitals")
        length = settings.max_seq_length
    if length is None and os.path.lexists(folder / "tokenizer_config.json"):
        said = read_json(inside(folder / "tokenizer_config.json", root)).get("model_max_length")
        # transformers writes 1e30 where it knows none.
        length = said if type(said) is int and 1 <= said <= _MAX_LENGTH else None
    return length


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
