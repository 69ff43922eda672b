"""Ways to run the encoder on a device: as it is, compiled, and as CUDA graphs; and sentence-transformers beside them.

All of them turn the same windows, whose tokens are numbers already, into the mean of each window's last layer. It
compiles the graph that `torch.export` makes of the packed forward pass, with the kernel for windows of many lengths.

- `eager`: `PackEncoder`, as bertfeat runs it.
- `compiled`: packs of any size.
- `compiled, reduce-overhead`, `compiled, max-autotune`: packs of one size, filled up with tokens that are thrown away.
- `CUDA graph`: packs of one size; one capture of the forward pass as it is.
- `compiled, by length`: the windows of each length as a batch, for types that the kernel does not take.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, embedding_bag, pad

from benchmarks.speed.encoder_alone import encoder_and_packs
from benchmarks.speed.harness import Setup
from benchmarks.speed.models import Shape
from bertfeat.encoder.attention import Group, Layout, cumulative_lengths, fits_varlen, packed
from bertfeat.encoder.encoder import PackEncoder
from bertfeat.encoder.transfers import to_device
from bertfeat.records import Pack

EAGER = "eager"
# The least cosine of a vector with that of `eager`; sums are in another order, and in half precision they are rounded.
_LEAST_COSINE = {"float32": 0.99999, "tf32": 0.999, "float16": 0.999, "bfloat16": 0.998}
_PADDED_TOKENS = 16_384

Tensors = tuple[torch.Tensor, ...]
# Encodes all windows: returns float32 (n_windows, hidden), in the order of the packs.
Way = Callable[[], torch.Tensor]


class PackedForward(nn.Module):
    """The forward pass of a pack as a function of tensors alone, which can be exported, compiled and captured.

    Args:
        encoder: An encoder of one layer, of a family with packs.
        longest: The tokens of the longest window.
        by_length: Takes windows of one length, (n_windows, length), in the place of a pack.
    """

    def __init__(self, encoder: PackEncoder, longest: int, *, by_length: bool = False) -> None:
        super().__init__()
        self.model = encoder._model
        self._run = encoder._forward
        self._types = encoder.supports_type_ids
        self._longest = longest
        self._by_length = by_length

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, type_ids: torch.Tensor, bounds: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean state of each window, float32 (n_windows, hidden).

        Args:
            input_ids: int64 (n_tokens,), or (n_windows, length).
            position_ids: Like `input_ids`.
            type_ids: Like `input_ids`.
            bounds: int32 (n_windows + 1,): 0, then the end of each window.
        """
        inputs = {"input_ids": input_ids.reshape(1, -1), "position_ids": position_ids.reshape(1, -1)}
        if self._types:
            inputs["token_type_ids"] = type_ids.reshape(1, -1)
        groups = (Group(0, *input_ids.shape),) if self._by_length else ()
        with packed(Layout(groups, self._longest, None if self._by_length else bounds)):
            (states,) = self._run(inputs).values()
        return means(states.squeeze(0), bounds)


