"""The comparison at load: how packs of a model run, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bertfeat.encoder import attention, encoder
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.encoder import PackEncoder
from bertfeat.encoder.loading import load_encoder
from bertfeat.errors import CheckpointError, RunError
from bertfeat.records import Pack
from tests.support.families import N_LAYERS, build_model

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFEAT_CACHE", str(tmp_path / "cache"))


def built(model_type: str, folder: Path, **changes: Any) -> Checkpoint:
    return open_checkpoint(str(build_model(model_type, folder / "model", **changes)))


def leak(patch: pytest.MonkeyPatch) -> None:
    """Attention does not keep windows apart."""
    layout = attention.make_layout
    patch.setattr(encoder, "make_layout", lambda lengths, device: layout(np.array([lengths.sum()]), device))


def shift(patch: pytest.MonkeyPatch) -> None:
    """Positions are one too many from the second window on."""
    plain = encoder.fill

    def shifted(pack: Pack) -> Pack:
        filled = plain(pack)
        return dataclasses.replace(filled, position_ids=filled.position_ids + (np.arange(filled.n_tokens) >= 11))

    patch.setattr(encoder, "fill", shifted)


def mix(patch: pytest.MonkeyPatch) -> None:
    """The texts of a batch change each other a little."""
    leak(patch)
    plain = nn.Embedding.forward

    def mixed(self: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        found = plain(self, ids)
        return 0.9 * found + 0.1 * found.mean(0, keepdim=True)

    patch.setattr(nn.Embedding, "forward", mixed)


@pytest.mark.promise("compared")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", [leak, shift])
def test_a_wrong_pack_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Patch, dtype: torch.dtype) -> None:
    checkpoint = built("bert", tmp_path)
    with monkeypatch.context() as patch:
        wrong(patch)
        assert load_encoder(checkpoint, [2], compute_dtype=dtype).path == "equal-length"
    # Kept for this depth, this type and these lengths alone.
    assert load_encoder(checkpoint, [2], compute_dtype=dtype).path == "equal-length"
    assert load_encoder(checkpoint, [3], compute_dtype=dtype).path == "packed"
    shorter = dataclasses.replace(checkpoint, max_length=20)
    assert load_encoder(shorter, [2], compute_dtype=dtype).path == "packed"


def test_other_weights_are_compared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        leak(patch)
        assert load_encoder(built("bert", tmp_path), [2]).path == "equal-length"
    assert load_encoder(built("bert", tmp_path, seed=1), [2]).path == "packed"


def test_what_differs_in_every_way_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mix(monkeypatch)
    said = "'bert' is not run: a text beside others differs from the same text alone by [0-9.e-]+ of the length of "
    with pytest.raises(CheckpointError, match=rf"{said}a vector in layer [0-4] \(bound 1e-04\)"):
        load_encoder(built("bert", tmp_path), [N_LAYERS])


def fail_at(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, call: int, error: Exception) -> None:
    """Let one call of a method fail, counted from 1."""
    plain, n_calls = getattr(owner, name), iter(range(1, 100))

    def run(*arguments: Any) -> Any:
        if next(n_calls) == call:
            raise error
        return plain(*arguments)

    monkeypatch.setattr(owner, name, run)


@pytest.mark.parametrize(
    ("owner", "name", "call", "error"),
    [
        # The three windows run alone: with all blocks, then cut.
        (nn.Embedding, "forward", 4, torch.OutOfMemoryError("CUDA out of memory")),
        (nn.Embedding, "forward", 10, torch.AcceleratorError("CUDA error")),
        (PackEncoder, "encode", 1, RunError("ours")),
    ],
)
def test_a_lack_of_memory_or_a_failed_device_decides_nothing(
    owner: type, name: str, call: int, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = built("llama", tmp_path)
    with monkeypatch.context() as patch:
        fail_at(patch, owner, name, call, error)
        with pytest.raises(type(error)) as caught:
            load_encoder(checkpoint, [2])
    assert caught.value is error
    found = load_encoder(checkpoint, [2])
    assert (found.path, found.n_blocks) == ("packed", 2)


def test_a_model_that_takes_no_packs_runs_in_equal_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, PackEncoder, "encode", 1, TypeError("no such argument"))
    assert load_encoder(built("llama", tmp_path), [2]).path == "equal-length"


def test_layers_that_are_not_vectors_of_one_width_are_refused(tmp_path: Path) -> None:
    """The last layer of some models of OPT is as narrow as their embeddings."""
    with pytest.raises(CheckpointError, match=r"layer 4 of a text has the shape \(1, 11, 16\), not \(1, 11, 32\)"):
        load_encoder(built("opt", tmp_path, word_embed_proj_dim=16), [N_LAYERS])
