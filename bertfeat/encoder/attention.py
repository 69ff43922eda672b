"""Attention over windows laid end to end, through transformers' own extension points.

The model sees one row of tokens, (1, n_tokens), with positions that restart in each window; `packed_attention` keeps
the windows apart. It reads their bounds from a context variable that the encoder sets around the forward pass,
because the models do not pass further arguments to it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from bertfeat.encoder.transfers import to_device
from bertfeat.records import IntArray

NAME = "bertfeat_packed"

_HALF = (torch.float16, torch.bfloat16)
_MAX_HEAD_SIZE = 256


class Group(NamedTuple):
    """Consecutive windows of one length: the first token, how many windows, tokens in each."""

    start: int
    n_windows: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of the windows of a pack.

    `cu_seqlens` is int32 (n_windows + 1,) on the device: 0, then the end of each window; None where the device has no
    variable-length kernel.
    """

    groups: tuple[Group, ...]
    max_length: int
    cu_seqlens: torch.Tensor | None


def find_groups(lengths: IntArray) -> tuple[Group, ...]:
    """Return the runs of equal length in `lengths`, int64 (n_windows,).

    Examples:
        >>> find_groups(np.array([5, 5, 3]))
        (Group(start=0, n_windows=2, length=5), Group(start=10, n_windows=1, length=3))
    """
    firsts = np.concatenate(([0], np.flatnonzero(np.diff(lengths)) + 1))
    counts = np.diff(np.concatenate((firsts, [len(lengths)])))
    runs = lengths[firsts]
    starts = np.concatenate(([0], np.cumsum(runs * counts)[:-1]))
    return tuple(map(Group, starts.tolist(), counts.tolist(), runs.tolist()))


def cumulative_lengths(lengths: IntArray, device: torch.device) -> torch.Tensor:
    """Return int32 (n_windows + 1,): 0, then the end of each window, as variable-length attention takes it."""
    return to_device(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32), device)


@functools.cache
def has_varlen(device: torch.device) -> bool:
    """Tell whether torch's variable-length kernel runs on a device: on CUDA, from Ampere on."""
    return (
        device.type == "cuda"
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def fits_varlen(dtype: torch.dtype, head_size: int) -> bool:
    """Tell whether torch's variable-length kernel takes heads of a type and size."""
    return dtype in _HALF and head_size % 8 == 0 and head_size <= _MAX_HEAD_SIZE


def make_layout(lengths: IntArray, device: torch.device) -> Layout:
    """Describe a pack whose windows have these lengths, int64 (n_windows,), for attention on `device`."""
    bounds = cumulative_lengths(lengths, device) if has_varlen(device) else None
    return Layout(find_groups(lengths), int(lengths.max()), bounds)


_LAYOUT: ContextVar[Layout | None] = ContextVar("bertfeat_layout", default=None)


@contextlib.contextmanager
def packed(layout: Layout) -> Iterator[None]:
    """Keep the attention of the forward pass inside to the windows of `layout`."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each window; the signature is that of transformers' attention functions.

    Args:
        module: The attention module; its `is_causal` is used where the argument is None.
        query: (1, heads, n_tokens, head_size).
        key: (1, key heads, n_tokens, head_size); the heads share the key heads if these are fewer.
        value: Like `key`.
        attention_mask: None, since packs have no padding.
        scaling: Factor on the products of query and key; None is head_size ** -0.5.
        is_causal: Tokens see earlier tokens only.
        sliding_window: A token sees those less than this far away.

    Returns:
        (1, n_tokens, heads, head_size), and None in the place of the weights.

    Raises:
        RuntimeError: The call is outside of `packed`, or has a mask.
    """
    layout = _LAYOUT.get()
    if layout is None or attention_mask is not None:
        raise RuntimeError("packed attention runs inside `packed(layout)` only, and takes no mask")
    causal = bool(getattr(module, "is_causal", False)) if is_causal is None else is_causal
    # (n_tokens, heads, head_size) is the models' own layout, so that all of this are views.
    query, key, value = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    if layout.cu_seqlens is not None and fits_varlen(query.dtype, query.shape[-1]):
        from torch.nn.attention.varlen import varlen_attn

        bounds, longest = layout.cu_seqlens, layout.max_length
        mixed = varlen_attn(
            *(query, key, value, bounds, bounds, longest, longest),
            scale=scaling,
            window_size=varlen_window(causal, sliding_window),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        assert isinstance(mixed, torch.Tensor)
    else:
        mixed = _grouped(query, key, value, layout.groups, scaling, causal, sliding_window)
    return mixed.unsqueeze(0), None


def _grouped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    groups: tuple[Group, ...],
    scaling: float | None,
    causal: bool,
    sliding_window: int | None,
) -> torch.Tensor:
    """Attend group by group: windows of one length are a batch without padding. All (n_tokens, heads, head_size)."""
    shared = query.shape[1] != key.shape[1]
    mixed = []
    for start, n_windows, length in groups:
        stop = start + n_windows * length
        mask = _band(length, sliding_window, causal, query.device)
        part = scaled_dot_product_attention(
            query[start:stop].view(n_windows, length, *query.shape[1:]).transpose(1, 2),
            key[start:stop].view(n_windows, length, *key.shape[1:]).transpose(1, 2),
            value[start:stop].view(n_windows, length, *value.shape[1:]).transpose(1, 2),
            attn_mask=mask,
            is_causal=causal and mask is None,
            scale=scaling,
            enable_gqa=shared,
        )
        mixed.append(part.transpose(1, 2).flatten(0, 1))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _band(length: int, sliding_window: int | None, causal: bool, device: torch.device) -> torch.Tensor | None:
    """Return bool (length, length), True where a token sees another; None where a token sees all others."""
    if sliding_window is None or length <= sliding_window:
        return None
    places = torch.arange(length, device=device)
    distance = places[:, None] - places[None, :]
    band = distance.abs() < sliding_window
    return band & (distance >= 0) if causal else band


def varlen_window(causal: bool, sliding_window: int | None) -> tuple[int, int]:
    """Return how many tokens to the left and right are seen, both ends included; -1 is all of them.

    Examples:
        >>> varlen_window(False, None), varlen_window(True, None), varlen_window(False, 65)
        ((-1, -1), (-1, 0), (64, 64))
    """
    reach = -1 if sliding_window is None else sliding_window - 1
    return reach, 0 if causal else reach


def register() -> None:
    """Register `bertfeat_packed` with transformers as an attention implementation; a second call changes nothing.

    No function for masks is registered, so that transformers makes no mask.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
