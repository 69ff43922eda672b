"""The encoder: lack of memory, half precision, packed linear layers, lanes, and attention within windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bertfeat
from bertfeat.encoder.attention import make_layout, packed, packed_attention
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.encoder import encode_packs, halve
from bertfeat.encoder.loading import load_encoder
from bertfeat.encoder.torch_modules import PackedLinear, can_pack
from bertfeat.errors import ConfigError, RunError
from bertfeat.text.packing import pack_windows
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.window_ranges import WindowLimits
from bertfeat.text.windows import cut_windows
from tests.support.fakes import texts
from tests.support.families import N_LAYERS, random_pack
from tests.support.places import ROOT

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
LAYERS = range(N_LAYERS + 1)


@pytest.fixture(scope="module")
def checkpoint(good: Path) -> Checkpoint:
    return open_checkpoint(str(good))


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
def test_a_pack_is_halved_until_it_fits(
    checkpoint: Checkpoint, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(checkpoint, LAYERS, with_pooler=True)
    pack = random_pack([9, 8, 8, 7, 7, 2, 1])
    expected = encoder.encode(pack)
    forward, most = nn.Embedding.forward, 24

    def small_forward(self: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        if ids.numel() > most:
            raise error
        return forward(self, ids)

    monkeypatch.setattr(nn.Embedding, "forward", small_forward)
    states = encoder.encode(pack)
    # 42 tokens -> 25 (9 and 16) and 17, which is filled up to 24
    assert encoder.n_halvings == 2
    for layer in LAYERS:
        torch.testing.assert_close(states.layer(layer), expected.layer(layer))
    torch.testing.assert_close(states.pooler(), expected.pooler())
    most = 0
    with pytest.raises(RunError, match="out of memory on cpu with a single window of 9 tokens") as caught:
        encoder.encode(pack)
    assert caught.value.exit_code == 3


def test_halves_hold_the_windows_and_their_copies() -> None:
    pack = random_pack([9, 8, 7])
    pack = dataclasses.replace(pack, copies=np.array([7, 8, 9]), copy_of=np.array([2, 0, 1]))
    first, second = halve(pack)
    assert (first.copies.tolist(), first.copy_of.tolist()) == ([8], [0])
    assert (second.copies.tolist(), second.copy_of.tolist()) == ([7, 9], [1, 0])
    assert (first.windows.tolist(), second.windows.tolist()) == ([0], [1, 2])
    for name in ("input_ids", "position_ids", "type_ids", "lengths"):
        assert [*getattr(first, name), *getattr(second, name)] == getattr(pack, name).tolist()


def arithmetic(
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor], seen: torch.Tensor, softcap: float | None = None
) -> torch.Tensor:
    """Return the attention of queries to the keys that they see, in the plainest way."""
    query, key, value = states
    shared = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(shared, dim=1) for part in (key, value))
    scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value).transpose(1, 2)


def seen_in(lengths: np.ndarray, *, causal: bool, sliding_window: int | None) -> torch.Tensor:
    """Return which keys each query sees: those of its own window, not after it, and not too far."""
    window = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))
    places = torch.arange(len(window))
    distance = places[:, None] - places[None, :]
    seen = window[:, None] == window[None, :]
    if causal:
        seen &= distance >= 0
    if sliding_window is not None:
        seen &= distance.abs() < sliding_window
    return seen


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sliding_window", [None, 1, 3, 20])
def test_attention_equals_arithmetic(causal: bool, sliding_window: int | None, softcap: float | None) -> None:
    check_attention([6, 6, 4, 1], 4, causal, sliding_window, softcap)


def test_queries_of_a_long_window_with_capped_scores_are_done_in_parts() -> None:
    # 2 ** 24 scores at a time.
    check_attention([4100], 1, True, None, 1.5)


def check_attention(
    of_windows: list[int], n_heads: int, causal: bool, sliding_window: int | None, softcap: float | None
) -> None:
    torch.manual_seed(0)
    lengths, n_tokens, n_keys = np.array(of_windows), sum(of_windows), -(-n_heads // 2)
    query, (key, value) = torch.randn(1, n_heads, n_tokens, 8), torch.randn(2, 1, n_keys, n_tokens, 8)
    rules = {"is_causal": causal, "sliding_window": sliding_window}
    capped = {} if softcap is None else {"softcap": softcap}
    with packed(make_layout(lengths, CPU)):
        mixed, _ = packed_attention(nn.Module(), query, key, value, None, **rules, **capped)
    seen = seen_in(lengths, causal=causal, sliding_window=sliding_window)
    torch.testing.assert_close(mixed, arithmetic((query, key, value), seen, softcap))


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
def test_filled_up_keys_are_not_seen(dtype: torch.dtype, atol: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    torch.manual_seed(0)
    for length in (10, 12, 31, 61, 300):
        lengths = np.array([length, length])
        query = torch.randn(1, 4, 2 * length, 32).to(dtype)
        key, value = torch.randn(2, 1, 2, 2 * length, 32).to(dtype)
        with packed(make_layout(lengths, CPU)):
            mixed, _ = packed_attention(nn.Module(), query, key, value, None)
        expected = arithmetic(
            (query.float(), key.float(), value.float()), seen_in(lengths, causal=False, sliding_window=None)
        )
        torch.testing.assert_close(mixed.float(), expected, atol=atol, rtol=0)


def test_attention_with_rules_that_are_not_known_is_refused() -> None:
    states = torch.randn(1, 1, 3, 4)
    with packed(make_layout(np.array([3]), CPU)):
        packed_attention(nn.Module(), states, states, states, None, dropout=0.0, s_aux=None, use_cache=True)
        for others in ({"s_aux": torch.zeros(1)}, {"dropout": 0.1}, {"position_bias": states}):
            with pytest.raises(ConfigError, match=r"Module asks for attention with `[a-z_]+`, which is not"):
                packed_attention(nn.Module(), states, states, states, None, **others)


@pytest.mark.skipif(not can_pack(CPU, torch.float32), reason="no oneDNN, or no x86-64")
@pytest.mark.parametrize("n_rows", [1, 11, 300])
@torch.inference_mode()
def test_packed_linear_layers_are_the_linear_layers(n_rows: int) -> None:
    torch.manual_seed(n_rows)
    linear = nn.Linear(96, 160)
    states = torch.randn(1, n_rows, 96)
    torch.testing.assert_close(PackedLinear(linear)(states), linear(states), atol=1e-5, rtol=1e-5)
    expected = nn.functional.gelu(linear(states))
    torch.testing.assert_close(PackedLinear(linear, "gelu")(states), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n_lanes", [1, 3])
def test_lanes_keep_the_order_and_the_bits(
    checkpoint: Checkpoint, n_lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(checkpoint, [0, 2])
    packs = [random_pack([9, 7, 7, 3], seed=i) for i in range(9)] + [random_pack([2], seed=10)]
    expected = [encoder.encode(pack) for pack in packs]
    monkeypatch.setattr(encoder, "n_lanes", n_lanes)
    found = list(encode_packs(encoder, iter(packs)))
    assert [pack for pack, _ in found] == packs
    for (_, states), one in zip(found, expected, strict=True):
        assert all(torch.equal(states.layer(layer), one.layer(layer)) for layer in (0, 2))


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """A function that sets the number of threads of torch for a test: a model is loaded for as many lanes."""
    n_threads = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(n_threads)


@pytest.mark.promise("workers")
def test_a_store_does_not_depend_on_the_lanes(tmp_path: Path, set_threads: Callable[[int], None]) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{'word ' * (i % 40)}number {i}\n" for i in range(120)), encoding="utf-8")
    digests = []
    for n_lanes in (1, 3):
        set_threads(n_lanes)
        store = bertfeat.extract(corpus, tmp_path / str(n_lanes), layers="2,-1", levels=["token", "sentence"])
        digests.append([part.digest for level in store.levels for part in store.parts(level)])
    assert digests[0] == digests[1]


def test_packs_of_a_few_tokens_do_not_depend_on_the_number_of_threads(
    minilm_folder: Path, set_threads: Callable[[int], None]
) -> None:
    encoder = load_encoder(open_checkpoint(str(minilm_folder)), [6])
    found: dict[int, list[torch.Tensor]] = {1: [], 2: []}
    for n_threads, states in found.items():
        set_threads(n_threads)
        states.extend(encoder.encode(random_pack([length])).layer(6) for length in range(3, 40))
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


@pytest.mark.promise("equal")
@pytest.mark.parametrize(("dtype", "least"), [(torch.bfloat16, 0.9995), (torch.float16, 0.99999)])
def test_last_layer_in_half_precision(dtype: torch.dtype, least: float) -> None:
    exact, found = last_layer(torch.float32), last_layer(dtype)
    cosine = (exact * found).sum(axis=1) / (np.linalg.norm(exact, axis=1) * np.linalg.norm(found, axis=1))
    assert cosine.min() >= least
    assert not np.array_equal(exact, found)
