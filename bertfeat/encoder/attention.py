"""Attention over windows laid end to end, through transformers' own extension points.

The model sees one row of tokens, (1, n_tokens), with positions that restart in each window; `packed_attention` keeps
the windows apart. It reads their bounds from a context variable that the encoder sets around the forward pass,
because the models do not pass further arguments to it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from bertfeat.encoder.device_copies import to_device
from bertfeat.errors import ConfigError
from bertfeat.ragged import starts_of
from bertfeat.records import IntArray

NAME = "bertfeat_packed"

# Keywords of the models that change nothing in a forward pass over whole windows; any other must be None or 0.
_WITHOUT_EFFECT = frozenset({"position_ids", "output_hidden_states", "deterministic", "use_cache"})
# With AVX-512, torch's attention on a CPU takes this many scores at a time, and those that are left one by one, each in
# 7 ns. Where at least _MANY_LEFT are left, it is faster to fill up the keys to the next multiple and to mask these.
_SCORES_AT_ONCE = 16
_MANY_LEFT = {torch.float32: 10, torch.bfloat16: 5}
# Beyond this many keys, those that are left do not count.
_MAX_PADDED = 384
# Scores that are computed at a time where torch has no fused attention: 64 MB in float32.
_MAX_SCORES = 1 << 24


class Rules(NamedTuple):
    """The factor on the products of query and key, which tokens are seen, and the cap of the scores."""

    scaling: float | None
    causal: bool
    sliding_window: int | None
    softcap: float | None


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
    """Return the runs of equal length in `lengths`, int64 (n_windows,)."""
    firsts = np.concatenate(([0], np.flatnonzero(np.diff(lengths)) + 1))
    counts = np.diff(firsts, append=len(lengths))
    return tuple(map(Group, starts_of(lengths)[firsts].tolist(), counts.tolist(), lengths[firsts].tolist()))


def cumulative_lengths(lengths: IntArray, device: torch.device) -> torch.Tensor:
    """Return int32 (n_windows + 1,): 0, then the end of each window, as variable-length attention takes it."""
    return to_device(starts_of(lengths).astype(np.int32), device)


@functools.cache
def has_varlen(device: torch.device) -> bool:
    """Return whether torch's variable-length kernel runs on a device: on those of NVIDIA, from Ampere on."""
    # AMD's devices are named `cuda` too, and their numbers of capability mean something else.
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def fits_varlen(dtype: torch.dtype, head_size: int) -> bool:
    """Return whether torch's variable-length kernel takes heads of a type and size."""
    return dtype in (torch.float16, torch.bfloat16) and head_size % 8 == 0 and head_size <= 256


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
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each window; the signature is that of transformers' attention functions.

    The query is (1, heads, n_tokens, head_size); key and value are (1, key heads, n_tokens, head_size), and heads share
    the key heads if these are fewer. A token sees those less than `sliding_window` away. Scores are squeezed into
    (-softcap, softcap) by tanh.

    Returns:
        (1, n_tokens, heads, head_size), and None in the place of the weights.

    Raises:
        RuntimeError: The call is outside of `packed`, or has a mask.
        ConfigError: The model passes something else that changes the result.
    """
    layout = _LAYOUT.get()
    if layout is None or attention_mask is not None:
        raise RuntimeError("packed attention runs inside `packed(layout)` only, and takes no mask")
    for name, what in others.items():
        if name not in _WITHOUT_EFFECT and what is not None and (isinstance(what, torch.Tensor) or what != 0):
            raise ConfigError(f"{type(module).__name__} asks for attention with `{name}`, which is not supported")
    causal = bool(getattr(module, "is_causal", False)) if is_causal is None else is_causal
    # (n_tokens, heads, head_size) is the models' own layout, so that all of this are views.
    query, key, value = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    if layout.cu_seqlens is not None and softcap is None and fits_varlen(query.dtype, query.shape[-1]):
        from torch.nn.attention.varlen import varlen_attn

        bounds, longest = layout.cu_seqlens, layout.max_length
        # The tokens that are seen to the left, and to the right; -1 is all of them.
        reach = -1 if sliding_window is None else sliding_window - 1
        mixed = varlen_attn(
            *(query, key, value, bounds, bounds, longest, longest),
            scale=scaling,
            window_size=(reach, 0 if causal else reach),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        assert isinstance(mixed, torch.Tensor)
    else:
        mixed = _grouped(query, key, value, layout.groups, Rules(scaling, causal, sliding_window, softcap))
    return mixed.unsqueeze(0), None


def _grouped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, groups: tuple[Group, ...], rules: Rules
) -> torch.Tensor:
    """Attend group by group: windows of one length are a batch without padding. All (n_tokens, heads, head_size)."""
    attend = _fused if rules.softcap is None else _softcapped
    mixed = []
    for start, n_windows, length in groups:
        stop = start + n_windows * length
        query_part, key_part, value_part = (
            states[start:stop].view(n_windows, length, *states.shape[1:]).transpose(1, 2)
            for states in (query, key, value)
        )
        mixed.append(attend(query_part, key_part, value_part, rules).transpose(1, 2).flatten(0, 1))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rules: Rules) -> torch.Tensor:
    """Attend with torch's own attention: (n_windows, heads, length, head_size)."""
    mask, length = None, query.shape[2]
    if rules.sliding_window is not None and length > rules.sliding_window:
        places = torch.arange(length, dtype=torch.int32, device=query.device)
        mask = _seen(places, places, rules)
    elif not rules.causal and (n_more := _keys_to_fill(length, query)):
        # Before the transposition, the copies are whole blocks of memory.
        key, value = (pad(part.transpose(1, 2), (0, 0, 0, 0, 0, n_more)).transpose(1, 2) for part in (key, value))
        mask = query.new_zeros(1, 1, 1, length + n_more)
        mask[..., length:] = -torch.inf
    return scaled_dot_product_attention(
        *(query, key, value),
        attn_mask=mask,
        is_causal=rules.causal and mask is None,
        scale=rules.scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _keys_to_fill(length: int, states: torch.Tensor) -> int:
    """Return how many masked keys make attention over `length` keys faster."""
    left = length % _SCORES_AT_ONCE
    if states.device.type != "cpu" or length > _MAX_PADDED or left < _MANY_LEFT.get(states.dtype, _SCORES_AT_ONCE):
        return 0
    return _SCORES_AT_ONCE - left if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 0


def _softcapped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rules: Rules) -> torch.Tensor:
    """Attend with capped scores, some queries at a time, so that memory does not grow with the square of the length."""
    assert rules.softcap is not None
    n_windows, n_heads, length, head_size = query.shape
    key, value = (states.repeat_interleave(n_heads // states.shape[1], dim=1) for states in (key, value))
    scaling = head_size**-0.5 if rules.scaling is None else rules.scaling
    places = torch.arange(length, dtype=torch.int32, device=query.device)
    mixed = []
    for rows in torch.split(places, max(1, _MAX_SCORES // (n_windows * n_heads * length))):
        scores = query[:, :, rows] @ key.transpose(2, 3) * (scaling / rules.softcap)
        scores = (scores.tanh() * rules.softcap).masked_fill(~_seen(rows, places, rules), -torch.inf)
        mixed.append(scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value)
    return torch.cat(mixed, dim=2)


def _seen(rows: torch.Tensor, places: torch.Tensor, rules: Rules) -> torch.Tensor:
    """Return bool (n_rows, n_places), True where the token of a row sees that at a place."""
    distance = rows[:, None] - places[None, :]
    seen = distance >= 0 if rules.causal else torch.ones_like(distance, dtype=torch.bool)
    if rules.sliding_window is None:
        return seen
    return seen & ((distance if rules.causal else distance.abs_()) < rules.sliding_window)


def can_be_packed(model: Any) -> bool:
    """Return whether a model of transformers takes positions and attention functions of others."""
    own = model.config._attn_implementation
    takes = "position_ids" in inspect.signature(model.forward).parameters and switch(model, NAME)
    switch(model, own)
    return takes


def switch(model: Any, name: str) -> bool:
    """Make a model use an attention implementation: `NAME`, or one of transformers; return whether it can.

    No function for masks is registered for `NAME`, so that transformers makes no mask.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    with contextlib.suppress(ValueError):
        model.set_attn_implementation(name)
    return bool(model.config._attn_implementation == name)
