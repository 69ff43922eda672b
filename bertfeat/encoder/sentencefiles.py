"""Reader of the files in which a sentence-transformers folder describes its embedding and its prompts.

Nothing is imported or run from what the files name: modules and activations are matched against short lists, and any
other is refused by name.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from msgspec import Struct

from bertfeat.encoder.filedigests import weights_digest
from bertfeat.encoder.sentencemodel import DenseStep, NormalizeStep, Prompts, SentenceMode, SentenceModel
from bertfeat.encoder.sentencesettings import (
    SAVE_AGAIN,
    Dense,
    Normalize,
    Pooling,
    read_max_length,
    read_settings,
    refusal,
)
from bertfeat.encoder.weights import SINGLE, inside, read_header
from bertfeat.errors import CheckpointError

# Classes of torch.nn that need no argument and treat each value alone; the files name no more than the class.
_ACTIVATIONS = (
    *("ELU", "GELU", "LeakyReLU", "LogSigmoid", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus"),
    *("Softsign", "Tanh"),
)
# The class of torch.nn by the names that a file may give it.
ACTIVATIONS = {
    **{f"{module}.{name}": name for name in _ACTIVATIONS for module in ("torch.nn", "torch.nn.modules.activation")},
    **{f"{module}.Identity": "Identity" for module in ("torch.nn", "torch.nn.modules.linear")},
}
_KNOWN = ("Transformer", "Pooling", "Dense", "Normalize")
_MAX_MODULES = 32
_FLOATS = ("F16", "BF16", "F32", "F64")


class _Module(Struct):
    type: str
    path: str
    idx: int | None = None
    name: str | None = None


class _Settings(Struct):
    """The content of config_sentence_transformers.json, as far as it matters here."""

    model_type: str = "SentenceTransformer"
    # sentence-transformers reads null as an empty prompt.
    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None


def read_sentence_model(folder: Path, root: Path, hidden_size: int) -> SentenceModel | None:
    """Read how a model makes its sentence embedding; None for a folder without modules.json.

    Args:
        folder: The model folder, resolved.
        root: The folder that every file must lie in once links are followed.
        hidden_size: The width of the model's states.

    Raises:
        CheckpointError: A file is missing, unsafe or malformed, sizes do not fit, or a module is not supported.
    """
    path = folder / "modules.json"
    if not os.path.lexists(path):
        return None
    if (kind := _settings(folder, root).model_type) != "SentenceTransformer":
        raise refusal(
            folder / "config_sentence_transformers.json", f"model_type is {kind!r:.60}, not SentenceTransformer"
        )
    modules = _modules(path, read_settings(tuple[_Module, ...], path, root))
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or "Transformer" in kinds[1:] or "Pooling" in kinds[2:]:
        raise refusal(
            path, f"the modules are {', '.join(kinds) or 'none'}, not one Transformer, one Pooling, then others"
        )
    if modules[0][1]:
        raise refusal(
            path, f"the Transformer lies in the folder {modules[0][1]!r:.60}, not beside this file; {SAVE_AGAIN}"
        )
    modes, include_prompt = _pooling(folder / modules[1][1] / "config.json", root, hidden_size)
    width, steps = len(modes) * hidden_size, list[DenseStep | NormalizeStep]()
    for kind, place in modules[2:]:
        if kind == "Dense":
            steps.append(dense := _dense(folder, place, root, width))
            width = dense.out_features
        else:
            steps.append(_normalize(folder / place / "config.json", root))
    return SentenceModel(modes, include_prompt, tuple(steps), read_max_length(folder, root))


def read_prompts(folder: Path, root: Path) -> Prompts:
    """Read the prompts of a model; none without config_sentence_transformers.json.

    Args:
        folder: The model folder, resolved.
        root: The folder that every file must lie in once links are followed.

    Raises:
        CheckpointError: The file is unsafe or malformed.
    """
    settings, path = _settings(folder, root), folder / "config_sentence_transformers.json"
    default = settings.default_prompt_name
    texts = {name: text or "" for name, text in (settings.prompts or {}).items()}
    if default is not None and default not in {*texts, "query", "document"}:
        raise CheckpointError(
            f"{path}: default_prompt_name is {default!r:.60}, which names none of the prompts; correct the file"
        )
    return Prompts(texts, default if default in texts else None)


def _settings(folder: Path, root: Path) -> _Settings:
    path = folder / "config_sentence_transformers.json"
    return read_settings(_Settings, path, root, "correct the file") if os.path.lexists(path) else _Settings()


def _modules(path: Path, entries: tuple[_Module, ...]) -> list[tuple[str, str]]:
    """Return kind and folder ("" for the model's own) of every module, in order."""
    if len(entries) > _MAX_MODULES:
        raise refusal(path, f"{len(entries)} modules; at most {_MAX_MODULES} are read")
    numbers = [number if entry.idx is None else entry.idx for number, entry in enumerate(entries)]
    if sorted(set(numbers)) != numbers:
        raise refusal(path, f"the modules' idx are {numbers!s:.60}, not in rising order")
    names = [str(number) if entry.name is None else entry.name for number, entry in enumerate(entries)]
    if len(set(names)) < len(names):
        raise refusal(path, f"two modules have one name; the names are {names!s:.60}")
    return [(_kind(path, entry.type), _place(path, entry.path)) for entry in entries]


def _kind(path: Path, name: str) -> str:
    kind = name.rpartition(".")[2]
    if not name.startswith("sentence_transformers.") or kind not in _KNOWN:
        raise refusal(
            path, f"module type {name!r:.80} is not supported (those of sentence-transformers: {', '.join(_KNOWN)})"
        )
    return kind


def _place(path: Path, place: str) -> str:
    parts = PurePosixPath(place).parts
    is_plain = place.isprintable() and not any(character in place for character in "\\:")
    if ".." in parts or parts[:1] == ("/",) or not is_plain:
        raise refusal(path, f"module path {place!r:.60} is not a folder inside the model's; refused")
    return "/".join(parts)


def _pooling(path: Path, root: Path, hidden_size: int) -> tuple[tuple[SentenceMode, ...], bool]:
    said = read_settings(Pooling, path, root)
    width = said.word_embedding_dimension if said.embedding_dimension is None else said.embedding_dimension
    if width != hidden_size:
        raise refusal(path, f"it pools vectors of {width} values, and the model's have {hidden_size}")
    flags = {
        SentenceMode.CLS: said.pooling_mode_cls_token,
        SentenceMode.MAX: said.pooling_mode_max_tokens,
        SentenceMode.MEAN: said.pooling_mode_mean_tokens,
        SentenceMode.MEAN_SQRT_LEN_TOKENS: said.pooling_mode_mean_sqrt_len_tokens,
        SentenceMode.WEIGHTEDMEAN: said.pooling_mode_weightedmean_tokens,
        SentenceMode.LASTTOKEN: said.pooling_mode_lasttoken,
    }
    modes = said.pooling_mode or tuple(mode for mode, flag in flags.items() if flag) or SentenceMode.MEAN
    return (modes,) if isinstance(modes, SentenceMode) else modes, said.include_prompt


def _dense(folder: Path, place: str, root: Path, width: int) -> DenseStep:
    path = folder / place / "config.json"
    said = read_settings(Dense, path, root)
    if said.in_features != width:
        raise refusal(path, f"a dense layer of {said.in_features} values does not fit vectors of {width}")
    activation = said.activation_function
    if activation not in ACTIVATIONS:
        names = ", ".join(sorted(set(ACTIVATIONS.values())))
        raise refusal(path, f"activation_function is {activation!r:.80}; known are torch.nn's {names}")
    file = _dense_weights(folder / place, root)
    step = DenseStep(
        folder=place,
        file=file,
        in_features=width,
        out_features=said.out_features,
        has_bias=said.bias,
        has_residual=said.use_residual,
        activation=ACTIVATIONS[activation],
        sha256=weights_digest([file]),
    )
    found = read_header(file)
    shapes = {name: shape for name, (kind, shape) in found.items() if kind in _FLOATS}
    if shapes != step.arrays() or len(found) > len(shapes):
        arrays = ", ".join(f"{name!r} {kind} {list(shape)}" for name, (kind, shape) in sorted(found.items()))
        wanted = ", ".join(f"{name!r} {list(shape)}" for name, shape in step.arrays().items())
        raise refusal(folder / place / SINGLE, f"holds {arrays or 'nothing'!s:.200}, not {wanted}")
    return step


def _dense_weights(folder: Path, root: Path) -> Path:
    if not os.path.lexists(folder / SINGLE):
        raise refusal(folder, f"no {SINGLE} in it; for pickle weights, run: bertfeat convert MODEL -o FOLDER")
    return inside(folder / SINGLE, root)


def _normalize(path: Path, root: Path) -> NormalizeStep:
    # Older models have no folder for it.
    if os.path.lexists(path):
        read_settings(Normalize, path, root)
    return NormalizeStep()
