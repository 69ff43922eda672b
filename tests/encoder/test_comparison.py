"""The comparison at load: how packs of a model run, and what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bertfeat.encoder import attention, comparison, encoder
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.encoder import PackEncoder
from bertfeat.encoder.loading import load_encoder
from bertfeat.errors import CheckpointError, RunError
from tests.support.families import N_LAYERS, build_model

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFEAT_CACHE", str(tmp_path / "cache"))


def leak(patch: pytest.MonkeyPatch) -> None:
    """Attention does not keep windows apart."""
    layout = attention.make_layout
    patch.setattr(encoder, "make_layout", lambda lengths, device: layout(np.array([lengths.sum()]), device))


def shift(patch: pytest.MonkeyPatch) -> None:
    """Positions are one too many from the second window on."""
    plain = PackEncoder._positions
    patch.setattr(PackEncoder, "_positions", lambda self, pack: plain(self, pack) + (np.arange(pack.n_tokens) >= 11))


def mix(patch: pytest.MonkeyPatch) -> None:
    """The texts of a batch change each other a little."""
    leak(patch)
    plain = PackEncoder._forward

    def mixed(self: PackEncoder, inputs: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        found = plain(self, inputs)
        return {layer: 0.9 * state + 0.1 * state.mean(0, keepdim=True) for layer, state in found.items()}

    patch.setattr(PackEncoder, "_forward", mixed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", [leak, shift])
def test_a_wrong_pack_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Patch, dtype: torch.dtype) -> None:
    checkpoint = open_checkpoint(str(build_model("bert", tmp_path / "model")))
    with monkeypatch.context() as patch:
        wrong(patch)
        assert load_encoder(checkpoint, [2], compute_dtype=dtype).path == "equal-length"
    # Kept for this depth and type alone.
    assert load_encoder(checkpoint, [2], compute_dtype=dtype).path == "equal-length"
    assert load_encoder(checkpoint, [3], compute_dtype=dtype).path == "packed"


def test_what_differs_in_every_way_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(str(build_model("bert", tmp_path / "model")))
    mix(monkeypatch)
    said = "'bert' is not run: a text beside others differs from the same text alone by [0-9.e-]+ of the length of "
    with pytest.raises(CheckpointError, match=rf"{said}a vector in layer [0-4] \(bound 1e-04\)"):
        load_encoder(checkpoint, [N_LAYERS])


def change_bias(folder: Path, value: float) -> str:
    """Set a value in the last weights of the second block of a BERT."""
    weights = load_file(folder / "model.safetensors")
    weights[next(name for name in weights if name.endswith("encoder.layer.1.output.LayerNorm.bias"))][3] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_other_weights_and_longer_windows_are_compared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(str(build_model("bert", tmp_path / "model")))
    with monkeypatch.context() as patch:
        leak(patch)
        assert load_encoder(checkpoint, [2]).path == "equal-length"
    assert load_encoder(checkpoint, [2]).path == "equal-length"
    assert load_encoder(dataclasses.replace(checkpoint, max_length=20), [2]).path == "packed"
    assert load_encoder(open_checkpoint(change_bias(tmp_path / "model", 0.5)), [2]).path == "packed"


PASSING = [torch.OutOfMemoryError("CUDA out of memory"), torch.AcceleratorError("CUDA error"), RunError("ours")]


def fail_at(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, call: int, error: Exception) -> None:
    """Let one call of a method fail, counted from 1."""
    plain, n_calls = getattr(owner, name), iter(range(1, 100))

    def run(*arguments: Any) -> Any:
        if next(n_calls) == call:
            raise error
        return plain(*arguments)

    monkeypatch.setattr(owner, name, run)


@pytest.mark.parametrize("error", PASSING)
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [(comparison.Comparison, "_alone", 2), (comparison.Comparison, "_alone", 4), (PackEncoder, "encode", 1)],
)
def test_a_lack_of_memory_or_a_failed_device_decides_nothing(
    owner: type, name: str, call: int, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(str(build_model("llama", tmp_path / "model")))
    with monkeypatch.context() as patch:
        fail_at(patch, owner, name, call, error)
        with pytest.raises(type(error)) as caught:
            load_encoder(checkpoint, [2])
    assert caught.value is error
    encoder = load_encoder(checkpoint, [2])
    assert (encoder.path, len(encoder._model.layers)) == ("packed", 2)  # type: ignore[arg-type]


def test_a_model_that_takes_no_packs_runs_in_equal_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, PackEncoder, "encode", 1, TypeError("no such argument"))
    assert load_encoder(open_checkpoint(str(build_model("llama", tmp_path / "model"))), [2]).path == "equal-length"


def test_layers_that_are_not_vectors_of_one_width_are_refused(tmp_path: Path) -> None:
    """The last layer of some models of OPT is as narrow as their embeddings."""
    checkpoint = open_checkpoint(str(build_model("opt", tmp_path / "model", word_embed_proj_dim=16)))
    with pytest.raises(CheckpointError, match=r"layer 4 of a text has the shape \(1, 11, 16\), not \(1, 11, 32\)"):
        load_encoder(checkpoint, [N_LAYERS])
