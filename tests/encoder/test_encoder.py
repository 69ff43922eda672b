"""The encoder: lack of memory, half precision, and attention within windows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from bertfeat.encoder import attention
from bertfeat.encoder.attention import (
    make_layout,
    packed,
    packed_attention,
)
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.encoder import halve
from bertfeat.encoder.loading import load_encoder
from bertfeat.errors import ConfigError, RunError, is_out_of_memory
from bertfeat.text.packing import pack_windows
from bertfeat.text.spans import WindowLimits
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.windows import cut_windows
from tests.support.fakes import texts
from tests.support.families import HIDDEN, N_LAYERS, build_model, random_pack
from tests.support.places import ROOT

pytestmark = pytest.mark.numeric

LAYERS = range(N_LAYERS + 1)


@pytest.fixture(scope="module")
def checkpoint(good: Path) -> Checkpoint:
    return open_checkpoint(str(good))


@pytest.fixture(scope="module")
def xlnet(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(build_model("xlnet", tmp_path_factory.mktemp("xlnet"))))


class TestOutOfMemory:
    @pytest.mark.parametrize(
        "error",
        [
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            RuntimeError("MPS backend out of memory"),
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            MemoryError(),
        ],
    )
    def test_halves_until_it_fits(
        self, checkpoint: Checkpoint, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        encoder = load_encoder(checkpoint, LAYERS, with_pooler=True)
        pack = random_pack([9, 8, 8, 7, 7, 2, 1])
        expected = encoder.encode(pack)
        forward = encoder._forward

        def small_forward(inputs: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
            if inputs["input_ids"].numel() > 24:
                raise error
            return forward(inputs)

        monkeypatch.setattr(encoder, "_forward", small_forward)
        states = encoder.encode(pack)
        # 42 tokens -> 25 (9 and 16) and 17, which is filled up to 24
        assert encoder.n_halvings == 2
        for layer in LAYERS:
            torch.testing.assert_close(states.layer(layer), expected.layer(layer))
        torch.testing.assert_close(states.pooler(), expected.pooler())

    @pytest.mark.parametrize("model", ["checkpoint", "xlnet"])
    def test_single_window_that_does_not_fit(
        self, model: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        encoder = load_encoder(request.getfixturevalue(model), [1])

        def no_memory(inputs: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
            raise torch.OutOfMemoryError("out of memory")

        monkeypatch.setattr(encoder, "_forward", no_memory)
        with pytest.raises(RunError, match="out of memory on cpu with a single window of 9 tokens") as caught:
            encoder.encode(random_pack([9, 8]))
        assert caught.value.exit_code == 3

    def test_other_errors_pass(self, checkpoint: Checkpoint) -> None:
        encoder = load_encoder(checkpoint, [1])
        with pytest.raises((IndexError, RuntimeError), match="range"):
            encoder.encode(random_pack([5, 4], least_id=10_000, most_id=10_001))
        assert encoder.n_halvings == 0
        assert not is_out_of_memory(RuntimeError("shape mismatch"))
        assert not is_out_of_memory(ValueError("out of memory"))

    def test_halves_hold_the_windows(self) -> None:
        pack = random_pack([9, 8, 7])
        pack = dataclasses.replace(pack, copies=np.array([7, 8, 9]), copy_of=np.array([2, 0, 1]))
        first, second = halve(pack)
        assert (first.copies.tolist(), first.copy_of.tolist()) == ([8], [0])
        assert (second.copies.tolist(), second.copy_of.tolist()) == ([7, 9], [1, 0])
        assert (first.lengths.tolist(), second.lengths.tolist()) == ([9], [8, 7])
        assert (first.windows.tolist(), second.windows.tolist()) == ([0], [1, 2])
        for name in ("input_ids", "position_ids", "type_ids"):
            assert [*getattr(first, name), *getattr(second, name)] == getattr(pack, name).tolist()


class TestFill:
    def test_states_are_those_of_the_pack_alone(self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        encoder, pack = load_encoder(checkpoint, LAYERS, with_pooler=True), random_pack([9, 8, 4])
        states = encoder.encode(pack)
        monkeypatch.setattr("bertfeat.encoder.encoder.fill", lambda pack: pack)
        expected = encoder.encode(pack)
        for layer in LAYERS:
            assert states.layer(layer).shape == (21, HIDDEN)
            torch.testing.assert_close(states.layer(layer), expected.layer(layer), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(states.pooler(), expected.pooler(), atol=1e-5, rtol=1e-5)


class TestHiddenStates:
    def test_layers_out_of_range(self, checkpoint: Checkpoint) -> None:
        for layers in ([], [5], [-1]):
            with pytest.raises(ConfigError, match="not in 0 to 4"):
                load_encoder(checkpoint, layers)


class TestAttention:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("sliding_window", [None, 1, 3, 20])
    @pytest.mark.parametrize("n_key_heads", [4, 2])
    def test_equals_arithmetic(self, causal: bool, sliding_window: int | None, n_key_heads: int) -> None:
        torch.manual_seed(0)
        lengths = np.array([6, 6, 4, 1])
        query = torch.randn(1, 4, 17, 8)
        key, value = torch.randn(2, 1, n_key_heads, 17, 8)
        with packed(make_layout(lengths, torch.device("cpu"))):
            mixed, weights = packed_attention(
                torch.nn.Module(), query, key, value, None, is_causal=causal, sliding_window=sliding_window
            )
        assert weights is None
        assert mixed.shape == (1, 17, 4, 8)
        window = torch.from_numpy(np.repeat(np.arange(4), lengths))
        distance = torch.arange(17)[:, None] - torch.arange(17)[None, :]
        seen = window[:, None] == window[None, :]
        if causal:
            seen &= distance >= 0
        if sliding_window is not None:
            seen &= distance.abs() < sliding_window
        key, value = (states.repeat_interleave(4 // n_key_heads, dim=1) for states in (key, value))
        scores = (query @ key.transpose(2, 3) / 8**0.5).masked_fill(~seen, -torch.inf)
        torch.testing.assert_close(mixed, (scores.softmax(-1) @ value).transpose(1, 2))

    @pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
    def test_filled_up_keys_are_not_seen(
        self, dtype: torch.dtype, atol: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(attention, "_has_avx512", lambda: True)
        torch.manual_seed(0)
        for length in (10, 12, 31, 61, 300):
            query = torch.randn(1, 4, 2 * length, 32).to(dtype)
            key, value = torch.randn(2, 1, 2, 2 * length, 32).to(dtype)
            assert attention._keys_to_fill(length, query) == -length % 16
            with packed(make_layout(np.array([length, length]), torch.device("cpu"))):
                mixed, _ = packed_attention(torch.nn.Module(), query, key, value, None)
            query, key, value = (states.float().view(1, -1, 2, length, 32) for states in (query, key, value))
            key, value = (states.repeat_interleave(2, dim=1) for states in (key, value))
            expected = (query @ key.transpose(3, 4) / 32**0.5).softmax(-1) @ value
            expected = expected.flatten(2, 3).transpose(1, 2)
            torch.testing.assert_close(mixed.float(), expected, atol=atol, rtol=0)

    def test_equals_arithmetic_with_capped_scores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Queries are done a few at a time, and causal attention over a window is the same as over all tokens."""
        monkeypatch.setattr(attention, "_MAX_SCORES", 4 * 9 * 2)
        torch.manual_seed(0)
        query, key, value = torch.randn(3, 1, 4, 9, 8)
        with packed(make_layout(np.array([9]), torch.device("cpu"))):
            mixed, _ = packed_attention(
                torch.nn.Module(), query, key, value, None, scaling=0.5, is_causal=True, sliding_window=4, softcap=1.5
            )
        distance = torch.arange(9)[:, None] - torch.arange(9)[None, :]
        scores = 1.5 * torch.tanh(query @ key.transpose(2, 3) * 0.5 / 1.5)
        scores = scores.masked_fill((distance < 0) | (distance >= 4), -torch.inf)
        torch.testing.assert_close(mixed, (scores.softmax(-1) @ value).transpose(1, 2))

    def test_keywords_without_effect_are_taken_and_others_refused(self) -> None:
        states = torch.randn(1, 1, 3, 4)
        with packed(make_layout(np.array([3]), torch.device("cpu"))):
            packed_attention(torch.nn.Module(), states, states, states, None, dropout=0.0, s_aux=None, use_cache=True)
            for others in ({"s_aux": torch.zeros(1)}, {"dropout": 0.1}, {"position_bias": states}):
                with pytest.raises(ConfigError, match=r"Module asks for attention with `[a-z_]+`, which is not"):
                    packed_attention(torch.nn.Module(), states, states, states, None, **others)


