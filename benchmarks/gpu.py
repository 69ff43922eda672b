"""A CUDA device against its limits and against peers on the same device: BERT-base, BERT-large and MiniLM in bfloat16.

    python -m benchmarks.gpu                             on a CUDA device; some 20 minutes
    python -m benchmarks.gpu --models bert-base --outputs sentence
    python -m benchmarks.gpu --parts forwards            which way to run the encoder to keep
    python -m benchmarks.gpu --device cpu --models bert-tiny --rows 60 --rounds 1      tries the script itself

Forwards: the encoder alone on short, mixed and long windows in each type: as it is, compiled, and as CUDA graphs, with
sentence-transformers beside it; see `benchmarks.speed.forwards`. One table says which to keep: the ratio of each rate
to that of the encoder as it is, the time of warming up, and what cannot run. Vectors are asserted equal in the run.

Runs: two outputs from a text file to files on disk, sentence embeddings (limited by the device's matrix products) and
every token's last four layers in float16 (limited by the disk, or by the device). Rivals: sentence-transformers, where
it gives that output, and transformers in corpus order with padded batches of 32. Beside them, in the same run:

- the matrix rate: one large product, and those of the model's own shapes;
- the encoder alone: packs in, hidden states out, nothing copied back;
- the rate of copies from the device to pinned memory, and the rate of writing a file and seeing it on disk;
- how busy the device was while each rival ran (nvidia-smi, ten samples a second); for bertfeat, which loads its model
  in the run, while it ran without that.

Goals: sentence embeddings of BERT-base at 40 % of the matrix rate with the device busy for 90 % of the time; tokens at
80 % of the smaller of disk and device. There is no figure yet: nothing of this was run on a CUDA device so far. On
the CPU a reference takes the place of the kernel for windows of many lengths: the script runs, its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_machine
from benchmarks.speed.ceiling import matrix_rate
from benchmarks.speed.encoder_alone import encoder_alone
from benchmarks.speed.forwards import compare
from benchmarks.speed.harness import Setup, run_workload
from benchmarks.speed.models import SHAPES, get_model
from benchmarks.speed.outputs import OUTPUTS
from benchmarks.speed.report import table, write_report
from benchmarks.speed.varlen_reference import register_on_cpu
from benchmarks.speed.workloads import CORPUS_ORDER, ENCODE, Entry, Workload
from bertfeat.devices import default_max_batch_tokens

# Rows of the corpus, each of about 65 tokens: enough for a run of ten seconds or more on a large device.
_ROWS = {"bert-base": 400_000, "bert-large": 120_000, "minilm": 800_000, "bert-tiny": 60}
# Each token writes 6 KB or more.
_TOKEN_ROWS_PART = 0.2
# Short, mixed and long texts; their packs are repeated up to a number of tokens.
_FORWARD_CORPORA = ("sentences", "mixed", "encyclopedia")
_FORWARD_ROWS, _FORWARD_TOKENS = 3_000, 4_000_000
_DTYPES = "bfloat16,float16,tf32,float32"
_RIVALS = {"sentence": (ENCODE, CORPUS_ORDER), "token-last4": (CORPUS_ORDER,)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--models", default="bert-base,bert-large,minilm", help=f"of minilm, {', '.join(SHAPES)}")
    parser.add_argument("--parts", default="forwards,runs", help="of forwards and runs")
    parser.add_argument("--dtypes", default=_DTYPES, help="the types of the forwards")
    parser.add_argument("--backend", default="inductor", help="of torch.compile; aot_eager tries the script itself")
    parser.add_argument("--outputs", default=",".join(_RIVALS))
    parser.add_argument("--rows", type=int, help="rows of each corpus, instead of a number that suits the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="processes of bertfeat, which share the device")
    parser.add_argument("--output", type=Path, help="write OUTPUT.json, .md, .png and .svg")
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; --device cpu --models bert-tiny tries the script itself")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        if "forwards" in arguments.parts.split(","):
            forwards(Path(folder), arguments)
        if "runs" in arguments.parts.split(","):
            runs(Path(folder), arguments)


def forwards(folder: Path, arguments: argparse.Namespace) -> None:
    """Measure the ways to run the encoder, and print a table; write it and the figures beside the report."""
    if not arguments.device.startswith("cuda"):
        register_on_cpu()
    found: dict[str, Any] = {"machine": describe_machine(), "results": {}}
    for model in arguments.models.split(","):
        shape = get_model(model, folder)
        for corpus in _FORWARD_CORPORA:
            for dtype in arguments.dtypes.split(","):
                print(f"forwards {model} {corpus} {dtype}", file=sys.stderr)
                setup = Setup(n_rounds=arguments.rounds, device=arguments.device)
                found["results"][f"{model}, {corpus}, {dtype}"] = compare(
                    *(shape, corpus, folder, setup),
                    dtype=dtype,
                    n_rows=arguments.rows or _FORWARD_ROWS,
                    n_tokens=0 if arguments.rows else _FORWARD_TOKENS,
                    backend=arguments.backend,
                )
    text = forwards_table(found["results"])
    print(text)
    if arguments.output:
        Path(f"{arguments.output}-forwards.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        Path(f"{arguments.output}-forwards.md").write_text(text + "\n", encoding="utf-8")


def forwards_table(results: dict[str, Any]) -> str:
    """Return a table in Markdown with a line for each way of each workload; the fastest of ours is marked `keep`."""
    lines = [
        "| workload | way | tokens/s | ratio to eager | warming up, s | least cosine | |",
        "|---|---|---|---|---|---|---|",
    ]
    for workload, result in results.items():
        ours = {name: facts for name, facts in result["ways"].items() if not name.startswith("sentence-transformers")}
        best = max(ours, key=lambda name: ours[name]["ratio"])
        for name, facts in result["ways"].items():
            figures = f"{facts['tokens_per_s']:,.0f} | {facts['ratio']:.2f} | {facts['warm_up_s']:.1f}"
            mark = "keep" if name == best else ""
            lines.append(f"| {workload} | {name} | {figures} | {facts['least_cosine']:.6f} | {mark} |")
        lines += [f"| {workload} | {name} | - | - | - | - | {reason} |" for name, reason in result["missing"].items()]
    return "\n".join(lines)


def runs(folder: Path, arguments: argparse.Namespace) -> None:
    """Measure whole runs against peers and the limits of the machine."""
    results = {}
    for model in arguments.models.split(","):
        for output in arguments.outputs.split(","):
            name = f"gpu-{model}-{output}"
            print(name, file=sys.stderr)
            place = folder / name
            place.mkdir()
            results[name] = measure(model, output, place, arguments)
            if arguments.output:
                write_report(results, arguments.output, "python -m benchmarks.gpu " + " ".join(sys.argv[1:]))
    print(table(results))
    for name, result in results.items():
        print(name, {key: round(value, 3) for key, value in result["limits"].items()})


def measure(model: str, output: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one model and output, and compare it with the limits of the machine."""
    is_cuda = arguments.device.startswith("cuda")
    n_rows = arguments.rows or round(_ROWS[model] * (_TOKEN_ROWS_PART if output.startswith("token") else 1))
    title = f"{model}, {output}, {'bfloat16' if is_cuda else 'float32'} on {arguments.device}"
    rivals = {name: Entry(name) for name in _RIVALS[output]}
    workload = Workload(title, "passages", output, n_rows, rivals, model=model)
    shape = get_model(model, folder)
    setup = Setup(
        n_rounds=arguments.rounds,
        device=arguments.device,
        dtype="bfloat16" if is_cuda else "float32",
        n_warm_tokens=500_000 if is_cuda else 2048,
        pack_tokens=default_max_batch_tokens("cuda" if is_cuda else "cpu", shape.hidden_size),
        sweep=is_cuda,
        n_workers=arguments.workers,
    )
    result = run_workload(workload, folder, setup)
    result["limits"] = limits(result, model, folder, setup)
    return result


