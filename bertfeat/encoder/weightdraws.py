"""Draws of random weights: transformers' own initialisation, with a random stream of its own for each weight.

A stream depends on the seed and on the name of the weight, and on nothing else. So a model that is cut has the weights
of the same blocks of the whole model, and the order of drawing does not matter. The numbers are NumPy's, because those
of torch differ between kinds of processors. The global random state is neither read nor changed.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.errors import CheckpointError
from bertfeat.records import Float32Array

_ATEN = torch.ops.aten
_UNSET = (_ATEN.empty, _ATEN.empty_like, _ATEN.empty_strided, _ATEN.new_empty, _ATEN.new_empty_strided)
_NAN = float("nan")


def draw_weights(
    checkpoint: Checkpoint, model_class: Any, config: Any, options: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Draw the weights of a model afresh, float32 on the CPU.

    Args:
        checkpoint: The model, with the seed.
        model_class: The class of transformers.
        config: Its config, which may be cut; it is not changed.
        options: Arguments of the class.

    Returns:
        The state dict of the model.

    Raises:
        CheckpointError: The family draws numbers in another way, or leaves a weight without a value.
    """
    construction = _Construction()
    with torch.device("cpu"), construction:
        model: Any = model_class._from_config(copy.deepcopy(config), dtype=torch.float32, **options)
    for module in model.modules():
        # transformers marks what is initialised, and would skip it.
        module._is_hf_initialized = False
        if hasattr(module, "config"):
            # Some families draw the weights of deep models closer to zero.
            module.config.num_hidden_layers = checkpoint.n_layers
    weights = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    with torch.no_grad(), _Streams(checkpoint, {_place(weight): name for name, weight in weights.items()}):
        model.initialize_weights()
        for name, weight in weights.items():
            if weight.is_floating_point() and weight.isnan().any():
                # Drawn when the model was built, and by nothing afterwards.
                construction.repeat(name, weight)
    drawn: dict[str, torch.Tensor] = model.state_dict()
    return drawn


class _Construction(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Building of a model, whose weights have no names yet: what is drawn becomes NaN, and the draw is kept."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept: dict[int, Callable[[torch.Tensor], object]] = {}

    def repeat(self, name: str, weight: torch.Tensor) -> None:
        """Draw a weight as it was drawn when the model was built."""
        if _place(weight) not in self._kept:
            raise CheckpointError(f"random weights: transformers gives {name!r} no value; choose another model")
        self._kept[_place(weight)](weight)

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_random(func):
            self._kept[_place(args[0])] = lambda weight: func(weight, *args[1:], **kwargs)
            return args[0].fill_(_NAN)
        found = func(*args, **kwargs)
        if func.overloadpacket in _UNSET and found.is_floating_point():
            self._kept.pop(_place(found), None)
            found.fill_(_NAN)
        return found


class _Streams(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws from the stream of the weight that is drawn.

    Args:
        checkpoint: The model, with the seed.
        names: The name of each weight by its place in memory.
    """

    def __init__(self, checkpoint: Checkpoint, names: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = checkpoint.random_weights
        self._names = names
        self._streams: dict[str, np.random.Generator] = {}
        self._last = ""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _is_random(func):
            return func(*args, **kwargs)
        # A draw into a helper array belongs to the weight before it.
        self._last = self._names.get(_place(args[0]), self._last)
        kwargs.pop("generator", None)
        drawn = _DRAWS[func](self._stream(self._last), args[0].numel(), *args[1:], **kwargs)
        return args[0].copy_(torch.from_numpy(drawn).view(args[0].shape))

    def _stream(self, name: str) -> np.random.Generator:
        if name not in self._streams:
            key = hashlib.sha256(f"{self._seed} {name}".encode()).digest()[:16]
            self._streams[name] = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
        return self._streams[name]


def _normal(stream: np.random.Generator, n: int, mean: float = 0.0, std: float = 1.0) -> Float32Array:
    drawn = stream.standard_normal(n, np.float32)
    drawn *= std
    drawn += mean
    return drawn


def _uniform(stream: np.random.Generator, n: int, low: float = 0.0, high: float = 1.0) -> Float32Array:
    drawn = stream.random(n, np.float32)
    drawn *= high - low
    drawn += low
    return drawn


_DRAWS: dict[Any, Callable[..., Float32Array]] = {_ATEN.normal_.default: _normal, _ATEN.uniform_.default: _uniform}


def _is_random(func: Any) -> bool:
    """Return whether an operation draws numbers; raise a CheckpointError if they cannot come from a stream."""
    if func in _DRAWS:
        return True
    if torch.Tag.nondeterministic_seeded in func.tags:
        raise CheckpointError(
            f"random weights: transformers draws by {func}, which has no seed here; choose another model"
        )
    return False


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