def means(states: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """Return the mean of the states, (n_tokens, hidden), of each window: float32 (n_windows, hidden)."""
    places = torch.arange(states.shape[0], device=states.device)
    return embedding_bag(places, states.float(), bounds[:-1].long(), mode="mean")


def exported(forward: PackedForward, example: Tensors, *, fixed: bool = False) -> nn.Module:
    """Return the graph of a forward pass; the sizes of its inputs may vary, unless they are `fixed`."""
    sizes = tuple(dict.fromkeys(range(tensor.ndim), torch.export.Dim.DYNAMIC) for tensor in example)
    with torch.no_grad():
        graph = torch.export.export(forward, example, dynamic_shapes=None if fixed else sizes)
    return graph.module()


def tensors_of(pack: Pack, device: torch.device) -> Tensors:
    """Return the inputs of `PackedForward` for a pack, on a device."""
    ids = (to_device(given, device) for given in (pack.input_ids, pack.position_ids, pack.type_ids))
    return (*ids, cumulative_lengths(pack.lengths, device))


def filled(tensors: Tensors, n_tokens: int, n_windows: int, longest: int) -> Tensors:
    """Fill a pack up to a fixed size: windows of tokens that are thrown away, then windows without tokens."""
    *ids, bounds = tensors
    missing = n_tokens - len(ids[0])
    ends = torch.arange(len(ids[0]), n_tokens, longest, dtype=torch.int32, device=bounds.device)[1:]
    last = bounds.new_full((n_windows - (len(bounds) - 1) - len(ends),), n_tokens)
    return (*(pad(given, (0, missing)) for given in ids), torch.cat([bounds, ends, last]))


def _at_least_two(tensors: Tensors) -> Tensors:
    """Add a window without tokens to one that is alone: an exported graph with sizes that vary takes no size of one."""
    *ids, bounds = tensors
    return tensors if len(bounds) > 2 else (*ids, torch.cat([bounds, bounds[-1:]]))


@dataclass(frozen=True)
class Windows:
    """The windows of a corpus in packs, and the encoder that runs them."""

    encoder: PackEncoder
    packs: Sequence[Pack]

    @property
    def longest(self) -> int:
        """The tokens of the longest window."""
        return max(int(pack.lengths.max()) for pack in self.packs)

    def eager(self) -> torch.Tensor:
        """Run the encoder as bertfeat does."""
        device, found = self.encoder.device, []
        for pack in self.packs:
            (states,) = self.encoder.encode(pack).states.values()
            found.append(means(states, cumulative_lengths(pack.lengths, device)))
        return torch.cat(found)

    def compiled(self, backend: str) -> Way:
        """Compile for packs of any size."""
        most = max(self.packs, key=lambda pack: len(pack.lengths))
        example = _at_least_two(tensors_of(most, self.encoder.device))
        graph = exported(PackedForward(self.encoder, self.longest), example)
        run = torch.compile(graph, backend=backend, dynamic=True)
        return lambda: torch.cat(
            [run(*_at_least_two(tensors_of(pack, self.encoder.device)))[: len(pack.lengths)] for pack in self.packs]
        )

    def compiled_by_length(self, backend: str) -> Way:
        """Compile for batches of windows of one length."""
        device, (lengths, ids) = self.encoder.device, self._all_ids()
        ends = np.cumsum(lengths)
        by_length = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        batches = [
            piece
            for chosen in by_length
            for piece in np.array_split(chosen, -(-len(chosen) * lengths[chosen[0]] // self._budget))
        ]
        back = torch.from_numpy(np.argsort(np.concatenate(batches))).to(device)

        def inputs(chosen: Any) -> Tensors:
            length = lengths[chosen[0]]
            places = (ends[chosen] - length)[:, None] + np.arange(length)
            bounds = cumulative_lengths(lengths[chosen], device)
            return (*(to_device(given[places], device) for given in ids), bounds)

        example = inputs(np.resize(max(batches, key=len), max(2, *map(len, batches))))
        graph = exported(PackedForward(self.encoder, self.longest, by_length=True), example)
        run = torch.compile(graph, backend=backend, dynamic=True)
        # A window that is alone comes twice: an exported graph with sizes that vary takes no size of one.
        return lambda: torch.cat(
            [run(*inputs(np.resize(chosen, max(2, len(chosen)))))[: len(chosen)] for chosen in batches]
        )[back]

    def compiled_fixed(self, **options: Any) -> Way:
        """Compile for packs of one size."""
        forward = PackedForward(self.encoder, self.longest)
        run = torch.compile(exported(forward, self._filled(self.packs[0]), fixed=True), dynamic=False, **options)
        # The next run writes over the result of a graph.
        return lambda: torch.cat(
            [run(*self._filled(pack))[: len(pack.lengths)].clone() for pack in self.packs],
        )

    def captured(self) -> Way:
        """Capture a forward pass as a CUDA graph."""
        if self.encoder.device.type != "cuda":
            raise RuntimeError("CUDA graphs need a CUDA device")
        forward, given = PackedForward(self.encoder, self.longest), self._filled(self.packs[0])
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                forward(*given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = forward(*given)

        def replay(pack: Pack) -> torch.Tensor:
            for place, tensor in zip(given, self._filled(pack), strict=True):
                place.copy_(tensor)
            graph.replay()
            return result[: len(pack.lengths)].clone()

        return lambda: torch.cat([replay(pack) for pack in self.packs])

    def padded(self, shape: Shape, dtype: torch.dtype, attention: str) -> Way:
        """Run sentence-transformers with padded batches of windows in the order of their length."""
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

        options = {"dtype": dtype, "attn_implementation": attention}
        module = Transformer(str(shape.folder), model_kwargs=options)
        modules = [module, Pooling(module.get_embedding_dimension(), "mean")]
        device, model = self.encoder.device, SentenceTransformer(modules=modules, device=str(self.encoder.device))
        lengths, (ids, _, types) = self._all_ids()
        ends = np.cumsum(lengths)
        order = np.argsort(-lengths, kind="stable")
        size = max(1, min(_PADDED_TOKENS, self._budget) // self.longest)
        batches = [order[at : at + size] for at in range(0, len(order), size)]
        back = torch.from_numpy(np.argsort(order)).to(device)

        def run(chosen: Any) -> torch.Tensor:
            places = np.arange(lengths[chosen].max())
            mask = places < lengths[chosen][:, None]
            at = np.where(mask, (ends - lengths)[chosen][:, None] + places, 0)
            arrays = {"input_ids": ids[at] * mask, "token_type_ids": types[at] * mask, "attention_mask": mask * 1}
            found: torch.Tensor = model({name: to_device(array, device) for name, array in arrays.items()})[
                "sentence_embedding"
            ]
            return found.float()

        return lambda: torch.cat([run(chosen) for chosen in batches])[back]

    @property
    def _budget(self) -> int:
        return max(pack.n_tokens for pack in self.packs)

    def _all_ids(self) -> tuple[Any, list[Any]]:
        names = ("input_ids", "position_ids", "type_ids")
        lengths = np.concatenate([pack.lengths for pack in self.packs])
        return lengths, [np.concatenate([getattr(pack, name) for pack in self.packs]) for name in names]

    def _filled(self, pack: Pack) -> Tensors:
        n_windows = max(len(each.lengths) - (each.n_tokens - self._budget) // self.longest for each in self.packs)
        return filled(tensors_of(pack, self.encoder.device), self._budget, n_windows, self.longest)


def ways_of(windows: Windows, shape: Shape, dtype: torch.dtype, backend: str) -> dict[str, Callable[[], Way]]:
    """Return the ways that a type has, each with the function that makes it ready."""
    ways: dict[str, Callable[[], Way]] = {EAGER: lambda: windows.eager}
    if fits_varlen(dtype, shape.hidden_size // shape.n_heads):
        ways["compiled"] = lambda: windows.compiled(backend)
        for mode in ("reduce-overhead", "max-autotune"):
            # Other backends have no modes.
            options = {"mode": mode} if backend == "inductor" else {"backend": backend}
            ways[f"compiled, {mode}"] = lambda options=options: windows.compiled_fixed(**options)
        ways["CUDA graph"] = windows.captured
    ways["compiled, by length"] = lambda: windows.compiled_by_length(backend)
    for attention in ("sdpa", "flash_attention_2"):
        if attention == "sdpa" or dtype is not torch.float32:
            ways[f"sentence-transformers, {attention}"] = lambda name=attention: windows.padded(shape, dtype, name)
    return ways


@torch.inference_mode()
def compare(
    shape: Shape, corpus: str, folder: Path, setup: Setup, *, dtype: str, n_rows: int, n_tokens: int, backend: str
) -> dict[str, Any]:
    """Measure every way on one corpus in rounds; what cannot run here is named with its reason.

    Args:
        shape: The model.
        corpus: A key of `CORPORA`.
        folder: Where to work.
        setup: The device and the number of rounds; its type is not used.
        dtype: `float32`, `tf32` (float32 with products in TF32), `float16` or `bfloat16`.
        n_rows: Rows of the corpus.
        n_tokens: The least number of tokens; the packs of the corpus are repeated.
        backend: Of `torch.compile`.

    Raises:
        AssertionError: The vectors of a way are not those of `eager`.
    """
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    computing = "float32" if dtype == "tf32" else dtype
    setup = Setup(n_rounds=setup.n_rounds, device=setup.device, dtype=computing)
    encoder, packs = encoder_and_packs(shape, corpus, folder, setup, n_rows)
    packs *= max(1, n_tokens // sum(pack.n_tokens for pack in packs))
    windows, n_tokens = Windows(encoder, packs), sum(pack.n_tokens for pack in packs)
    ready: dict[str, Way] = {}
    result: dict[str, Any] = {"n_tokens": n_tokens, "n_packs": len(packs), "ways": {}, "missing": {}}
    expected = torch.empty(0)
    for name, prepare in ways_of(windows, shape, getattr(torch, computing), backend).items():
        start = time.perf_counter()
        try:
            way = prepare()
            found = way()
            _wait(encoder.device)
        except (ImportError, RuntimeError, ValueError, torch._dynamo.exc.TorchDynamoException) as error:
            result["missing"][name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            continue
        ready[name] = way
        expected = found if name == EAGER else expected
        least = float(cosine_similarity(found, expected, dim=1).min())
        assert least >= _LEAST_COSINE[dtype], f"{name}: a cosine of {least} with {EAGER}"
        result["ways"][name] = {"warm_up_s": time.perf_counter() - start, "least_cosine": least, "seconds": []}
    for _ in range(setup.n_rounds):
        for name, way in ready.items():
            start = time.perf_counter()
            way()
            _wait(encoder.device)
            result["ways"][name]["seconds"].append(time.perf_counter() - start)
    for facts in result["ways"].values():
        facts["tokens_per_s"] = n_tokens / statistics.median(facts["seconds"])
        pairs = zip(result["ways"][EAGER]["seconds"], facts["seconds"], strict=True)
        facts["ratio"] = statistics.median(eager / own for eager, own in pairs)
    return result


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
