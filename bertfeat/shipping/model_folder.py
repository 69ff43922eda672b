"""A shipped probe as a classifier of transformers, or a model of sentence-transformers that embeds texts as scores."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from bertfeat.choices import Level, OnOverlong, Pooling, Task
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.entry_points import build_config
from bertfeat.encoder.hub import TOKENIZER_FILES
from bertfeat.encoder.weights import read_tokenizer_config
from bertfeat.errors import UserError, checkpoint_errors, require
from bertfeat.extraction.documents import documents_of
from bertfeat.extraction.flow import Flow
from bertfeat.shipping.linear_map import linear_map

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

# What a model is compared with bertfeat on.
_TEXTS = [
    "Rain",
    "It rains in Berlin.",
    "Ana bought 42 old books at the market, and her brother carried them home.",
    "The committee has not decided yet. Some members asked for more time; others, such as Dr. Okoye, left early!",
]
# The largest difference of scores, as a share of the largest score if that is above 1; and one that shows that the head
# magnifies what float32 rounds off.
_MAX_DIFFERENCE, _ROUNDING = 1e-4, 0.05
# Scores times this power of two, which is exact, are so small that tanh in float32 leaves them as they are.
_SMALL = 2.0**-18


class NotExpressed(UserError):
    """A model was built, and it does not give the scores of the probe."""


def write_classifier(probe: FittedProbe, checkpoint: Checkpoint, folder: Path) -> None:
    """Write the cut model with the head as its classifier, and the tokenizer, for transformers."""
    import transformers

    weight, bias = (part.float() for part in linear_map(probe.probe))
    kind = "Sequence" if probe.level is Level.SENTENCE else "Token"
    model = _load_cut(probe, checkpoint, getattr(transformers, f"AutoModelFor{kind}Classification"))
    _copy_tokenizer(probe, checkpoint, folder)
    with checkpoint_errors(checkpoint.folder, "its tokenizer does not load"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def run() -> Any:
        with torch.inference_mode():
            encoded = (tokenizer(text, return_tensors="pt", truncation=True) for text in _TEXTS)
            return torch.cat([model(**one).logits.reshape(-1, len(bias)) for one in encoded]).numpy()

    _require_scores(probe, checkpoint, (run() for _ in _foldings(model, weight, bias)))
    model.save_pretrained(folder)


def write_embedder(probe: FittedProbe, checkpoint: Checkpoint, folder: Path) -> None:
    """Write the cut model, the pooling, and a dense layer for the scores, as modules of sentence-transformers."""
    require("sentence_transformers", what="`to='sentence-transformers'` needs")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as kinds

    weight, bias = (part.float() for part in linear_map(probe.probe))
    with tempfile.TemporaryDirectory() as part:
        with checkpoint_errors(checkpoint.folder, "sentence-transformers does not load it"):
            modules = _modules(probe, checkpoint, Path(part), kinds)
            modules.append(kinds.Dense(weight.shape[1], len(weight), True, nn.Identity(), weight, bias))
            model: Any = SentenceTransformer(modules=modules, device="cpu")
        model.max_seq_length = probe.spec.max_length
        if probe.spec.prompt:
            model.prompts["probe"], model.default_prompt_name = probe.spec.prompt, "probe"
        _require_scores(probe, checkpoint, [model.encode(_TEXTS, batch_size=1, show_progress_bar=False)])
        model.save_pretrained(str(folder), create_model_card=False)


def _modules(probe: FittedProbe, checkpoint: Checkpoint, part: Path, kinds: Any) -> list[Any]:
    """Return the modules that make the vector of a text; the cut model is written to the folder `part`."""
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    spec, model = probe.spec, _load_cut(probe, checkpoint, AutoModel)
    if spec.pooling == Pooling.MODEL:
        modules: list[Any] = list(SentenceTransformer(str(checkpoint.folder), device="cpu", local_files_only=True))
        modules[0].auto_model.config.update({"id2label": model.config.id2label, "label2id": model.config.label2id})
        return modules
    model.save_pretrained(part)
    _copy_tokenizer(probe, checkpoint, part)
    modules = [kinds.Transformer(str(part))]
    tokenizer = modules[0].tokenizer
    # Attention leaves out what is padded, whatever the token.
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if spec.pooling == Pooling.MEAN and not spec.include_special_tokens:
        # Weights of tokens: 0 for those that the tokenizer adds to a text. The module looks up small letters too.
        words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        special = {words[token]: 0.0 for token in tokenizer("")["input_ids"]}
        modules.append(kinds.WordWeights(words, {word: 1.0 for word in words if word.lower() in special} | special))
    return [*modules, kinds.Pooling(model.config.hidden_size, str(spec.pooling))]


def _load_cut(probe: FittedProbe, checkpoint: Checkpoint, auto_class: Any) -> Any:
    """Load a model of transformers with the blocks up to the probe's layer and the probe's labels, as float32."""
    (n_blocks,), n_outputs = probe.spec.layers, len(linear_map(probe.probe)[1])
    labels = [str(label) for label in probe.probe.classes_.tolist()]
    if probe.probe.task == Task.REGRESS:
        labels = [probe.label] if n_outputs == 1 else [f"{probe.label}_{number}" for number in range(n_outputs)]
    config = build_config(checkpoint.folder, checkpoint.config)
    with checkpoint_errors(checkpoint.folder, f"transformers cannot load {n_blocks} blocks of it"):
        for name, value in list(vars(config).items()):
            # Such as the types of the blocks.
            if isinstance(value, list) and len(value) == checkpoint.n_layers:
                setattr(config, name, value[:n_blocks])
        config.num_hidden_layers = n_blocks
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
        kinds = {Task.CLASSIFY: "single_label_classification", Task.MULTILABEL: "multi_label_classification"}
        config.problem_type = kinds.get(Task(probe.probe.task), "regression")
        options = {"dtype": torch.float32, "use_safetensors": True, "local_files_only": True}
        return auto_class.from_pretrained(checkpoint.folder, config=config, **options).eval()


def _copy_tokenizer(probe: FittedProbe, checkpoint: Checkpoint, folder: Path) -> None:
    """Copy the files of a model's tokenizer, with the probe's window as the limit of a text."""
    for name in TOKENIZER_FILES:
        if (checkpoint.folder / name).is_file():
            shutil.copyfile(checkpoint.folder / name, folder / name)
    settings = {**read_tokenizer_config(checkpoint.folder), "model_max_length": probe.spec.max_length}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, ensure_ascii=False, indent=1), encoding="utf-8")


def _require_scores(probe: FittedProbe, checkpoint: Checkpoint, ways: Iterable[Any]) -> None:
    """Stop at the first way to build a model whose scores for `_TEXTS` are the probe's; refuse it if none is.

    Scores are (n_rows, n_outputs): a row for each text or, at the token level and for words by their first tokens, for
    each token, special ones included. Those of the probe are of vectors in float32.
    """
    spec = dataclasses.replace(probe.spec, store_dtype="float32", compute_dtype="float32")
    if spec.level is Level.WORD:
        spec = dataclasses.replace(spec, level=Level.TOKEN, pooling=None)
    flow = Flow.of(spec.extract_config(device="cpu", on_overlong=OnOverlong.TRUNCATE), checkpoint)
    weight, bias = (part.numpy() for part in linear_map(probe.probe))
    expected = spec.vectors_in(flow.run(documents_of(_TEXTS))[spec.level]) @ weight.T + bias
    largest, least = max(1.0, np.abs(expected).max()), np.inf
    for found in ways:
        least = min(least, np.abs(expected - found).max() / largest)
        if least <= _MAX_DIFFERENCE:
            return
    text = f"scores of the model that was built differ by {least:.2g}, more than {_MAX_DIFFERENCE:g}"
    remedy = "; float32 is too coarse for this head, fit it with `standardize=False`"
    raise NotExpressed(text + (remedy if least < _ROUNDING else ""))


def _foldings(model: nn.Module, weight: torch.Tensor, bias: torch.Tensor) -> Iterator[None]:
    """Put a linear map into the last layers of a model, in each way that may give its scores; yield after each.

    Some classifiers of texts have a dense layer and an activation before the last layer. They let scores through that
    are so small that tanh does not change them; or pairs of scores with the opposite sign, because ReLU, GELU and SiLU
    of x and of -x differ by x.
    """
    layers: list[Any] = [None, *(module for module in model.modules() if isinstance(module, nn.Linear))]
    dense, last = layers[-2:]
    _put(last, weight, bias)
    yield
    if dense is not None and dense.in_features == weight.shape[1]:
        ones, nothing = torch.eye(len(bias)), torch.zeros(len(bias))
        _put(dense, weight * _SMALL, bias * _SMALL)
        _put(last, ones / _SMALL, nothing)
        yield
        _put(dense, torch.cat([weight, -weight]), torch.cat([bias, -bias]))
        _put(last, torch.cat([ones, -ones], dim=1), nothing)
        yield


@torch.no_grad()
def _put(layer: Any, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Set the weights of a layer that has as many outputs and inputs or more; those of the others become 0."""
    if layer.bias is None:
        raise NotExpressed("the classifier of transformers for it has no bias")
    if len(weight) > layer.out_features:
        raise NotExpressed(f"a layer of {layer.out_features} values is too narrow for {len(weight)} scores")
    for parameter, part in ((layer.weight, weight), (layer.bias, bias)):
        parameter.zero_()
        parameter[tuple(map(slice, part.shape))] = part
