"""The encoder: packs in, hidden states out.

On a CPU several packs are encoded at once, each by one thread, called a lane. Two lanes of one thread are faster than
one lane of two threads: the threads do not wait for each other after every product, and when the tokenizer or the
writer needs a core, only one pack waits. The bits of a pack do not depend on the number of cores.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.metadata import version
from threading import Lock
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import nn

from bertfeat.devices import one_thread
from bertfeat.encoder.attention import find_groups, make_layout, packed
from bertfeat.encoder.device_copies import to_device
from bertfeat.encoder.torch_modules import PackedLinear
from bertfeat.errors import RunError, is_out_of_memory
from bertfeat.forks import limit_threads
from bertfeat.ragged import ragged_arange, starts_of
from bertfeat.records import BoolArray, IntArray, Pack

# On a CPU, the number of rows of a pack is a multiple of the first number, of small packs of the last.
_FILLED_ROWS, _FEW_ROWS, _FILLED_ROWS_OF_FEW = 32, 256, 8
# What a pooler takes: the last state, in some models after a norm that their last layer does not have.
_LAST = -1
# In transformers 5.17 to 5.22, a list of layers counts from the first block on, not from the embeddings.
_TAKES_LISTS = not (5, 17) <= tuple(map(int, version("transformers").split(".")[:2])) < (5, 23)
# CUDA's kernels of attention number the windows in a dimension of the grid that has no more places.
_MAX_WINDOWS = 65_535
# A small corpus is cut into this many packs, unless they would have fewer tokens than the second number. Twice as many,
# half as large, took 10 % more time in bfloat16 and 2 to 10 % in float32 (7,000 to 39,000 tokens, 2 cores).
_MIN_PACKS = 16
_MIN_PACK_TOKENS = 512

# `packed` lays windows end to end without padding and hands attention their bounds; `equal-length` runs the windows of
# one length as a plain batch, which needs no padding either; `lookup` takes static vectors from a table.
RunPath: TypeAlias = Literal["packed", "equal-length", "lookup"]


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """The hidden states of one pack, in the order of its tokens, on the encoder's device.

    They have its compute type, except where transformers keeps layers of T5 in float32 because float16 would overflow.
    """

    states: Mapping[int | str, torch.Tensor]

    def layer(self, layer: int) -> torch.Tensor:
        """Return the states of an absolute layer, (n_tokens, hidden); 0 is the output of the embeddings."""
        return self.states[layer]

    def pooler(self) -> torch.Tensor:
        """Return the model's own pooled vector of each window, (n_windows, hidden), in the order of `pack.windows`."""
        return self.states["pooler"]


