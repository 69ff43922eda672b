"""A CUDA device without a device: fake tensors that know their device, shape and type, and hold no values.

An operator that mixes the device with the CPU, or that would wait for a value of the device, raises an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from bertfeat import devices
from bertfeat.encoder import attention, loading
from bertfeat.encoder.comparison import Way
from bertfeat.extraction import flow, level_tables

CUDA = torch.device("cuda", 0)


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
    from torch.nn.attention import varlen

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
        patch.setattr(devices, "_cuda_devices", lambda: (CUDA,))
        patch.setattr(devices, "_has_bfloat16", lambda device: True)
        patch.setattr(level_tables, "gathering_device", lambda device, n_bytes: device)
        patch.setattr(FakeFetches, "fetched", calls["fetched"], raising=False)
        patch.setattr(flow, "Fetches", FakeFetches)
        yield calls
