"""Reader of the files in which a sentence-transformers folder describes its embedding and its prompts.

Nothing is imported or run from what the files name: modules and activations are matched against short lists, and any
other is refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from bertfeat.encoder.filedigests import weights_digest
from bertfeat.encoder.sentencemodel import DenseStep, NormalizeStep, Prompts, SentenceMode, SentenceModel
from bertfeat.encoder.sentencesettings import SAVE_AGAIN, read_max_length, read_settings, refusal
from bertfeat.encoder.weights import SINGLE, inside, read_header, read_json, read_json_list
from bertfeat.errors import CheckpointError

_FLAGS = {
    "pooling_mode_cls_token": SentenceMode.CLS,
    "pooling_mode_max_tokens": SentenceMode.MAX,
    "pooling_mode_mean_tokens": SentenceMode.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": SentenceMode.MEAN_SQRT_LEN_TOKENS,
    "pooling_mode_weightedmean_tokens": SentenceMode.WEIGHTEDMEAN,
    "pooling_mode_lasttoken": SentenceMode.LASTTOKEN,
}
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
_NAMES = {"module_input_name": (str,), "module_output_name": (str, type(None))}
_POOLING = {
    **dict.fromkeys(("embedding_dimension", "word_embedding_dimension"), (int,)),
    **dict.fromkeys((*_FLAGS, "include_prompt"), (bool,)),
    "pooling_mode": (str, list),
}
_DENSE = {
    **dict.fromkeys(("in_features", "out_features"), (int,)),
    **dict.fromkeys(("bias", "use_residual"), (bool,)),
    "activation_function": (str,),
    **_NAMES,
}
_KNOWN = ("Transformer", "Pooling", "Dense", "Normalize")
_MAX_MODULES = 32
_MAX_FEATURES = 1_000_000
_FLOATS = ("F16", "BF16", "F32", "F64")


def read_sentence_model(
    folder: Path, root: Path, hidden_size: int, *, has_weights: bool = True
) -> SentenceModel | None:
    """Read how a model makes its sentence embedding; None for a folder without modules.json.

    Args:
        folder: The model folder, resolved.
        root: The folder that every file must lie in once links are followed.
        hidden_size: The width of the model's states.
        has_weights: Whether the model has its trained weights; without them, dense layers are refused.

    Raises:
        CheckpointError: A file is missing, unsafe or malformed, sizes do not fit, or a module is not supported.
    """
    path = folder / "modules.json"
    if not os.path.lexists(path):
        return None
    if (kind := _settings(folder, root).get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        raise refusal(
            folder / "config_sentence_transformers.json", f"model_type is {kind!r:.60}, not SentenceTransformer"
        )
    modules = _modules(path, read_json_list(inside(path, root)))
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
        if kind == "Dense" and not has_weights:
            raise refusal(path, "its dense layers are trained, and `random_weights` draws none for them")
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
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict):
        raise CheckpointError(f"{path}: prompts is {prompts!r:.60}, not an object; correct the file")
    # sentence-transformers reads null as an empty prompt.
    texts = {name: "" if text is None else text for name, text in prompts.items()}
    for name, text in texts.items():
        if not isinstance(text, str) or _has_surrogates(name + text):
            raise CheckpointError(f"{path}: prompt {name!r:.60} is {text!r:.60}, not a text; correct the file")
    if default is not None and (not isinstance(default, str) or default not in {*texts, "query", "document"}):
        raise CheckpointError(
            f"{path}: default_prompt_name is {default!r:.60}, which names none of the prompts; correct the file"
        )
    return Prompts(texts, default if default in texts else None)


def _has_surrogates(text: str) -> bool:
    """Return whether a text holds half of a surrogate pair, which JSON can escape and UTF-8 cannot hold."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _settings(folder: Path, root: Path) -> dict[str, Any]:
    path = folder / "config_sentence_transformers.json"
    return read_json(inside(path, root)) if os.path.lexists(path) else {}


