"""One text at a time, in the manner of NeuroX's extraction: no padding, and no batch either."""

from __future__ import annotations

from benchmarks.speed.peers import padded


class Peer(padded.Peer):
    """transformers in corpus order with batches of one."""

    BATCHES = (1,)
