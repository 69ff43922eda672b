"""Scheduler of packs: on a CPU several packs are encoded at once, each by one thread, called a lane.

Two lanes of one thread are faster than one lane of two threads: the threads do not wait for each other after every
product, and when the tokenizer or the writer needs a core, only one pack waits. The bits of a pack do not depend on
the number of cores.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait

import torch

from bertfeat.devices import one_thread
from bertfeat.encoder.encoder import HiddenStates, PackEncoder
from bertfeat.records import Pack

# A small corpus is cut into this many packs, unless they would have fewer tokens than the second number. Twice as many,
# half as large, took 10 % more time in bfloat16 and 2 to 10 % in float32 (7,000 to 39,000 tokens, 2 cores).
_MIN_PACKS = 16
_MIN_PACK_TOKENS = 512


def pack_budget(n_tokens: int, max_batch_tokens: int, device: torch.device) -> int:
    """Return the most tokens of a pack: on a CPU fewer for a small corpus, so that every lane has work.

    The result does not depend on the number of lanes: a shard gives the same packs on any machine.

    Args:
        n_tokens: All tokens that will be encoded.
        max_batch_tokens: The limit that the user set.
        device: The device that computes.

    Examples:
        >>> pack_budget(1_000, 2048, torch.device("cpu")), pack_budget(20_000, 2048, torch.device("cpu"))
        (512, 1250)
    """
    if device.type != "cpu":
        return max_batch_tokens
    return min(max_batch_tokens, max(_MIN_PACK_TOKENS, n_tokens // _MIN_PACKS))


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
    lanes = encoder.lanes()
    # The lanes use all cores: the caller, which pools the states, computes on one thread too.
    with one_thread(encoder.device):
        try:
            for pack in packs:
                pending.append(lanes.submit(lambda pack: list(encoder.encode_parts(pack)), pack))
                if len(pending) > encoder.n_lanes:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        finally:
            # Not for those that were cancelled: packs of other callers may be ahead of them.
            wait([parts for parts in pending if not parts.cancel()])
