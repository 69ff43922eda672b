"""Packs through the encoder, several at a time on a CPU: each lane is a thread that computes a whole pack alone.

Two lanes of one thread are faster than one of two: nobody waits for the other at the end of every product, and when
the tokenizer or the writer needs a core, one pack waits and not all of them. And since a pack is always one thread's
work, its bits do not depend on how many cores there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from bertfeat.devices import one_thread
from bertfeat.encoder.encoder import Encoder, HiddenStates
from bertfeat.records import Pack

# Small corpora are cut into at least so many packs, as far as these keep the matrix products busy.
_MIN_PACKS = 32
_MIN_PACK_TOKENS = 256


def pack_budget(n_tokens: int, max_batch_tokens: int, device: torch.device) -> int:
    """Return the tokens of a pack: fewer on a CPU when there are few, so that every lane has its share.

    It depends on the tokens alone and not on the lanes, so that the same shard gives the same packs anywhere.

    Args:
        n_tokens: All tokens that will be encoded.
        max_batch_tokens: The most that a pack may have.
        device: Where packs are computed.

    Example:
        >>> pack_budget(1_000, 2048, torch.device("cpu")), pack_budget(40_000, 2048, torch.device("cpu"))
        (256, 1250)
    """
    if device.type != "cpu":
        return max_batch_tokens
    return min(max_batch_tokens, max(_MIN_PACK_TOKENS, n_tokens // _MIN_PACKS))


def encode_packs(encoder: Encoder, packs: Iterable[Pack]) -> Iterator[tuple[Pack, HiddenStates]]:
    """Yield each pack with its hidden states, in order; of a pack that memory does not hold, its parts.

    `encoder.n_lanes` packs are encoded at once, and at most one more is finished and waits to be fetched; meanwhile the
    calling thread computes alone, too. Let go of what was yielded before asking for the next: memory need not hold
    both.

    Raises:
        RunError: Memory does not suffice for a single window.
    """
    if encoder.n_lanes == 1:
        for pack in packs:
            yield from encoder.encode_parts(pack)
        return
    pending: deque[Future[list[tuple[Pack, HiddenStates]]]] = deque()
    # The lanes have the cores: threads that the caller called for help, to pool what it gets, would only fight them.
    with one_thread(encoder.device), ThreadPoolExecutor(encoder.n_lanes, "encode") as lanes:
        try:
            for pack in packs:
                pending.append(lanes.submit(_all_parts, encoder, pack))
                if len(pending) > encoder.n_lanes:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
        finally:
            for parts in pending:
                parts.cancel()


def _all_parts(encoder: Encoder, pack: Pack) -> list[tuple[Pack, HiddenStates]]:
    return list(encoder.encode_parts(pack))