def limits(result: dict[str, Any], model: str, folder: Path, setup: Setup) -> dict[str, float]:
    """Return the rates of the machine, and the part of each that the run reached."""
    ours = result["rivals"]["bertfeat"]
    seconds = result["n_tokens"] / ours["tokens_per_s"]
    output = OUTPUTS[result["output"]]
    shape = get_model(model, folder)
    n_layers = len(output.absolute(shape.n_layers))
    rows = result["n_tokens"] if output.level == "token" else result["n_rows"]
    n_bytes = rows * n_layers * shape.hidden_size * (2 if output.dtype == "float16" else 4)
    dtype = getattr(torch, setup.dtype)
    size = 8192 if setup.device.startswith("cuda") else 512
    matrix = matrix_rate(size, device=setup.device, dtype=dtype) * 1e9
    shaped = statistics.median(max(rates.values()) for rates in result["gemm_gflops"]) * 1e9
    alone = encoder_alone(shape, "passages", folder, setup, n_rows=min(result["n_rows"], 20_000))
    device_bytes_per_s = alone["tokens_per_s"] * n_bytes / result["n_tokens"]
    disk = disk_rate(folder)
    found = {
        "matrix_tflops": matrix / 1e12,
        "model_shaped_tflops": shaped / 1e12,
        "encoder_alone_tflops": alone["gflops"] / 1e3,
        "reached_tflops": result["flops"] / seconds / 1e12,
        "share_of_matrix_rate": result["flops"] / seconds / matrix,
        "share_of_model_shaped_rate": result["flops"] / seconds / shaped,
        "share_of_encoder_alone": ours["tokens_per_s"] / alone["tokens_per_s"],
        "vectors_gb_per_s": n_bytes / seconds / 1e9,
        "disk_gb_per_s": disk / 1e9,
        "share_of_disk_or_device": n_bytes / seconds / min(disk, device_bytes_per_s),
    }
    if setup.device.startswith("cuda"):
        found["copy_gb_per_s"] = copy_rate(setup.device) / 1e9
        # Of the last round, without the time of loading the model, when the device is idle.
        wall_s, start_up_s = ours["wall_s"][-1], ours["start_up_s"][-1]
        found["gpu_busy"] = min(1.0, ours.get("gpu_busy", math.nan) * wall_s / (wall_s - start_up_s))
    return found


def copy_rate(device: str, n_bytes: int = 1 << 30, n_copies: int = 5) -> float:
    """Return the rate of copies from the device to pinned memory, in bytes per second."""
    there = torch.empty(n_bytes, dtype=torch.uint8, device=device)
    here = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    here.copy_(there)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n_copies):
        here.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    return n_bytes * n_copies / (time.perf_counter() - start)


def disk_rate(folder: Path, n_bytes: int = 1 << 30) -> float:
    """Return the rate of writing a file in pieces of 16 MiB until it is on disk, in bytes per second."""
    path, piece = folder / "disk-rate", os.urandom(1 << 24)
    start = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(n_bytes // len(piece)):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return n_bytes / seconds


if __name__ == "__main__":
    main()