class PackEncoder:
    """A loaded encoder, cut to `n_blocks`, the highest layer asked for; `load_encoder` makes it.

    The model is in evaluation mode and on its device; of an encoder-decoder, it is the encoder. `padding_idx` is the
    padding token after whose number positions start, as in RoBERTa; None if they start at 0.

    Attributes:
        model: The network, which runs packs and not padded batches.
        device: The device that computes.
        n_halvings: Packs that were halved so far because memory ran out.
        n_lanes: Packs that are best encoded at once: on a CPU, as many as torch had threads when the model was loaded.
    """

    def __init__(
        self,
        model: nn.Module,
        path: RunPath,
        layers: Sequence[int],
        *,
        n_blocks: int = 0,
        compute_dtype: torch.dtype = torch.float32,
        with_pooler: bool = False,
        padding_idx: int | None = None,
        supports_type_ids: bool = False,
    ) -> None:
        self.path = path
        self.layers = tuple(layers)
        self.n_blocks = n_blocks
        self.device = next(model.parameters()).device
        self.compute_dtype = compute_dtype
        self.supports_type_ids = supports_type_ids
        self.n_halvings = 0
        self.n_lanes = torch.get_num_threads() if self.device.type == "cpu" else 1
        # Lanes share the encoder.
        self._lock = Lock()
        self.model = model
        self._with_pooler = with_pooler
        self._padding_idx = padding_idx
        self._paths = {"packed": self._packed, "equal-length": self._by_length, "lookup": self._looked_up}

    @property
    def n_bytes(self) -> int:
        """Bytes of the loaded weights; parameters leave out packed layers."""
        own = (one for module in self.model.modules() for one in vars(module).values())
        weights = [*self.model.parameters(), *(one for one in own if isinstance(one, torch.Tensor))]
        return sum(one.nbytes for one in weights)

    def encode(self, pack: Pack) -> HiddenStates:
        """Run one pack as `encode_parts` does, and join the states of its parts."""
        parts = [states for _, states in self.encode_parts(pack)]
        if len(parts) == 1:
            return parts[0]
        return HiddenStates({what: torch.cat([part.states[what] for part in parts]) for what in parts[0].states})

    def encode_parts(self, pack: Pack) -> Iterator[tuple[Pack, HiddenStates]]:
        """Run one pack of at least one window; when memory runs out, its halves, and so on down to single windows.

        Delete the states of a part before asking for the next: memory may not hold those of all parts.

        Raises:
            RunError: Memory does not suffice for a single window.
        """
        if len(pack.lengths) <= _MAX_WINDOWS:
            try:
                states = self._run(pack)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            else:
                yield pack, states
                return
            # Outside the handler: the traceback would keep the failed pass's tensors alive.
            self._free_memory(pack)
        for half in halve(pack):
            yield from self.encode_parts(half)

    def _free_memory(self, pack: Pack) -> None:
        if len(pack.lengths) == 1:
            raise RunError(
                f"out of memory on {self.device} with a single window of {pack.n_tokens} tokens; "
                "pass a smaller `max_length` or another `device`"
            )
        if self.device.type == "cuda":
            # Reference cycles may keep tensors of the failed pass.
            gc.collect()
            torch.cuda.empty_cache()
        with self._lock:
            self.n_halvings += 1

    @torch.inference_mode()
    def _run(self, pack: Pack) -> HiddenStates:
        limit_threads()
        # Under a caller's autocast, products in this thread would have another type than those in the lanes.
        with one_thread(self.device), torch.autocast(self.device.type, enabled=False):
            states = self._paths[self.path](pack)
            found: dict[int | str, torch.Tensor] = {layer: states[layer] for layer in self.layers}
            if self._with_pooler:
                found["pooler"] = self._pool(states[_LAST], pack.lengths)
        return HiddenStates(found)

    def _looked_up(self, pack: Pack) -> dict[int, torch.Tensor]:
        return {0: self.model(self._tensor(pack.input_ids))}

    def _packed(self, pack: Pack) -> dict[int, torch.Tensor]:
        filled = fill(pack) if self.device.type == "cpu" else pack
        inputs = {"input_ids": filled.input_ids, "position_ids": self._positions(filled)}
        if self.supports_type_ids:
            inputs["token_type_ids"] = filled.type_ids
        with packed(make_layout(filled.lengths, self.device)):
            found = self._forward({name: self._tensor(ids).unsqueeze(0) for name, ids in inputs.items()})
        return {layer: state[0, : pack.n_tokens] for layer, state in found.items()}

    def _by_length(self, pack: Pack) -> dict[int, torch.Tensor]:
        ids, type_ids = self._tensor(pack.input_ids), self._tensor(pack.type_ids)
        parts = defaultdict[int, list[torch.Tensor]](list)
        for start, n_windows, length in find_groups(pack.lengths):
            span = slice(start, start + n_windows * length)
            inputs = {"input_ids": ids[span].view(n_windows, length)}
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if self.supports_type_ids:
                inputs["token_type_ids"] = type_ids[span].view(n_windows, length)
            for layer, state in self._forward(inputs).items():
                parts[layer].append(state.reshape(-1, state.shape[-1]))
        return {layer: part[0] if len(part) == 1 else torch.cat(part) for layer, part in parts.items()}

    def _forward(self, inputs: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Run the model and return its layers, and `_LAST` for a pooler, each (rows, length, hidden)."""
        # Many models keep only the layers in the list, and free the others on the way; the others return all.
        found = self.model(**inputs, output_hidden_states=list(self.layers) if _TAKES_LISTS else True)
        last = {_LAST: found.last_hidden_state} if self._with_pooler else {}
        return {layer: found.hidden_states[layer] for layer in self.layers} | last

    def _positions(self, pack: Pack) -> IntArray:
        """Return the model's position of each token; a padding token in the text has `padding_idx`."""
        if self._padding_idx is None:
            return pack.position_ids
        counted = pack.input_ids != self._padding_idx
        # The tokens that are counted up to each one, and before each window.
        running = starts_of(counted)
        before = np.repeat(running[starts_of(pack.lengths)[:-1]], pack.lengths)
        positions: IntArray = (running[1:] - before) * counted + self._padding_idx
        return positions

    def _pool(self, last: torch.Tensor, lengths: IntArray) -> torch.Tensor:
        """Apply the model's pooler to the first token of each window; last: (n_tokens, hidden)."""
        first = last[self._tensor(starts_of(lengths)[:-1])]
        pooler = self.model.get_submodule("pooler")
        if isinstance(pooler, (nn.Linear, PackedLinear)):
            # In ALBERT and BigBird, the activation is beside it.
            names = [name for name in ("pooler_activation", "activation") if hasattr(self.model, name)]
            pooled = self.model.get_submodule(names[0])(pooler(first))
        else:
            pooled = pooler(first.unsqueeze(1))
        assert isinstance(pooled, torch.Tensor)
        return pooled

    def _tensor(self, ids: IntArray) -> torch.Tensor:
        return to_device(ids, self.device)


def pack_budget(n_tokens: int, max_batch_tokens: int, device: torch.device) -> int:
    """Return the most tokens of a pack: on a CPU fewer for a small corpus of `n_tokens`, so that every lane has work.

    The result does not depend on the number of lanes: a shard gives the same packs on any machine.
    """
    if device.type != "cpu":
        return max_batch_tokens
    return min(max_batch_tokens, max(_MIN_PACK_TOKENS, n_tokens // _MIN_PACKS))


@functools.cache
def lanes(n_lanes: int, _process: int) -> ThreadPoolExecutor:
    """Return the threads of lanes, which stay: a forked process has none of them.

    With new threads for each shard, oneDNN's kernels come to lie between the free memory of other threads: on MiniLM,
    130 MB more after 50 shards.
    """
    return ThreadPoolExecutor(n_lanes, "encode")


def encode_packs(encoder: PackEncoder, packs: Iterable[Pack]) -> Iterator[tuple[Pack, HiddenStates]]:
    """Yield each pack with its hidden states, in order; a pack that does not fit into memory comes in parts.

    `encoder.n_lanes` packs are encoded at once, and at most one more is finished and waits. Delete what was yielded
    before asking for the next: memory may not hold both.

    Raises:
        RunError: Memory does not suffice for a single window.
    """
    packs = iter(packs)
    first = list(itertools.islice(packs, 2))
    packs = itertools.chain(first, packs)
    # For a single pack, such as a query, starting threads would take more than a millisecond.
    if encoder.n_lanes == 1 or len(first) == 1:
        for pack in packs:
            yield from encoder.encode_parts(pack)
        return
    pending: deque[Future[list[tuple[Pack, HiddenStates]]]] = deque()
    threads = lanes(encoder.n_lanes, os.getpid())
    # The lanes use all cores: the caller, which pools the states, computes on one thread too.
    with one_thread(encoder.device):
        try:
            for pack in packs:
                pending.append(threads.submit(lambda pack: list(encoder.encode_parts(pack)), pack))
                if len(pending) > encoder.n_lanes:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        finally:
            # Not for those that were cancelled: packs of other callers may be ahead of them.
            wait([parts for parts in pending if not parts.cancel()])


def fill(pack: Pack) -> Pack:
    """Return the pack with further windows, which repeat its tokens, so that packs have few different sizes.

    oneDNN makes kernels for every number of rows when it first sees it. For a pack of MiniLM in bfloat16 on a Xeon
    with AMX that takes 22 ms, a third of the time of the pack; in float32, 4 ms.
    """
    n_more = -pack.n_tokens % (_FILLED_ROWS if pack.n_tokens > _FEW_ROWS else _FILLED_ROWS_OF_FEW)
    # Positions up to the longest window are those that the model has.
    longest = int(pack.lengths.max())
    more = np.minimum(longest, n_more - np.arange(0, n_more, longest))
    return Pack(
        input_ids=np.resize(pack.input_ids, pack.n_tokens + n_more),
        position_ids=np.concatenate([pack.position_ids, ragged_arange(np.zeros_like(more), more)]),
        type_ids=np.resize(pack.type_ids, pack.n_tokens + n_more),
        lengths=np.concatenate([pack.lengths, more]),
        windows=pack.windows,
    )


def halve(pack: Pack) -> tuple[Pack, Pack]:
    """Split a pack of two windows or more into two packs with about half of the windows each."""
    middle = len(pack.lengths) // 2
    cut = int(pack.lengths[:middle].sum())
    in_first = pack.copy_of < middle

    def part(windows: slice, tokens: slice, served: BoolArray) -> Pack:
        return Pack(
            input_ids=pack.input_ids[tokens],
            position_ids=pack.position_ids[tokens],
            type_ids=pack.type_ids[tokens],
            lengths=pack.lengths[windows],
            windows=pack.windows[windows],
            copies=pack.copies[served],
            copy_of=pack.copy_of[served] - (windows.start or 0),
        )

    return part(slice(middle), slice(cut), in_first), part(slice(middle, None), slice(cut, None), ~in_first)
