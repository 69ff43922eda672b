"""The CUDA path: parity, memory that runs out, and a whole run. Needs a device; `make test-gpu`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import bertfeat
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.encoder import PackEncoder
from bertfeat.encoder.loading import load_encoder
from bertfeat.extraction.deep_check import recheck
from bertfeat.records import Document
from bertfeat.text.packing import make_pack, pack_windows
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.window_ranges import WindowLimits
from bertfeat.text.windows import Windows, cut_windows
from tests.support.families import build_model, random_pack
from tests.support.places import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PEPS = ROOT / "examples" / "data" / "peps.txt"
LAYERS = range(7)


def windows_of(texts: list[str]) -> Windows:
    tokenizer = Tokenizer.load(open_checkpoint("minilm").folder)
    documents = [Document(index=i, doc_id=i, text=text) for i, text in enumerate(texts)]
    return cut_windows(tokenizer.encode(documents), tokenizer, WindowLimits(512, 128), documents)


def encoder_on(device: str, dtype: torch.dtype, layers: Sequence[int] = LAYERS) -> PackEncoder:
    return load_encoder(open_checkpoint("minilm"), list(layers), device=device, compute_dtype=dtype)


def states_of(encoder: PackEncoder, windows: Windows, max_batch_tokens: int) -> np.ndarray:
    """Return float32 (n_layers, n_tokens, hidden) in the order of the packs."""
    packs = [encoder.encode(pack) for pack in pack_windows(windows, max_batch_tokens)]
    return np.stack([torch.cat([p.layer(i) for p in packs]).float().cpu().numpy() for i in LAYERS])


@pytest.mark.parametrize(
    ("dtype", "least"), [(torch.float32, 0.999999), (torch.bfloat16, 0.9995), (torch.float16, 0.9999)]
)
def test_layers_equal_those_of_the_cpu(dtype: torch.dtype, least: float) -> None:
    windows = windows_of(PEPS.read_text(encoding="utf-8").splitlines())
    expected = states_of(encoder_on("cpu", torch.float32), windows, 4096)
    found = states_of(encoder_on("cuda", dtype), windows, 4096)
    norms = np.linalg.norm(expected, axis=2) * np.linalg.norm(found, axis=2)
    cosine = (expected * found).sum(axis=2) / norms
    # The bound is promised for the last layer.
    assert cosine[-1].min() >= least
    assert cosine.min() >= 1 - 4 * (1 - least)


def test_convolutions_in_float32_are_not_rounded_to_tf32(tmp_path: Path) -> None:
    checkpoint, pack = open_checkpoint(str(build_model("squeezebert", tmp_path / "model"))), random_pack([9, 8, 7])
    expected, found = (
        load_encoder(checkpoint, [2], device=name).encode(pack).layer(2).cpu() for name in ("cpu", "cuda")
    )
    assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_memory_that_runs_out_halves_the_pack() -> None:
    windows = windows_of(PEPS.read_text(encoding="utf-8").splitlines() * 40)
    # The feed-forward layer of the whole pack takes some 900 MB, the states that are handed out a quarter of it.
    encoder = encoder_on("cuda", torch.bfloat16, [6])
    pack = make_pack(windows, np.arange(len(windows)))
    free, total = torch.cuda.mem_get_info()
    in_use = torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction((in_use + 400e6) / total)
    try:
        assert free > 400e6
        n_tokens = 0
        for part, states in encoder.encode_parts(pack):
            assert states.layer(6).shape == (part.n_tokens, 384)
            n_tokens += part.n_tokens
            del states
        assert encoder.n_halvings > 0
        assert n_tokens == pack.n_tokens
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_run_on_the_device(tmp_path: Path) -> None:
    on_gpu = bertfeat.extract(PEPS, tmp_path / "gpu", levels="token,word,sentence", device="cuda")
    on_cpu = bertfeat.extract(PEPS, tmp_path / "cpu", levels="token,word,sentence", device="cpu")
    assert on_gpu.metadata["compute_dtype"] == "bfloat16"
    assert recheck(on_gpu.path, n_documents=20).problems == ()
    assert all(receipt.seconds["encode"] > 0 for receipt in on_gpu.receipts())
    for level in on_cpu.levels:
        a = on_cpu.numpy(level, "layer_06").astype(np.float32)
        b = on_gpu.numpy(level, "layer_06").astype(np.float32)
        valid = on_cpu.valid(level, "layer_06")
        cosine = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
        assert cosine[valid].min() >= 0.9995