def test_packs_of_a_few_tokens_do_not_depend_on_the_number_of_threads(minilm_folder: Path) -> None:
    encoder = load_encoder(open_checkpoint(str(minilm_folder)), [6])
    n_threads = torch.get_num_threads()
    found: dict[int, list[torch.Tensor]] = {1: [], 2: []}
    try:
        for threads, states in found.items():
            torch.set_num_threads(threads)
            states.extend(encoder.encode(random_pack([length])).layer(6) for length in range(3, 40))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(n_threads)
    assert all(torch.equal(one, two) for one, two in zip(found[1], found[2], strict=True))


PEPS = (ROOT / "examples" / "data" / "peps.txt").read_text(encoding="utf-8").splitlines()[:12]


def last_layer(dtype: torch.dtype) -> np.ndarray:
    checkpoint = open_checkpoint("minilm")
    tokenizer = Tokenizer.load(checkpoint.folder)
    documents = texts(*PEPS)
    windows = cut_windows(tokenizer.encode(documents), tokenizer, WindowLimits(512, 128), documents)
    encoder = load_encoder(checkpoint, [6], compute_dtype=dtype)
    states = [encoder.encode(pack).layer(6) for pack in pack_windows(windows, 2048)]
    assert all(state.dtype is dtype for state in states)
    return torch.cat(states).float().numpy()


@pytest.mark.parametrize(("dtype", "least"), [(torch.bfloat16, 0.9995), (torch.float16, 0.99999)])
def test_last_layer_in_half_precision(dtype: torch.dtype, least: float) -> None:
    exact, found = last_layer(torch.float32), last_layer(dtype)
    cosine = (exact * found).sum(axis=1) / (np.linalg.norm(exact, axis=1) * np.linalg.norm(found, axis=1))
    assert cosine.min() >= least
    assert not np.array_equal(exact, found)
