"""Linear layers packed for oneDNN: equal results, and which layers are replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.loading import load_encoder
from bertfeat.encoder.torch_modules import PackedLinear, can_pack

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
needs_packing = pytest.mark.skipif(not can_pack(CPU, torch.float32), reason="no oneDNN, or no x86-64")


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


@needs_packing
class TestModels:
    def test_every_linear_layer_is_replaced(self, good: Path) -> None:
        encoder = load_encoder(open_checkpoint(str(good)), [1], with_pooler=True)
        kinds = {name: type(module) for name, module in encoder._model.named_modules()}
        assert nn.Linear not in kinds.values()
        fused = [m for m in encoder._model.modules() if isinstance(m, PackedLinear) and m.activation == "gelu"]
        assert len(fused) == encoder.n_blocks
        assert kinds["encoder.layer.0.intermediate.intermediate_act_fn"] is nn.Identity
