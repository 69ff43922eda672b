"""Linear layers packed for oneDNN: equal results, and which layers are replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from bertfeat.encoder import torch_modules
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.loading import load_encoder
from bertfeat.encoder.torch_modules import PackedLinear, can_pack, pack_linears

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
needs_packing = pytest.mark.skipif(not can_pack(CPU, torch.float32), reason="no oneDNN, or no x86-64")


def test_packs_on_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not can_pack(torch.device("cuda"), torch.float32)
    assert not can_pack(CPU, torch.float16)
    monkeypatch.setattr(torch_modules.platform, "machine", lambda: "aarch64")
    assert not can_pack(CPU, torch.float32)


@needs_packing
class TestPackedLinear:
    @pytest.mark.parametrize("n_rows", [1, 5, 11, 300])
    @pytest.mark.parametrize("bias", [True, False])
    @torch.inference_mode()
    def test_is_the_linear_layer(self, n_rows: int, bias: bool) -> None:
        torch.manual_seed(n_rows)
        linear = nn.Linear(96, 160, bias=bias)
        states = torch.randn(1, n_rows, 96)
        torch.testing.assert_close(PackedLinear(linear)(states), linear(states), atol=1e-5, rtol=1e-5)
        expected = nn.functional.gelu(linear(states))
        torch.testing.assert_close(PackedLinear(linear, "gelu")(states), expected, atol=1e-5, rtol=1e-5)

    @torch.inference_mode()
    def test_bfloat16(self) -> None:
        if not can_pack(CPU, torch.bfloat16):
            pytest.skip("this processor does not compute in bfloat16")
        torch.manual_seed(0)
        linear = nn.Linear(96, 160).bfloat16()
        states = torch.randn(7, 96).bfloat16()
        found = PackedLinear(linear)(states)
        assert found.dtype is torch.bfloat16
        torch.testing.assert_close(found, linear(states), atol=0.02, rtol=0.02)


@needs_packing
class TestModels:
    def test_every_linear_layer_is_replaced(self, good: Path) -> None:
        encoder = load_encoder(open_checkpoint(str(good)), [1], with_pooler=True)
        kinds = {name: type(module) for name, module in encoder._model.named_modules()}
        assert nn.Linear not in kinds.values()
        fused = [m for m in encoder._model.modules() if isinstance(m, PackedLinear) and m.activation == "gelu"]
        assert len(fused) == encoder.n_blocks
        assert kinds["encoder.layer.0.intermediate.intermediate_act_fn"] is nn.Identity

    def test_other_activations_stay(self) -> None:
        block = nn.Module()
        block.dense = nn.Linear(32, 32)
        block.intermediate_act_fn = nn.GELU(approximate="tanh")
        pack_linears(block)
        assert isinstance(block.dense, PackedLinear)
        assert block.dense.activation == "none"
        assert isinstance(block.intermediate_act_fn, nn.GELU)

    def test_subclasses_stay(self) -> None:
        class Own(nn.Linear):
            pass

        block = nn.Sequential(Own(4, 4))
        pack_linears(block)
        assert type(block[0]) is Own
