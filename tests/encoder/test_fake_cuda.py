"""The CUDA path on a machine without a device: fake tensors, and a reference of the kernel on the CPU.

tests/extraction/test_gpu.py runs the path itself where there is a device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.attention.varlen

import bertfeat
from bertfeat.encoder import attention
from bertfeat.encoder.attention import make_layout, packed, packed_attention
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.loading import load_encoder
from bertfeat.encoder.torch_modules import keep_float32
from tests.support.fake_cuda import CUDA, fake_cuda
from tests.support.families import build_model, random_pack

CPU = torch.device("cpu")
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


@pytest.mark.parametrize("pooling", ["mean", "cls", "model", "weightedmean"])
def test_sentences_stay_on_the_device(pooling: str) -> None:
    with fake_cuda() as calls:
        vectors = bertfeat.Encoder("minilm", device="cuda:0", pooling=pooling).encode(TEXTS)
    assert vectors.shape == (4, 384)
    assert calls["fetched"] == [(CUDA, torch.float32)]
    # Each of the six blocks attends to the one pack: three texts, and four windows of the long one.
    assert len(calls["attended"]) == 6
    (query, _, _, bounds, _, longest, _), options = calls["attended"][0]
    assert (query.device, query.dtype, query.shape[1:]) == (CUDA, torch.bfloat16, (12, 32))
    assert (bounds.device, bounds.dtype, longest) == (CUDA, torch.int32, 256 if pooling == "model" else 512)
    assert options == {"scale": 32**-0.5, "window_size": (-1, -1), "enable_gqa": False}


@pytest.mark.parametrize("settings", [{"compute_dtype": "float32"}, {"word_pooling": "mean", "combine": "mean"}])
def test_words_and_tokens_stay_on_the_device(settings: dict[str, str]) -> None:
    with fake_cuda() as calls:
        made = bertfeat.Encoder("minilm", device="cuda:0", layers="last4", **settings)
        assert len(made.words(TEXTS)) > 900
        assert len(made.tokens(TEXTS)) > 900
    assert {device for device, _ in calls["fetched"]} == {CUDA}
    # The kernel takes half precision only.
    assert bool(calls["attended"]) == ("compute_dtype" not in settings)


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
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", kernel)
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
    folder = build_model(model_type, tmp_path / "model", **CONVOLVING[model_type])
    made = load_encoder(open_checkpoint(str(folder)), [2])
    pack = random_pack([9, 8, 8, 7, 3])
    expected = made.encode(pack).layer(2)
    keep_float32(made._model)
    convolve, allowed = torch.ops.aten._convolution.default, []

    def noted(*arguments: Any) -> torch.Tensor:
        allowed.append(arguments[12])
        return convolve(*arguments)

    monkeypatch.setattr(torch.ops.aten._convolution, "default", noted)
    assert torch.equal(made.encode(pack).layer(2), expected)
    assert set(allowed) == {False}


@pytest.mark.promise("equal")
@pytest.mark.parametrize(("dtype", "refuses"), [(torch.float32, True), (torch.bfloat16, False)])
def test_convolutions_on_a_device_refuse_tf32_in_float32(dtype: torch.dtype, refuses: bool, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(build_model("squeezebert", tmp_path / "model")))
    with fake_cuda():
        made = load_encoder(checkpoint, [2], device="cuda:0", compute_dtype=dtype)
    layers = [module for module in made._model.modules() if isinstance(module, torch.nn.Conv1d)]
    assert {"forward" in vars(layer) for layer in layers} == {refuses}
