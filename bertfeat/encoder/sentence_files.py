"""Reader of the files in which a sentence-transformers folder describes its embedding and its prompts.

Nothing is imported or run from what the files name: modules and activations are matched against short lists, and any
other is refused by name. A setting that would change a vector in a way that is not supported has no field in the
records here, or a type that takes only the values without an effect, so it is refused by name too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct, field

from bertfeat.display import printable
from bertfeat.durable.records import decode
from bertfeat.encoder.file_digests import weights_digest
from bertfeat.encoder.sentence_model import DenseStep, NormalizeStep, Prompts, SentenceMode, SentenceModel
from bertfeat.encoder.weights import MAX_TOKENIZER_BYTES, SINGLE, inside, read_header, read_json, read_tokenizer_config
from bertfeat.errors import CheckpointError

# In the order in which sentence-transformers looks for them.
TRANSFORMER_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
SAVE_AGAIN = (
    'if you trust it, save the model again: python -c "from sentence_transformers import '
    "SentenceTransformer; SentenceTransformer('FOLDER').save_pretrained('NEW')\""
)
_MAX_LENGTH = 10_000_000
_OTHER_POOLING = "`pooling` mean, max and cls do without it"
_T = TypeVar("_T")
# Arguments of loading that leave the states of a text as they are.
_Arguments = dict[Literal["attn_implementation", "dtype", "padding_side", "torch_dtype", "trust_remote_code"], Any]
# The states of a text are the last hidden states of a forward pass; a chat message has a format too.
_States = dict[
    Literal["method", "method_output_name", "format"],
    Literal["forward", "last_hidden_state", "auto", "flat", "structured"],
]
_Modes = Annotated[tuple[SentenceMode, ...], Meta(min_length=1, max_length=len(SentenceMode))]
# Classes of torch.nn that need no argument and treat each value alone; the files name no more than the class.
ACTIVATIONS = (
    *("ELU", "GELU", "Identity", "LeakyReLU", "LogSigmoid", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid"),
    *("Softplus", "Softsign", "Tanh"),
)
_KNOWN = ("Transformer", "Pooling", "Dense", "Normalize")
_FLOATS = ("F16", "BF16", "F32", "F64")
_PROMPTS = "config_sentence_transformers.json"


class _Module(Struct):
    type: str
    path: str


class _Settings(Struct):
    """The content of config_sentence_transformers.json, as far as it matters here."""

    model_type: str = "SentenceTransformer"
    # sentence-transformers reads null as an empty prompt.
    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None


class _Transformer(Struct, forbid_unknown_fields=True):
    max_seq_length: Annotated[int, Meta(ge=1, le=_MAX_LENGTH)] | None = None
    do_lower_case: bool = False
    unpad_inputs: bool | None = None
    modality_config: dict[Literal["text", "message"], _States] = {}
    transformer_task: Literal["feature-extraction"] = "feature-extraction"
    module_output_name: Literal["token_embeddings"] = "token_embeddings"
    model_args: _Arguments = {}
    model_kwargs: _Arguments = {}
    tokenizer_args: _Arguments = {}
    processor_kwargs: _Arguments = {}
    config_args: _Arguments = {}
    config_kwargs: _Arguments = {}


class _Pooling(Struct, forbid_unknown_fields=True):
    """Settings of a Pooling: the modes by name, or as a flag for each mode in the older spelling."""

    embedding_dimension: int | None = None
    word_embedding_dimension: int | None = None
    pooling_mode: SentenceMode | _Modes | None = None
    cls: bool = field(name="pooling_mode_cls_token", default=False)
    max: bool = field(name="pooling_mode_max_tokens", default=False)
    mean: bool = field(name="pooling_mode_mean_tokens", default=False)
    mean_sqrt_len_tokens: bool = field(name="pooling_mode_mean_sqrt_len_tokens", default=False)
    weightedmean: bool = field(name="pooling_mode_weightedmean_tokens", default=False)
    lasttoken: bool = field(name="pooling_mode_lasttoken", default=False)
    include_prompt: bool = True


class _Normalize(Struct, forbid_unknown_fields=True):
    module_input_name: Literal["sentence_embedding"] = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] | None = None


class _Dense(_Normalize, forbid_unknown_fields=True, kw_only=True):
    in_features: int
    out_features: Annotated[int, Meta(ge=1, le=1_000_000)]
    bias: bool = True
    use_residual: bool = False
    activation_function: str = "torch.nn.Tanh"


def read_sentence_model(folder: Path, hidden_size: int) -> SentenceModel | None:
    """Read how a model with states of `hidden_size` makes its sentence embedding; None without modules.json.

    Raises:
        CheckpointError: A file is missing, unsafe or malformed, sizes do not fit, or a module is not supported.
    """
    path = folder / "modules.json"
    if not os.path.lexists(path):
        return None
    if (kind := _settings(folder).model_type) != "SentenceTransformer":
        raise _refusal(folder / _PROMPTS, f"model_type is {kind!r:.60}, not SentenceTransformer")
    modules = _read(tuple[_Module, ...], folder, path.name)
    kinds = [_kind(path, module.type) for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or "Transformer" in kinds[1:] or "Pooling" in kinds[2:]:
        said = ", ".join(kinds) or "none"
        raise _refusal(path, f"the modules are {said:.200}, not one Transformer, one Pooling, then others")
    if modules[0].path not in ("", "."):
        raise _refusal(
            path, f"the Transformer lies in the folder {modules[0].path!r:.60}, not beside this file; {SAVE_AGAIN}"
        )
    modes, include_prompt = _pooling(folder, Path(modules[1].path), hidden_size)
    width, steps = len(modes) * hidden_size, list[DenseStep | NormalizeStep]()
    for kind, module in zip(kinds[2:], modules[2:], strict=True):
        place = Path(module.path)
        if kind == "Dense":
            steps.append(dense := _dense(folder, place, width))
            width = dense.out_features
        else:
            # Older models have no folder for it.
            if os.path.lexists(folder / place / "config.json"):
                _read(_Normalize, folder, place / "config.json")
            steps.append(NormalizeStep())
    return SentenceModel(modes, include_prompt, tuple(steps), _max_length(folder))


def read_prompts(folder: Path) -> Prompts:
    """Read the prompts of a model; none without config_sentence_transformers.json.

    Raises:
        CheckpointError: The file is unsafe or malformed.
    """
    settings = _settings(folder)
    default = settings.default_prompt_name
    texts = {name: text or "" for name, text in (settings.prompts or {}).items()}
    if default is not None and default not in {*texts, "query", "document"}:
        raise CheckpointError(
            f"{folder / _PROMPTS}: no prompt has the default_prompt_name {default!r:.60}; correct the file"
        )
    return Prompts(texts, default if default in texts else None)


def _settings(folder: Path) -> _Settings:
    is_there = os.path.lexists(folder / _PROMPTS)
    return _read(_Settings, folder, _PROMPTS, "correct the file") if is_there else _Settings()


def _kind(path: Path, name: str) -> str:
    kind = name.rpartition(".")[2]
    if not name.startswith("sentence_transformers.") or kind not in _KNOWN:
        raise _refusal(
            path, f"module type {name!r:.80} is not supported (those of sentence-transformers: {', '.join(_KNOWN)})"
        )
    return kind


def _pooling(folder: Path, place: Path, hidden_size: int) -> tuple[tuple[SentenceMode, ...], bool]:
    said = _read(_Pooling, folder, place / "config.json")
    width = said.word_embedding_dimension if said.embedding_dimension is None else said.embedding_dimension
    if width != hidden_size:
        path = folder / place / "config.json"
        raise _refusal(path, f"it pools vectors of {width} values, and the model's have {hidden_size}")
    modes = said.pooling_mode or tuple(mode for mode in SentenceMode if getattr(said, mode)) or SentenceMode.MEAN
    return (modes,) if isinstance(modes, SentenceMode) else modes, said.include_prompt


def _dense(folder: Path, place: Path, width: int) -> DenseStep:
    path = folder / place / "config.json"
    said = _read(_Dense, folder, place / "config.json")
    if said.in_features != width:
        raise _refusal(path, f"a dense layer of {said.in_features} values does not fit vectors of {width}")
    module, _, activation = said.activation_function.rpartition(".")
    if not module.startswith("torch.nn") or activation not in ACTIVATIONS:
        names = f"known are torch.nn's {', '.join(ACTIVATIONS)}"
        raise _refusal(path, f"activation_function is {said.activation_function!r:.80}; {names}")
    if not os.path.lexists(folder / place / SINGLE):
        raise _refusal(folder / place, f"no {SINGLE} in it; for pickle weights, run: bertfeat convert MODEL -o FOLDER")
    file = inside(folder, place / SINGLE)
    step = DenseStep(
        file=file,
        in_features=width,
        out_features=said.out_features,
        has_bias=said.bias,
        has_residual=said.use_residual,
        activation=activation,
        sha256=weights_digest([file]),
    )
    shapes = {name: shape if kind in _FLOATS else kind for name, (kind, shape) in sorted(read_header(file).items())}
    if shapes != step.arrays():
        raise _refusal(folder / place / SINGLE, f"holds {shapes!s:.200}, not {step.arrays()}")
    return step


def _max_length(folder: Path) -> int | None:
    """Return the tokens per text that a model was tuned on, special tokens included, or None where no file says it.

    As in sentence-transformers, `max_seq_length` counts before the tokenizer's `model_max_length`.
    """
    name = next((name for name in TRANSFORMER_SETTINGS if os.path.lexists(folder / name)), None)
    settings = _Transformer() if name is None else _read(_Transformer, folder, name)
    if name is not None and settings.do_lower_case and not _lowers(folder):
        raise _refusal(folder / name, "do_lower_case is true, but the model's tokenizer keeps capitals")
    said = settings.max_seq_length or read_tokenizer_config(folder).get("model_max_length")
    # transformers writes 1e30 where it knows none.
    return said if type(said) is int and 1 <= said <= _MAX_LENGTH else None


def _lowers(folder: Path) -> bool:
    """Return whether the tokenizer turns capitals into small letters by itself."""
    if not os.path.lexists(folder / "tokenizer.json"):
        return (folder / "vocab.txt").exists() and read_tokenizer_config(folder).get("do_lower_case", True) is True
    # Of the normalizer alone, or of one of a sequence.
    settings = json.dumps(read_json(inside(folder, "tokenizer.json"), MAX_TOKENIZER_BYTES).get("normalizer"))
    return '"type": "Lowercase"' in settings or '"lowercase": true' in settings


def _refusal(place: Path, what: str) -> CheckpointError:
    """Return the error of a sentence embedding that cannot be computed as its model asks."""
    return CheckpointError(f"{printable(str(place))}: {what}; {_OTHER_POOLING}")


def _read(kind: type[_T], folder: Path, name: str | Path, remedy: str = _OTHER_POOLING) -> _T:
    """Read a JSON file of the folder as a record; `remedy` is what to do about a file that is not such a record."""
    try:
        return decode(kind, inside(folder, name).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / name}: {printable(f'{error!s:.200}')}; {remedy}") from None
