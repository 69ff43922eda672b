"""Modules of torch that take the place of others: packed linear layers, convolutions in float32, and a lookup table."""

from __future__ import annotations

import platform
from functools import partial
from typing import Any

import torch
from torch import nn

from bertfeat.records import Float32Array, IntArray

# The number of rows that the layout is chosen for; any number works.
_N_ROWS = 1024
# Narrower layers gain nothing, and LayoutLMv3 reads the weights of some without calling them.
_LEAST_WIDTH = 32


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether linear layers of a type can be packed on a device: on x86-64 with a torch that has oneDNN."""
    return (
        device.type == "cpu"
        and dtype in (torch.float32, torch.bfloat16)
        and platform.machine().lower() in ("x86_64", "amd64")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and (dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


class PackedLinear(nn.Module):
    """A linear layer for the CPU whose weight has a layout that only oneDNN can read, with GELU in the same operator.

    torch changes the layout of a weight for every product. With MiniLM's 384 and 1,536 columns that takes a tenth of
    the time on an AMD EPYC, and less on an Intel Xeon. `torch.compile` uses the same operator.

    The activation is `gelu` (the exact one), or `none`.
    """

    def __init__(self, linear: nn.Linear, activation: str = "none") -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data.contiguous(), _N_ROWS)
        bias: torch.Tensor | None = linear.bias
        self.bias = None if bias is None else bias.data
        self.activation = activation

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return (..., out_features) for `states` (..., in_features)."""
        # The last argument is the approximation of GELU.
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            states, self.weight, self.bias, self.activation, [], "none"
        )
        return found


@torch.inference_mode()
def pack_linears(model: nn.Module) -> None:
    """Replace every linear layer of a model whose weights, type and device no longer change.

    A layer and its GELU become one where a block names them `dense` and `intermediate_act_fn`, as BERT does.
    """
    for module in [module for module in model.modules() if hasattr(module, "intermediate_act_fn")]:
        dense = getattr(module, "dense", None)
        if type(dense) is nn.Linear and _is_exact_gelu(module.intermediate_act_fn):
            module.dense = PackedLinear(dense, "gelu")
            module.intermediate_act_fn = nn.Identity()
    for name in [name for name, module in model.named_modules() if type(module) is nn.Linear]:
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        if min(linear.weight.shape) >= _LEAST_WIDTH:
            # Nothing else holds the layer, so that its own weight is freed before the next one is packed.
            model.set_submodule(name, PackedLinear(linear))


def _is_exact_gelu(activation: Any) -> bool:
    from transformers.activations import GELUActivation

    if isinstance(activation, GELUActivation):
        return activation.act is nn.functional.gelu
    return isinstance(activation, nn.GELU) and activation.approximate == "none"


def keep_float32(model: nn.Module) -> None:
    """Make the convolutions of a model compute in float32 on CUDA, whatever the process allows for others.

    torch rounds the inputs of float32 convolutions there to TF32, but not those of matrix products. The switch is
    one for the process. The operator below the switch takes it as an argument.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d) and module.padding_mode == "zeros":
            module.forward = partial(_convolve, module)  # type: ignore[method-assign]


def _convolve(layer: nn.Conv1d | nn.Conv2d, states: torch.Tensor) -> torch.Tensor:
    how = layer.stride, layer.padding, layer.dilation, False, layer.output_padding, layer.groups
    cudnn = torch.backends.cudnn
    # The last one is `allow_tf32`.
    flags = cudnn.benchmark, cudnn.deterministic, cudnn.enabled, False
    found: torch.Tensor = torch.ops.aten._convolution.default(states, layer.weight, layer.bias, *how, *flags)
    return found


class Lookup(nn.Module):
    """The vectors of tokens, float32 (n_rows, dim), which know no context.

    `mapping`, int64 (n_ids,), has the row of each token, if rows are not token ids. The vector of a token is multiplied
    by its number in `weights`, float32 (n_ids,), if there are any.
    """

    def __init__(self, vectors: Float32Array, mapping: IntArray | None, weights: Float32Array | None) -> None:
        super().__init__()
        self.vectors = _fixed(vectors)
        self.mapping = None if mapping is None else _fixed(mapping)
        self.weights = None if weights is None else _fixed(weights)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the vectors of token ids, int64 (n,), as float32 (n, dim)."""
        found = self.vectors.index_select(0, ids if self.mapping is None else self.mapping[ids])
        return found if self.weights is None else found * self.weights[ids].unsqueeze(1)


def _fixed(array: Float32Array | IntArray) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(array), requires_grad=False)
