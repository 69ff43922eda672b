"""Batches of a model with a head: windows padded to one length, with their labels, and the outputs for their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertfeat.devices import resolve_device
from bertfeat.encoder.discovery import encoder_of, takes_type_ids
from bertfeat.errors import UserError
from bertfeat.pipelines._models import NO_LABEL, TaskModel
from bertfeat.pipelines._taskexamples import Examples
from bertfeat.pipelines._training import MakeBatch, Settings
from bertfeat.ragged import ragged_arange, run_of
from bertfeat.records import BoolArray, Float32Array, IntArray
from bertfeat.text.windows import Windows


@dataclass(frozen=True, slots=True)
class Padding:
    """The form of a model's inputs: how windows are padded, and whether the segment of a token is one of them."""

    token: int
    on_left: bool
    with_types: bool

    @classmethod
    def of(cls, opened: TaskModel) -> Padding:
        """Return the form that a model takes; one without a padding token gets one."""
        config = opened.model.config
        if config.pad_token_id is None:
            config.pad_token_id = next(iter(np.atleast_1d(config.eos_token_id or 0).tolist()))
        return cls(
            token=int(config.pad_token_id),
            # XLNet, whose positions are relative, reads a text's last token.
            on_left=getattr(config, "summary_type", None) == "last",
            with_types=takes_type_ids(encoder_of(opened.model.base_model)),
        )

    def inputs(self, windows: Windows, chosen: IntArray) -> tuple[dict[str, torch.Tensor], BoolArray]:
        """Return windows as a batch for the model, and which of its places are tokens."""
        lengths = windows.lengths[chosen]
        places = np.arange(lengths.max())
        if self.on_left:
            places = places[::-1]
        is_token = places < lengths[:, None]
        source = ragged_arange(windows.starts[chosen], lengths)
        columns = {"input_ids": (windows.input_ids, self.token), "token_type_ids": (windows.type_ids, 0)}
        if not self.with_types:
            del columns["token_type_ids"]
        batch = {"attention_mask": torch.from_numpy(is_token.astype(np.int64))}
        for name, (values, padding) in columns.items():
            padded = np.full(is_token.shape, padding, dtype=np.int64)
            padded[is_token] = values[source]
            batch[name] = torch.from_numpy(padded)
        return batch, is_token


def check_ends(examples: Examples, opened: TaskModel, where: str) -> None:
    """Check that a head can read a split.

    Raises:
        UserError: The head of an encoder-decoder, which reads the state at the end of a text, does not find it; or no
            window has a token.
    """
    windows, config = examples.windows, opened.model.config
    if not windows.lengths.any():
        raise UserError(f"{where}: no text has a token")
    if examples.lengths is None and config.is_encoder_decoder:
        is_end = np.concatenate([[0], np.cumsum(windows.input_ids == config.eos_token_id)])
        n_ends = np.diff(is_end[windows.starts])
        if not n_ends.min() or np.ptp(n_ends):
            raise UserError(
                f"{where}: the head of {opened.checkpoint.name} reads the end token (id {config.eos_token_id}), and "
                f"texts have {n_ends.min()} to {n_ends.max()} of them; use another model, or leave such texts out"
            )


def batches_of(examples: Examples, codes: npt.NDArray[Any], padding: Padding) -> tuple[MakeBatch, IntArray]:
    """Return the function that makes batches for `train`, and the windows that it makes them of: those with a label."""
    targets = examples.targets(codes)
    n_windows = len(examples.windows)
    window = np.arange(n_windows) if examples.lengths is None else run_of(examples.windows.lengths)
    n_labels = np.bincount(window[examples.row >= 0], minlength=n_windows)
    usable = np.flatnonzero((n_labels > 0) & (examples.windows.lengths > 0))

    def make_batch(batch: Sequence[int], _: np.random.Generator) -> Mapping[str, torch.Tensor]:
        chosen = usable[np.asarray(batch)]
        inputs, is_token = padding.inputs(examples.windows, chosen)
        labels = targets[examples.places(chosen)]
        if examples.lengths is not None:
            padded = np.full(is_token.shape, NO_LABEL, dtype=targets.dtype)
            padded[is_token] = labels
            labels = padded
        return {**inputs, "labels": torch.from_numpy(labels)}

    return make_batch, usable


def outputs_of(model: Any, examples: Examples, padding: Padding, settings: Settings) -> tuple[Float32Array, BoolArray]:
    """Return the outputs of the head for each row, float32 (n_rows, n_outputs), and which rows have any."""
    device = resolve_device(settings.device)[0]
    outputs = np.zeros((examples.n_rows, model.config.num_labels), np.float32)
    found = np.zeros(examples.n_rows, np.bool_)
    order = np.argsort(-examples.windows.lengths, kind="stable")
    # Where a tokenizer adds no special tokens, a window of an empty text is empty.
    order = order[examples.windows.lengths[order] > 0]
    model.eval()
    with torch.no_grad():
        for start in range(0, len(order), settings.batch_size):
            chosen = order[start : start + settings.batch_size]
            inputs, is_token = padding.inputs(examples.windows, chosen)
            logits = model(**{name: values.to(device) for name, values in inputs.items()}).logits.float().cpu().numpy()
            row = examples.row[examples.places(chosen)]
            values = logits if examples.lengths is None else logits[is_token]
            outputs[row[row >= 0]] = values[row >= 0]
            found[row[row >= 0]] = True
    return outputs, found
