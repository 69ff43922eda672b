"""Reference of torch's variable-length attention for the CPU, which has no kernel for it.

With it, what is written for a CUDA device runs on a machine without one: slowly, and with torch's own checks of the
arguments. Queries see the keys of their own window from `window_size[0]` to the left to `window_size[1]` to the right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import varlen

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    enable_gqa: bool = False,
    *others: Any,
) -> Three:
    """Return the output, (n_tokens, heads, head_size), and two results that inference does not use."""
    assert cu_seq_q.dtype is torch.int32
    assert max_q == max_k
    assert cu_seq_k is not None
    assert torch.equal(cu_seq_q, cu_seq_k)
    assert enable_gqa or query.shape[1] == key.shape[1]
    assert int(cu_seq_q.diff().max()) <= max_q
    assert query.dtype in (torch.float16, torch.bfloat16)
    assert query.shape[2] % 8 == 0
    assert max(states.stride(2) for states in (query, key, value)) == 1
    assert all(other is None for other in others)
    left, right = window_size or [-1, -1]
    if is_causal:
        right = 0
    places = torch.arange(len(query))
    # Of windows without tokens, the last one that begins at a place holds it.
    window = torch.bucketize(places, cu_seq_q[1:].contiguous(), right=True)
    distance = places[None, :] - places[:, None]
    seen = window[:, None] == window[None, :]
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    shared = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(shared, dim=1) for states in (key, value))
    mixed = torch.nn.functional.scaled_dot_product_attention(
        *(states.transpose(0, 1).float() for states in (query, key, value)), attn_mask=seen, scale=scale
    )
    # An operator's result may not be a view of its inputs.
    result = torch.empty_like(query).copy_(mixed.transpose(0, 1))
    return (
        result,
        query.new_zeros((query.shape[1], len(query)), dtype=torch.float32),
        torch.zeros(2, dtype=torch.uint64),
    )


def register_on_cpu() -> None:
    """Let `varlen_attn` run on the CPU, in this process."""
    operator: Any = varlen._varlen_attn
    operator.register_kernel("cpu")(_attend)
