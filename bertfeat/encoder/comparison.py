"""Comparison at load: how packs of a model run, found out from short windows on the weights that were loaded.

transformers runs three windows of two lengths, each alone and without padding, in a model with one block more than is
asked for. Then bertfeat runs them as one pack: first packed, then in batches of equal lengths. The first way counts
whose states equal those of transformers on every layer. The result is kept, so a model is compared once.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from bertfeat.encoder import attention
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.device_copies import to_device
from bertfeat.encoder.encoder import PackEncoder, RunPath
from bertfeat.encoder.entry_points import takes_type_ids
from bertfeat.errors import CheckpointError, RunError, checkpoint_errors, is_out_of_memory
from bertfeat.ragged import ragged_arange, starts_of
from bertfeat.records import Pack

# Prime numbers, so that no fixed count of landmarks or blocks divides them.
_LENGTHS = (11, 11, 7)
# Sliding windows and chunks of attention have this many tokens during the comparison.
_SHORT = 3
_WINDOW_NAMES = ("sliding_window", "attention_chunk_size")
# Packs of windows up to this length are tried with more tokens than a window.
_MAX_LONGEST = 8_192
# The distance of a token's states from those of transformers, relative to their length. In float32 it was at most 7e-7
# over all families, and at least 0.15 where a pack was wrong.
_MAX_DISTANCE = 1e-4
# In half precision, other sums round differently, and a mixture may choose other experts for a token. The median of a
# window's tokens was at most 0.011 over all families, and at least 0.15 where a pack was wrong: a token of another
# window, or a wrong position, changes most tokens by the last layers.
_MAX_MEDIAN_IN_HALF = 0.05


@dataclass(frozen=True, slots=True)
class Way:
    """How packs of a model run up to a layer: their path, and the blocks that are kept.

    `final_norm` is the norm that transformers applies to the last state only, where the model is cut below it; it is
    left out, as the whole model leaves it out of the states below the last.
    """

    path: RunPath
    n_blocks: int
    final_norm: str | None = None


def blocks_of(model: nn.Module, n_blocks: int) -> str | None:
    """Return the name of a model's blocks: the only list of that many modules that is not inside another part.

    ALBERT has none, because its blocks share their weights, and XLM has several, of the parts of its blocks.
    """
    found: list[str] = []
    for name, module in model.named_modules():
        is_inside = "embed" in name or name.startswith(tuple(f"{outer}." for outer in found))
        if isinstance(module, nn.ModuleList) and len(module) == n_blocks and not is_inside:
            found.append(name)
    return found[0] if len(found) == 1 else None


def cut(model: Any, blocks: str | None, n_blocks: int) -> Callable[[], object]:
    """Leave out the blocks of a model above the first `n_blocks`; return a function that restores them.

    Without the name of a list of blocks, the number in the config is set: ALBERT reads it in each pass, XLM runs whole.
    """
    if blocks is None:
        before, model.config.num_hidden_layers = model.config.num_hidden_layers, n_blocks
        return lambda: setattr(model.config, "num_hidden_layers", before)
    found: Any = model.get_submodule(blocks)
    model.set_submodule(blocks, found[:n_blocks])
    return lambda: model.set_submodule(blocks, found)


def last_parts(model: nn.Module, run: Callable[[], torch.Tensor]) -> list[str]:
    """Return the names of a model's parts whose output is the last layer, in the order of their calls.

    `run` runs it and returns the last layer of the last text, (n_tokens, hidden).
    """
    outputs: list[tuple[str, Any]] = []
    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            if not list(module.children()):
                note = partial(lambda name, _module, _inputs, output: outputs.append((name, output)), name)
                hooks.enter_context(module.register_forward_hook(note))
        last = run()
    return [name for name, found in outputs if isinstance(found, torch.Tensor) and torch.equal(found.squeeze(0), last)]


class Comparison:
    """The states of short windows as transformers computes them, each window alone.

    The model is run by transformers' own attention, up to the layer `n_blocks`; it is cut while the way is searched
    for. Pooled vectors are compared as well, if they are asked for.

    Raises:
        CheckpointError: transformers cannot run the model, or its layers are not one vector per token.
    """

    def __init__(self, checkpoint: Checkpoint, model: Any, n_blocks: int, *, with_pooler: bool) -> None:
        self._checkpoint = checkpoint
        self._model = model
        self._n_blocks = n_blocks
        self._with_pooler = with_pooler
        self._pack = _windows(model.config, checkpoint)
        self._each = [slice(*bounds) for bounds in itertools.pairwise(starts_of(self._pack.lengths).tolist())]
        running = checkpoint_errors(checkpoint.folder, "transformers cannot run the model", "use another model")
        with _short_windows(model), running:
            self._expected = self._alone()
        self._in_half = any(state.dtype is not torch.float32 for state in self._expected.values())

    def find(self, blocks: str | None, n_now: int, make: Callable[[Way, Sequence[int]], PackEncoder]) -> Way:
        """Return the first way whose states equal those of transformers.

        `blocks` is the name of the model's list of blocks, if it has one. It now has `n_now`: at least one more than
        those asked for, unless these are all. `make` makes the encoder of a way for some layers.

        Raises:
            CheckpointError: No way gives equal states.
        """
        said, layers = "", range(self._n_blocks + 1)
        bound = _MAX_MEDIAN_IN_HALF if self._in_half else _MAX_DISTANCE
        with _short_windows(self._model):
            kept = self._cut(blocks, n_now)
            paths: list[RunPath] = ["packed"] if attention.can_be_packed(self._model) else []
            for path in (*paths, "equal-length"):
                way = Way(path, *kept)
                try:
                    states = make(way, layers).encode(self._pack).states
                    if path == "packed":
                        self._run_longest(blocks, make(way, [0]))
                # The model does not take packs in this way; what it then raises is not known of every type.
                except Exception as error:
                    if _is_passing(error):
                        raise
                    said = f"cannot run: {' '.join(str(error).split())[:200]}"
                    continue
                distance, what = self._farthest(states, in_half=self._in_half, must_show=path == "packed")
                if distance <= bound:
                    return way
                said = f"differs from the same text alone by {distance:.1e} of the length of a vector in layer {what}"
                said += f" (bound {bound:.0e})"
        raise self._refusal(f"a text beside others {said}")

    def _refusal(self, reason: str) -> CheckpointError:
        kind = self._checkpoint.family.model_type
        return CheckpointError(f"model type {kind!r} is not run: {reason}", place=self._checkpoint.folder)

    def _run_longest(self, blocks: str | None, encoder: PackEncoder) -> None:
        """Run the first block on a pack of more tokens than a window has: CLIP refuses such packs.

        Where windows are long, packs are seldom longer.
        """
        if self._checkpoint.max_length > _MAX_LONGEST:
            return
        n = self._checkpoint.max_length // self._pack.n_tokens + 2
        names = ("input_ids", "position_ids", "type_ids", "lengths")
        tiled = {name: np.tile(getattr(self._pack, name), n) for name in names}
        pack = Pack(**tiled, windows=np.arange(n * len(_LENGTHS)))
        # The pooler needs the last layer.
        with contextlib.ExitStack() as restored:
            restored.callback(cut(self._model, blocks, self._n_blocks if self._with_pooler else 1))
            states = encoder.encode(pack).layer(0)
        first, last = states[: self._pack.n_tokens], states[-self._pack.n_tokens :]
        if (last - first).norm() > 0.01 * first.norm():
            raise ValueError("the place of a window in a pack changes its embeddings")

    @torch.inference_mode()
    def _alone(self) -> Mapping[int | str, torch.Tensor]:
        """Return each layer, and `pooler`, of the windows alone and without padding, as transformers runs them."""
        model, parts = self._model, defaultdict[int | str, list[torch.Tensor]](list)
        type_ids = takes_type_ids(model)
        for window in self._each:
            inputs = {"input_ids": self._pack.input_ids[window]}
            inputs["attention_mask"] = np.ones_like(inputs["input_ids"])
            if type_ids:
                inputs["token_type_ids"] = self._pack.type_ids[window]
            tensors = {name: to_device(ids[None], model.device) for name, ids in inputs.items()}
            with torch.autocast(model.device.type, enabled=False):
                found = model(**tensors, output_hidden_states=True)
            wanted = 1, len(inputs["input_ids"]), self._checkpoint.hidden_size
            for layer in range(self._n_blocks + 1):
                state = found.hidden_states[layer]
                if tuple(state.shape) != wanted:
                    raise self._refusal(f"layer {layer} of a text has the shape {tuple(state.shape)}, not {wanted}")
                parts[layer].append(state[0])
            if self._with_pooler:
                parts["pooler"].append(found.pooler_output)
        return {what: torch.cat(part) for what, part in parts.items()}

    def _cut(self, blocks: str | None, n_now: int) -> tuple[int, str | None]:
        """Cut the model above the blocks that are asked for; return how many are left, and the norm that is left out.

        One whose top layer then differs keeps all blocks, and its top layer is one below its last.
        """
        if n_now == self._n_blocks:
            return n_now, None
        restore, name, part = cut(self._model, blocks, self._n_blocks), "", None
        try:
            if self._is_same():
                return self._n_blocks, None
            for name in last_parts(self._model, lambda: self._alone()[self._n_blocks][self._each[-1]]):
                part = self._model.get_submodule(name)
                self._model.set_submodule(name, nn.Identity())
                if self._is_same():
                    return self._n_blocks, name
                self._model.set_submodule(name, part)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            if _is_passing(error):
                raise
            if part is not None:
                self._model.set_submodule(name, part)
        restore()
        return n_now, None

    def _is_same(self) -> bool:
        return self._farthest(self._alone(), in_half=False, must_show=True)[0] <= _MAX_DISTANCE

    def _farthest(
        self, found: Mapping[int | str, torch.Tensor], *, in_half: bool, must_show: bool
    ) -> tuple[float, int | str]:
        """Return the greatest distance from transformers, of any token or of a window's median, and of which layer.

        States that are not finite are left out: an error names them when they are stored. A window without any other
        shows nothing, and counts as different if `must_show`: a way that is nearer to transformers is then left.
        """
        unshown = math.inf if must_show else 0.0
        farthest: tuple[float, int | str] = 0.0, ""
        for what, wanted in self._expected.items():
            exact = wanted.float()
            lengths = exact.norm(dim=1)
            least = 1e-2 * lengths[lengths.isfinite()].mean()
            distances = (found[what].float() - exact).norm(dim=1) / lengths.maximum(least)
            for window in self._each if what != "pooler" else [slice(None)]:
                part = distances[window][lengths[window].isfinite()]
                distance = float(part.median() if in_half else part.max()) if len(part) else unshown
                # Not finite here, but in transformers. NaN compares as false.
                if not distance <= farthest[0]:
                    farthest = math.inf if math.isnan(distance) else distance, what
        return farthest


def _is_passing(error: Exception) -> bool:
    """Return whether an error says nothing about the model: memory ran out, or the device failed."""
    return isinstance(error, (RunError, torch.AcceleratorError)) or is_out_of_memory(error)


def _windows(config: Any, checkpoint: Checkpoint) -> Pack:
    """Return the windows of the comparison as a pack: random tokens, and what a model may treat in its own way."""
    lengths, n_ids = np.minimum(_LENGTHS, checkpoint.max_length), checkpoint.n_ids
    ids = np.random.default_rng(0).integers(0, n_ids, int(lengths.sum()))
    # ESM scales embeddings by the share of masked tokens: with several in one window it shows in half precision, too.
    for place, name in ((2, "mask_token_id"), (5, "mask_token_id"), (7, "mask_token_id"), (3, "pad_token_id")):
        special = getattr(config, name, None)
        if isinstance(special, int) and 0 <= special < n_ids and place < lengths[0]:
            ids[place] = special
    positions = ragged_arange(np.zeros_like(lengths), lengths)
    return Pack(
        input_ids=ids,
        position_ids=positions,
        type_ids=(positions >= np.repeat(lengths, lengths) // 2).astype(np.int64),
        lengths=lengths,
        windows=np.arange(len(lengths)),
    )


@contextlib.contextmanager
def _short_windows(model: Any) -> Iterator[None]:
    """Shorten sliding windows and chunks of attention, so that a way that ignores them shows in a short text.

    Some modules keep one token more than the config: the differences stay.
    """
    owners = model.config, *model.modules()
    found = [(owner, name, getattr(owner, name, None)) for owner in owners for name in _WINDOW_NAMES]
    before = [(owner, name, n) for owner, name, n in found if isinstance(n, int) and not isinstance(n, bool)]
    try:
        for owner, name, n in before:
            least = min(other for _, its_name, other in before if its_name == name)
            setattr(owner, name, n - max(0, least - _SHORT))
        yield
    finally:
        for owner, name, n in before:
            setattr(owner, name, n)
