"""A shipped probe as one ONNX graph, from token ids to probabilities, with its tokenizer and labels."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bertfeat.choices import Combine, Level, Task
from bertfeat.encoder import attention
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.loading import load_encoder
from bertfeat.encoder.sentence_steps import load_steps
from bertfeat.errors import UserError, checkpoint_errors, require
from bertfeat.extraction.pooling import MODES, PoolingMode, combine_layers, counts_of, modes_of, needs_pooler
from bertfeat.extraction.resolution import open_tokenizer, own_embedding
from bertfeat.shipping.linear_map import is_linear, linear_map
from bertfeat.text.alignment import Counts, Takes
from bertfeat.text.backend import adapt, load_backend

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

# ONNX Runtime takes this version of the operators from 1.14 on.
_OPTIONS: dict[str, Any] = {"dynamo": True, "opset_version": 18, "verbose": False}
# The largest difference that padding may make to the last state, as a share of its largest value.
_MAX_DIFFERENCE = 1e-4


def write_graph(probe: FittedProbe, checkpoint: Checkpoint, folder: Path) -> None:
    """Write the graph, its labels, and its tokenizer; at the word level also a tokenizer for lists of words."""
    require("onnx", "onnxscript", what="`to='onnx'` needs")
    network = ProbeNetwork(probe, checkpoint).eval()
    _export(network, checkpoint, folder / "model.onnx")
    about = {"labels": probe.probe.classes_.tolist(), "label": probe.label, "task": probe.probe.task}
    about |= {"level": probe.level, "output": network.output_name, "prompt": probe.spec.prompt}
    (folder / "labels.json").write_text(json.dumps(about, ensure_ascii=False, indent=1), encoding="utf-8")
    pad_id = max(0, checkpoint.config.get("pad_token_id") or 0)
    for name, given_words in (("tokenizer", False), ("tokenizer_words", True))[: 1 + (probe.level is Level.WORD)]:
        backend, _ = load_backend(checkpoint.folder)
        adapt(backend, given_words=given_words)
        backend.enable_truncation(probe.spec.max_length)
        backend.enable_padding(pad_id=pad_id, pad_token=backend.id_to_token(pad_id) or "")
        backend.save(str(folder / f"{name}.json"))


class ProbeNetwork(nn.Module):
    """A model with the blocks that a probe needs, the pooling of its feature, and its head."""

    def __init__(self, probe: FittedProbe, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.spec, head = probe.spec, probe.probe
        config, tokenizer = self.spec.extract_config(), open_tokenizer(checkpoint, given_words=False)
        sentence = own_embedding(checkpoint, config)
        with_pooler = needs_pooler(config)
        encoder = load_encoder(checkpoint, self.spec.layers, with_pooler=with_pooler, packs_linears=False)
        self.model: Any = encoder.model
        # It takes padded batches then.
        attention.switch(self.model, "eager")
        self._modes, self._counts = modes_of(probe.level, config, sentence), counts_of(config, sentence)
        self._finish = load_steps(sentence) if sentence else lambda vectors: vectors
        self._template, self._cls_id, self._task = tokenizer.single, tokenizer.cls_id, head.task
        self.output_name = "numbers" if head.task == Task.REGRESS else "scores"
        if hasattr(head, "predict_proba"):
            self.output_name = "probabilities"
        if is_linear(head):
            weight, bias = (part.float() for part in linear_map(head))
            self._score = partial(nn.functional.linear, weight=weight, bias=bias)
        else:
            self.network: nn.Module = copy.deepcopy(head.network_).cpu()
            self._score = partial(self.network, lengths=None)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, word_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Return the outputs of texts, (n_texts, n_outputs), or of their tokens or words, (n_texts, length, n_outputs).

        Rows without a token have NaN. Inputs are int64 (n_texts, length), with padding on the right: the ids; 1 for
        tokens and 0 for padding; and at the word level the number of each token's word, -1 for none.
        """
        found = self.model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        counted, combine, parts = self._counted(ids, mask.bool(), word_ids), self.spec.combine, []
        for mode in self._modes:
            if mode.takes is Takes.WINDOW:
                pooled = [found.pooler_output.unsqueeze(1)]
            else:
                pooled = [_pool(mode, found.hidden_states[layer], counted) for layer in self.spec.layers]
            is_added = combine in (Combine.SUM, Combine.MEAN)
            parts.append(combine_layers(pooled, combine) if is_added else torch.cat(pooled, dim=2))
        scores: torch.Tensor = self._score(self._finish(torch.cat(parts, dim=2).flatten(0, 1)))
        if self.output_name == "probabilities":
            scores = scores.softmax(dim=1) if self._task == Task.CLASSIFY else scores.sigmoid()
        outputs = torch.where(counted.any(dim=2, keepdim=True), scores.reshape(*counted.shape[:2], -1), torch.nan)
        return outputs[:, 0] if self.spec.level is Level.SENTENCE else outputs

    def _counted(self, ids: torch.Tensor, mask: torch.Tensor, word_ids: torch.Tensor | None) -> torch.Tensor:
        """Return which tokens each row is pooled from: bool (n_texts, n_rows, length)."""
        place = torch.arange(ids.shape[1])
        if self.spec.level is not Level.SENTENCE:
            row = place if word_ids is None else word_ids
            return mask.unsqueeze(1) & (row.unsqueeze(-2) == place.unsqueeze(1))
        end = mask.sum(dim=1, keepdim=True) - len(self._template.suffix)
        is_text, takes = (place >= len(self._template.prefix)) & (place < end), self._modes[0].takes
        if takes is Takes.CLS:
            mask = mask & ~is_text & (ids == self._cls_id)
        elif self._counts is Counts.TEXT and takes is not Takes.WINDOW:
            mask = mask & is_text
        return mask.unsqueeze(1)


