"""The rate of plain matrix products of a model's own shapes: what its encoder cannot exceed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.speed.models import Shape


def gemm_ceiling(
    shape: Shape, n_tokens: int, *, seconds: float = 0.5, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> dict[str, float]:
    """Return the rate of all linear layers of a model, in GFLOP/s, by every way of computing them.

    Four products of hidden by hidden, one up and one down in each block, every block with weights of its own, as they
    come in the model; nothing else. `torch.mm` is what plain PyTorch calls; `oneDNN` has its weights packed ahead.

    Each is measured for some seconds, with `n_tokens` rows, the tokens of a pack.
    """
    hidden, inner = shape.hidden_size, shape.inner_size
    sizes = [(hidden, hidden)] * 4 + [(inner, hidden), (hidden, inner)]
    weights = [[torch.randn(size, device=device, dtype=dtype) for size in sizes] for _ in range(shape.n_layers)]
    inputs = {n: torch.randn(n_tokens, n, device=device, dtype=dtype) for n in (hidden, inner)}
    outputs = {n: torch.empty(n_tokens, n, device=device, dtype=dtype) for n in (hidden, inner)}
    flops = 2 * n_tokens * shape.n_layers * sum(a * b for a, b in sizes)

    def plain() -> None:
        for block in weights:
            for weight in block:
                torch.mm(inputs[weight.shape[1]], weight.t(), out=outputs[weight.shape[0]])

    ways: dict[str, Callable[[], None]] = {"torch.mm": plain}
    if device == "cpu" and torch.backends.mkldnn.is_available() and dtype is torch.float32:
        packed = _onednn(weights, inputs, n_tokens)
        ways["oneDNN"] = packed
        ways["oneDNN, a thread each"] = lambda: _on_each_thread(packed)
    n_times = {"oneDNN, a thread each": torch.get_num_threads()}
    with torch.inference_mode():
        return {name: _rate(way, flops * n_times.get(name, 1), seconds, device) for name, way in ways.items()}


def _onednn(weights: list[list[torch.Tensor]], inputs: dict[int, torch.Tensor], n_tokens: int) -> Callable[[], None]:
    ops: Any = torch.ops.mkldnn
    packed = [
        (inputs[weight.shape[1]], ops._reorder_linear_weight(weight, n_tokens)) for block in weights for weight in block
    ]

    def run() -> None:
        for given, weight in packed:
            ops._linear_pointwise(given, weight, None, "none", [], "")

    return run


def _on_each_thread(call: Callable[[], None]) -> None:
    """Make a call on as many threads as torch has; each computes on one thread."""
    n_threads = torch.get_num_threads()

    def alone() -> None:
        torch.set_num_threads(1)
        with torch.inference_mode():
            call()

    threads = [threading.Thread(target=alone) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(n_threads)


def _rate(call: Callable[[], Any], flops: float, seconds: float, device: str) -> float:
    call()
    _wait(device)
    start, n_done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        call()
        n_done += 1
        # A GPU runs asynchronously: without the wait, the loop would only time the launches.
        _wait(device)
    return flops * n_done / (time.perf_counter() - start) / 1e9


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