def _modules(path: Path, entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return kind and folder ("" for the model's own) of every module, in order."""
    if len(entries) > _MAX_MODULES:
        raise refusal(path, f"{len(entries)} modules; at most {_MAX_MODULES} are read")
    numbers = [entry.get("idx", number) for number, entry in enumerate(entries)]
    if any(type(number) is not int for number in numbers) or sorted(set(numbers)) != numbers:
        raise refusal(path, f"the modules' idx are {numbers!s:.60}, not in rising order")
    names = [str(entry.get("name", number)) for number, entry in enumerate(entries)]
    if len(set(names)) < len(names):
        raise refusal(path, f"two modules have one name; the names are {names!s:.60}")
    return [(_kind(path, entry.get("type")), _place(path, entry.get("path"))) for entry in entries]


def _kind(path: Path, name: object) -> str:
    kind = name.rpartition(".")[2] if isinstance(name, str) else ""
    if not isinstance(name, str) or not name.startswith("sentence_transformers.") or kind not in _KNOWN:
        raise refusal(
            path, f"module type {name!r:.80} is not supported (those of sentence-transformers: {', '.join(_KNOWN)})"
        )
    return kind


def _place(path: Path, place: object) -> str:
    parts = PurePosixPath(place).parts if isinstance(place, str) else ("..",)
    is_plain = str(place).isprintable() and not any(character in str(place) for character in "\\:")
    if ".." in parts or parts[:1] == ("/",) or not is_plain:
        raise refusal(path, f"module path {place!r:.60} is not a folder inside the model's; refused")
    return "/".join(parts)


def _pooling(path: Path, root: Path, hidden_size: int) -> tuple[tuple[SentenceMode, ...], bool]:
    said = read_settings(path, root, _POOLING)
    width = said.get("embedding_dimension", said.get("word_embedding_dimension"))
    if width != hidden_size:
        raise refusal(path, f"it pools vectors of {width!r:.60} values, and the model's have {hidden_size}")
    modes = said.get("pooling_mode", [mode for flag, mode in _FLAGS.items() if said.get(flag)] or [SentenceMode.MEAN])
    modes = [modes] if isinstance(modes, str) else modes
    if not modes or len(modes) > len(SentenceMode) or any(mode not in list(SentenceMode) for mode in modes):
        raise refusal(path, f"pooling mode {modes!s:.60} is not supported; known are {', '.join(SentenceMode)}")
    return tuple(SentenceMode(mode) for mode in modes), said.get("include_prompt", True)


def _dense(folder: Path, place: str, root: Path, width: int) -> DenseStep:
    path = folder / place / "config.json"
    said = read_settings(path, root, _DENSE)
    _check_names(path, said)
    if said.get("in_features") != width or not 1 <= said.get("out_features", 0) <= _MAX_FEATURES:
        sizes = f"{said.get('in_features')!r:.30} to {said.get('out_features')!r:.30}"
        raise refusal(path, f"a dense layer from {sizes} values does not fit vectors of {width}")
    activation = said.get("activation_function", "torch.nn.Tanh")
    if activation not in ACTIVATIONS:
        names = ", ".join(sorted(set(ACTIVATIONS.values())))
        raise refusal(path, f"activation_function is {activation!r:.80}; known are torch.nn's {names}")
    file = _dense_weights(folder / place, root)
    step = DenseStep(
        folder=place,
        file=file,
        in_features=width,
        out_features=said["out_features"],
        has_bias=said.get("bias", True),
        has_residual=said.get("use_residual", False),
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
        what = f"no {SINGLE} in it, and pickle files, which can run code, are not opened"
        raise refusal(folder, f"{what}; run `bertfeat convert MODEL -o FOLDER`")
    return inside(folder / SINGLE, root)


def _normalize(path: Path, root: Path) -> NormalizeStep:
    # Older models have no folder for it.
    if os.path.lexists(path):
        _check_names(path, read_settings(path, root, _NAMES))
    return NormalizeStep()


def _check_names(path: Path, said: Mapping[str, Any]) -> None:
    for key in _NAMES:
        if said.get(key) not in (None, "sentence_embedding"):
            raise refusal(path, f"{key} is {said[key]!r:.60}, not sentence_embedding")