def _pool(mode: PoolingMode, states: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Pool states, float32 (n_texts, length, hidden), into rows, (n_texts, n_rows, hidden)."""
    if mode is MODES["max"]:
        # An entry for each row, and not for each row and token.
        row = counted.int().argmax(dim=1).unsqueeze(2).expand(states.shape)
        states = torch.where(counted.any(dim=1).unsqueeze(2), states, -torch.inf)
        # `len` would fix the number of texts in the graph.
        rows = states.new_full((states.shape[0], counted.shape[1], states.shape[2]), -torch.inf)
        return rows.scatter_reduce(1, row, states, "amax")
    places = counted.cumsum(dim=2)
    if mode.takes in (Takes.FIRST, Takes.CLS, Takes.LAST):
        counted = counted & (places == (places[:, :, -1:] if mode.takes is Takes.LAST else 1))
    weights = (places * counted if mode.is_weighted else counted).float()
    total = weights @ states
    return total if mode.finish is None else mode.finish(total, weights.sum(dim=2, keepdim=True))


@torch.no_grad()
def _export(network: ProbeNetwork, checkpoint: Checkpoint, path: Path) -> None:
    """Write a network as an ONNX graph; refuse it if padding changes the states of its model."""
    place, kind = torch.arange(min(9, checkpoint.max_length)), f"models of the type {checkpoint.family.model_type}"
    n_short = len(place) // 2 + 1
    mask = torch.stack([place >= 0, place < n_short]).long()
    ids = torch.randint(checkpoint.n_ids, mask.shape, generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": mask}
    with checkpoint_errors(checkpoint.folder, f"torch cannot export {kind}", "ship the probe of another model"):
        padded = network.model(**inputs).last_hidden_state[1, :n_short]
        alone = network.model(ids[1:, :n_short]).last_hidden_state[0]
        if (padded - alone).abs().max() > _MAX_DIFFERENCE * alone.abs().max():
            raise UserError(f"padding changes the states of {kind}; ship the probe of another model")
        if network.spec.level is Level.WORD:
            inputs["word_ids"] = place.expand(mask.shape) // 2
        names: dict[str, Any] = {"input_names": list(inputs), "output_names": [network.output_name]}
        # Equal names alone would not say that the inputs have equal shapes.
        axes = ("batch", "length")
        shapes = [dict(enumerate(map(torch.export.Dim, axes)))] * len(inputs)
        program: Any = torch.onnx.export(network, tuple(inputs.values()), dynamic_shapes=shapes, **names, **_OPTIONS)
        # If an operation fixes a dimension, `torch.onnx.export` fixes it in the inputs too, without a warning.
        if fixed := [each.shape for each in program.model.graph.inputs if each.shape != axes]:
            raise UserError(f"torch exports {kind} only for the shape {fixed[0]}; ship the probe of another model")
        # They name files of this machine.
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()
        program.save(path)
