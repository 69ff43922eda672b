"""The CUDA path on a machine without a device: fake tensors, and a reference of the kernel on the CPU.

A fake tensor knows its device, shape and type, and holds no values. An operator that mixes the device with the CPU, or
that would wait for a value of the device, raises an error.
tests/extraction/test_gpu.py runs the path itself where there is a device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.attention import varlen
from torch.overrides import TorchFunctionMode

import bertfeat
from bertfeat.encoder import attention, loading
from bertfeat.encoder.attention import make_layout, packed, packed_attention
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.comparison import Way
from bertfeat.encoder.encoder import PackEncoder
from bertfeat.encoder.loading import load_encoder
from bertfeat.encoder.torch_modules import keep_float32
from bertfeat.extraction import flow, level_tables, resolution
from tests.support.families import build_model, random_pack, reference_encoder

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
TEXTS = ["a text", "another text, of more words", " ", "many more words " * 300]


def kernel(query, key, value, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa):  # type: ignore[no-untyped-def]
    """Stand for `varlen_attn`: queries see the keys of their own window that are not too far to either side."""
    assert cu_q.dtype is torch.int32
    assert torch.equal(cu_q, cu_k)
    assert max_q == max_k == int(cu_q.diff().max())
    assert query.dtype is torch.bfloat16
    assert enable_gqa == (query.shape[1] != key.shape[1])
    places = torch.arange(len(query))
    window = torch.bucketize(places, cu_q[1:], right=True)
    distance = places[None, :] - places[:, None]
    left, right = (reach if reach >= 0 else len(query) for reach in window_size)
    seen = (window[:, None] == window[None, :]) & (distance >= -left) & (distance <= right)
    states = (part.transpose(0, 1).float() for part in (query, key, value))
    mixed = torch.nn.functional.scaled_dot_product_attention(*states, attn_mask=seen, scale=scale, enable_gqa=True)
    return mixed.transpose(0, 1).bfloat16()


class FakeFetches:
    """Stands for `Fetches`: records what is fetched, and gives zeros."""

    fetched: list[tuple[torch.device, torch.dtype]]

    def __init__(self, device: torch.device) -> None:
        assert device == CUDA

    def fetch(self, tensor: torch.Tensor) -> np.ndarray:
        """Return zeros of the tensor's shape."""
        self.fetched.append((tensor.device, tensor.dtype))
        return np.zeros(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    def wait(self) -> dict[str, float]:
        """Wait for nothing."""
        return {}


class _Indexing(TorchFunctionMode):
    """Indexing through operators: Python's own asks for the device's driver."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function is torch.Tensor.__getitem__ and isinstance(arguments[0], FakeTensor):
            return _at(*arguments)
        return function(*arguments, **(options or {}))


def _at(tensor: torch.Tensor, places: Any) -> torch.Tensor:
    places = places if isinstance(places, tuple) else (places,)
    if Ellipsis in [place for place in places if not isinstance(place, torch.Tensor)]:
        cut = next(number for number, place in enumerate(places) if place is Ellipsis)
        n_rest = tensor.ndim - sum(place is not None and place is not Ellipsis for place in places)
        places = (*places[:cut], *[slice(None)] * n_rest, *places[cut + 1 :])
    dim, chosen = 0, []
    for place in places:
        if place is None:
            tensor, dim = tensor.unsqueeze(dim), dim + 1
            chosen.append(None)
        elif isinstance(place, int):
            tensor = tensor.select(dim, place)
        elif isinstance(place, slice):
            tensor, dim = torch.ops.aten.slice(tensor, dim, place.start, place.stop, place.step or 1), dim + 1
            chosen.append(None)
        else:
            chosen.append(torch.as_tensor(place))
            dim += 1
    return tensor if all(place is None for place in chosen) else torch.ops.aten.index(tensor, chosen)


@contextlib.contextmanager
def fake_cuda() -> Iterator[dict[str, list[Any]]]:
    """Have one fake CUDA device, with the variable-length kernel; yields what is fetched and attended."""
    calls: dict[str, list[Any]] = {"fetched": [], "attended": []}
    attend = varlen.varlen_attn

    def counted(*arguments: Any, **options: Any) -> Any:
        calls["attended"].append((arguments, options))
        return attend(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True), _Indexing():
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        patch.setattr(varlen, "varlen_attn", counted)
        patch.setattr(attention, "has_varlen", lambda device: device.type == "cuda")
        # Tensors without values cannot be compared.
        paths = {"bert": "packed"}
        patch.setattr(
            loading, "read_kept", lambda _, config, *how: Way(paths.get(config["model_type"], "equal-length"), how[-2])
        )
        patch.setattr(resolution, "planned_kind", lambda device, *, elsewhere: "cuda")
        patch.setattr(flow, "resolve_device", lambda device: (CUDA,))
        patch.setattr(level_tables, "gathering_device", lambda device, n_bytes: device)
        patch.setattr(FakeFetches, "fetched", calls["fetched"], raising=False)
        patch.setattr(flow, "Fetches", FakeFetches)
        yield calls


@pytest.mark.parametrize("pooling", ["mean", "cls", "model", "weightedmean"])
def test_sentences_stay_on_the_device(pooling: str) -> None:
    with fake_cuda() as calls:
        made = bertfeat.Encoder("minilm", device="cuda:0", compute_dtype="bfloat16", pooling=pooling)
        vectors = made.encode(TEXTS)
    assert vectors.shape == (4, 384)
    assert calls["fetched"] == [(CUDA, torch.float32)]
    # Each of the six blocks attends to the one pack: three texts, and four windows of the long one.
    assert len(calls["attended"]) == 6
    (query, _, _, bounds, _, longest, _), options = calls["attended"][0]
    assert (query.device, query.dtype, query.shape[1:]) == (CUDA, torch.bfloat16, (12, 32))
    assert (bounds.device, bounds.dtype, longest) == (CUDA, torch.int32, 256 if pooling == "model" else 512)
    assert options == {"scale": 32**-0.5, "window_size": (-1, -1), "enable_gqa": False}


@pytest.mark.parametrize(("dtype", "settings"), [("float32", {}), ("bfloat16", {"word_pooling": "mean"})])
def test_words_and_tokens_stay_on_the_device(dtype: str, settings: dict[str, str]) -> None:
    with fake_cuda() as calls:
        made = bertfeat.Encoder("minilm", device="cuda:0", layers="last4", compute_dtype=dtype, **settings)
        assert len(made.words(TEXTS)) > 900
        assert len(made.tokens(TEXTS)) > 900
    assert {device for device, _ in calls["fetched"]} == {CUDA}
    # The kernel takes half precision only.
    assert bool(calls["attended"]) == (dtype == "bfloat16")


@pytest.mark.numeric
@pytest.mark.parametrize(("causal", "sliding_window"), [(False, None), (True, None), (False, 3), (True, 3)])
@pytest.mark.parametrize("n_key_heads", [4, 2])
def test_the_kernel_is_asked_for_what_the_cpu_computes(
    causal: bool, sliding_window: int | None, n_key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    lengths = np.array([6, 6, 4, 1])
    query = torch.randn(1, 4, 17, 8).bfloat16()
    key, value = torch.randn(2, 1, n_key_heads, 17, 8).bfloat16()
    rules = {"is_causal": causal, "sliding_window": sliding_window}
    with packed(make_layout(lengths, CPU)):
        expected, _ = packed_attention(torch.nn.Module(), query.float(), key.float(), value.float(), None, **rules)
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    monkeypatch.setattr(attention, "has_varlen", lambda device: True)
    with packed(make_layout(lengths, CPU)):
        found, _ = packed_attention(torch.nn.Module(), query, key, value, None, **rules)
    # One rounding to bfloat16.
    torch.testing.assert_close(found.float(), expected, rtol=2**-8, atol=1e-6)


@pytest.mark.numeric
def test_under_autocast_the_vectors_are_the_same() -> None:
    made = bertfeat.Encoder("minilm")
    expected = made.encode(TEXTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert np.array_equal(made.encode(TEXTS), expected, equal_nan=True)
        assert np.allclose(made.encode(TEXTS[:1]), expected[:1], atol=1e-6)


CONVOLVING = {"convbert": {}, "deberta-v2": {"conv_kernel_size": 3, "conv_act": "gelu"}, "yoso": {"conv_window": 3}}


@pytest.mark.numeric
@pytest.mark.parametrize("model_type", CONVOLVING)
def test_convolutions_that_refuse_tf32_give_the_same_bits(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = reference_encoder(build_model(model_type, tmp_path / "model", **CONVOLVING[model_type]))
    made = PackEncoder(model, "equal-length", [2])
    pack = random_pack([9, 8, 8, 7, 3])
    expected = made.encode(pack).layer(2)
    keep_float32(model)
    convolve, allowed = torch.ops.aten._convolution.default, []

    def noted(*arguments: Any) -> torch.Tensor:
        allowed.append(arguments[12])
        return convolve(*arguments)

    monkeypatch.setattr(torch.ops.aten._convolution, "default", noted)
    assert torch.equal(made.encode(pack).layer(2), expected)
    assert set(allowed) == {False}


@pytest.mark.promise("equal")
@pytest.mark.parametrize(("dtype", "refuses"), [(torch.float32, True), (torch.bfloat16, False)])
def test_convolutions_on_a_device_refuse_tf32_in_float32(
    dtype: torch.dtype, refuses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, asked = open_checkpoint(str(build_model("squeezebert", tmp_path / "model"))), Mock()
    monkeypatch.setattr(loading, "keep_float32", asked)
    with fake_cuda():
        load_encoder(checkpoint, [2], device="cuda:0", compute_dtype=dtype)
    assert asked.called == refuses
