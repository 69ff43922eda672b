"""From a text file to fsynced Parquet: bertfeat against the script that people usually write.

Both read the same file, run the same MiniLM in float32, and leave one float16 column, the last four layers
concatenated, one row a token. The usual script takes the sentences in corpus order, 32 padded ones a batch, and writes
with pyarrow. Rivals run in turns (A B A B ...) in one process after a warm-up; both load the model themselves. Equality
of every vector is asserted in the same run. The rate of plain matrix products of the model's shapes is measured beside
each round, since machines drift.

    python benchmarks/extract.py [--quick] [--rounds 3] [--corpus FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from machine import describe_machine, gemm_gflops
from transformers import AutoModel, AutoTokenizer

import bertfeat
from bertfeat.encoder.packaged import minilm

CORPUS = Path(__file__).parent / "data" / "ewt.txt.gz"
BATCH = 32
TOLERANCE = 1e-4


def usual_script(corpus: Path, output: Path) -> None:
    """What is usually written: corpus order, padded batches, everything in memory, pyarrow."""
    folder = minilm().folder
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model = AutoModel.from_pretrained(str(folder)).eval()
    texts = corpus.read_text(encoding="utf-8").splitlines()
    doc_ids, indices, tokens, vectors = [], [], [], []
    with torch.no_grad():
        for start in range(0, len(texts), BATCH):
            batch = tokenizer(
                texts[start : start + BATCH], padding=True, truncation=True, max_length=512, return_tensors="pt"
            )
            states = model(**batch, output_hidden_states=True).hidden_states
            last4 = torch.cat(states[-4:], dim=-1)
            for i, mask in enumerate(batch["attention_mask"]):
                n = int(mask.sum())
                doc_ids += [start + i] * n
                indices += range(n)
                tokens += tokenizer.convert_ids_to_tokens(batch["input_ids"][i][:n])
                vectors.append(last4[i, :n].numpy().astype(np.float16))
    flat = np.concatenate(vectors)
    column = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
    table = pa.table({"doc_id": doc_ids, "token_index": indices, "token": tokens, "concat_last4": column})
    pq.write_table(table, output, compression="none")
    with output.open("rb") as file:
        os.fsync(file.fileno())


def with_bertfeat(corpus: Path, output: Path) -> None:
    """The same column by bertfeat, committed and fsynced part by part."""
    bertfeat.extract(corpus, output, combine="concat")


def assert_equal(usual: Path, ours: Path) -> int:
    """Assert that both wrote the same tokens and, up to one rounding to float16, the same vectors; return the rows."""
    expected = pq.read_table(usual)
    found = bertfeat.open_store(ours)
    assert found.polars("token", ["token"])["token"].to_list() == expected["token"].to_pylist()
    a = found.numpy("token", "concat_last4").astype(np.float32)
    column = expected["concat_last4"].combine_chunks()
    b = column.values.to_numpy(zero_copy_only=False).reshape(a.shape).astype(np.float32)
    # Each side is rounded to float16 once, so values may lie one step apart where the float32 values straddle.
    step = np.maximum(np.abs(b), 2.0**-14) * 2.0**-10
    assert (np.abs(a - b) <= TOLERANCE + step).all(), float(np.abs(a - b).max())
    return len(a)


def main() -> None:
    """Run the rounds and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="600 sentences, one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    opened = gzip.open if arguments.corpus.suffix == ".gz" else open
    with opened(arguments.corpus, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    lines = lines[:600] if arguments.quick else lines
    rounds = 1 if arguments.quick else arguments.rounds

    rivals: dict[str, Callable[[Path, Path], None]] = {"usual": usual_script, "bertfeat": with_bertfeat}
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    gemm = []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        corpus = Path(folder) / "corpus.txt"
        corpus.write_text("\n".join(lines[:64]) + "\n", encoding="utf-8")
        for name, run in rivals.items():
            run(corpus, Path(folder) / f"warm-{name}")
        corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
        n_tokens = 0
        for number in range(rounds):
            gemm.append(gemm_gflops())
            for name, run in rivals.items():
                start = time.perf_counter()
                run(corpus, Path(folder) / f"{number}-{name}")
                seconds[name].append(time.perf_counter() - start)
            n_tokens = assert_equal(Path(folder) / f"{number}-usual", Path(folder) / f"{number}-bertfeat")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratio = statistics.median(a / b for a, b in zip(seconds["usual"], seconds["bertfeat"], strict=True))
    result = {
        "corpus": arguments.corpus.name,
        "n_sentences": len(lines),
        "n_tokens": n_tokens,
        "seconds": {name: [round(t, 2) for t in times] for name, times in seconds.items()},
        "tokens_per_s": {name: round(n_tokens / t) for name, t in medians.items()},
        "ratio": round(ratio, 2),
        "gemm_gflops": [round(rate) for rate in gemm],
        "machine": describe_machine(),
    }
    for name, rate in result["tokens_per_s"].items():
        print(f"{name:<10} {rate:>8,} tokens/s   {seconds[name]}")
    print(f"bertfeat is {result['ratio']} times as fast; all {n_tokens:,} vectors equal")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
