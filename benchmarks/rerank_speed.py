"""Cost of reranking: bytes per token, seconds to build, and milliseconds per query, against pylate's reranking.

    python -m benchmarks.rerank_speed --store STORE --folder WORK [--rounds 5]
    python -m benchmarks.rerank_speed --folder WORK --quick

STORE has token rows and sentence rows. Its texts are cut to 12 words to make 200 queries, which are encoded before
anything is timed. The dense search and the reranked ones take turns, one query at a time and in a batch. pylate, if
installed, reranks the same candidates by the same vectors, float32 in memory; its scores are asserted equal. Then the
codes are repeated until there are ten million tokens, and random candidates are reranked, without a dense search.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import bertfeat
from benchmarks.machine import report
from benchmarks.measured import ROOT
from bertfeat.ann.token_codes import CodeKind, TokenCodes, centred, code_type
from bertfeat.plots.tables import markdown_table
from bertfeat.search.index import Index

N_QUERIES, N_CANDIDATES, K = 200, 100, 10
N_TOKENS = 10_000_000


def milliseconds(calls: dict[str, Callable[[], Any]], rounds: int, n: int) -> dict[str, float]:
    """Return the median milliseconds of calls that take turns, divided by `n`."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    # The first round reads files.
    return {name: 1000 * statistics.median(found[1:]) / n for name, found in seconds.items()}


def one_by_one(index: Index, encoded: list[Any], rerank: str) -> Callable[[], None]:
    def call() -> None:
        for query in encoded:
            index.search(query, K, rerank=rerank, columns=["row"])

    return call


def at_once(index: Index, encoded: Any, rerank: str) -> Callable[[], Any]:
    return lambda: index.search(encoded, K, rerank=rerank, columns=["row"])


def pylate_calls(index: Index, encoded: list[Any]) -> Callable[[], list[Any]]:
    """Return a function that reranks the candidates of each query by pylate, from float32 vectors in memory."""
    import torch
    from pylate import rank

    store, tokens = index.store, index.store.polars("token", ["doc_id", "is_special"])
    kept = tokens.with_row_index().filter(~pl.col("is_special"))
    vectors = store.numpy("token", index.origin.rerank.spec.feature)[kept["index"].to_numpy()]
    mean = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    borders = np.searchsorted(kept["doc_id"].to_numpy(), np.arange(len(store) + 1))
    units = torch.from_numpy(centred(vectors, mean))
    documents = [units[start:end] for start, end in itertools.pairwise(borders)]
    queries = [torch.from_numpy(centred(query.tokens[0].vectors, mean)) for query in encoded]

    def call() -> list[Any]:
        found = []
        for query, own in zip(encoded, queries, strict=True):
            _, positions = index.nearest(query.vectors, N_CANDIDATES)
            ids = positions[0].tolist()
            found += rank.rerank([ids], own[None], [[documents[n] for n in ids]])
        return found

    return call


def check_equal(index: Index, encoded: list[Any], found: list[Any]) -> None:
    """Assert that pylate, whose score is a sum over the tokens of a query, has the scores of float16 codes."""
    for query, hits in zip(encoded, found, strict=True):
        ours = index.search(query, N_CANDIDATES, rerank="maxsim", columns=["row"])
        scores = {hit["id"]: hit["score"] / len(query.tokens[0].surfaces) for hit in hits}
        more = np.array([scores[row] for row in ours["row"]]) - ours["score"].to_numpy()
        # pylate pads documents with zeros, which a token of the query meets if all its cosines are negative.
        assert more.min() > -2e-3
        assert np.mean(more < 2e-3) > 0.98


def many_tokens(index: Index, encoded: list[Any], n_tokens: int, rounds: int) -> dict[str, float]:
    """Return milliseconds per query of reranking random candidates among `n_tokens` tokens, in a mapped file."""
    kind, dim = CodeKind(index.origin.rerank.codes), index.origin.rerank.spec.dim
    codes = np.memmap(index.path / "tokens.codes", code_type(kind, dim), mode="r")
    lengths = index._rerank_tokens.codes.lengths
    times = -(-n_tokens // len(codes))
    path = index.path.with_name("many.codes")
    with path.open("wb") as file:
        for _ in range(times):
            file.write(codes.tobytes())
    offsets = np.append(0, np.cumsum(np.tile(lengths, times)))
    many = TokenCodes(np.memmap(path, codes.dtype, mode="r"), offsets, index._rerank_tokens.codes.mean, kind)
    asked = [index._rerank_tokens.reranker(query.tokens, "maxsim").asked for query in encoded]
    rng, n = np.random.default_rng(0), min(N_CANDIDATES, len(offsets) - 1)
    drawn = [rng.choice(len(offsets) - 1, n, replace=False) for _ in encoded]

    def call() -> None:
        for query, documents in zip(asked, drawn, strict=True):
            many.maxsim(query, np.zeros(n, np.int64), documents)

    return milliseconds({f"reranking alone, {len(many.codes):,} tokens": call}, rounds, len(encoded))


def main() -> None:
    """Build, search and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.quick:
        corpus, settings = ROOT / "examples" / "data" / "peps.txt", {"layers": "-1", "pooling": "model"}
        arguments.store = arguments.folder / "store"
        bertfeat.extract(corpus, arguments.store, levels="token,sentence", **settings)
    store = bertfeat.open_store(arguments.store)
    texts = store.polars("sentence", ["text"])["text"].to_list()[:: max(1, len(store) // N_QUERIES)]
    rows: dict[str, dict[str, Any]] = {}
    for codes in CodeKind:
        path = arguments.folder / f"index-{codes}"
        start = time.perf_counter()
        bertfeat.build_index(store, path, level="sentence", overwrite=True).close()
        dense_s = time.perf_counter() - start
        start = time.perf_counter()
        rerank = {"rerank": "token", "codes": codes}
        with bertfeat.build_index(store, path, level="sentence", overwrite=True, **rerank) as index:
            seconds = time.perf_counter() - start - dense_s
            queries = [" ".join(text.split()[3:15]) for text in texts]
            whole = index.encode(queries)
            encoded = [index.encode(query) for query in queries]
            calls = {how: one_by_one(index, encoded, how) for how in ("none", "maxsim", "mixed")}
            if find_spec("pylate") and codes == CodeKind.FLOAT16:
                calls["pylate"] = pylate_calls(index, encoded)
                check_equal(index, encoded, calls["pylate"]())
            found = milliseconds(calls, arguments.rounds, len(encoded))
            batch = {f"{how}, batch": at_once(index, whole, how) for how in ("none", "mixed")}
            found |= milliseconds(batch, arguments.rounds, len(encoded))
            n_tokens = index.origin.rerank.n_tokens
            n_bytes = (path / "tokens.codes").stat().st_size / n_tokens
            found |= many_tokens(index, encoded, n_tokens if arguments.quick else N_TOKENS, arguments.rounds)
            rows[codes] = {
                "tokens": n_tokens,
                "bytes per token": n_bytes,
                "build s per million": 1e6 * seconds / n_tokens,
            }
            rows[codes] |= {f"ms, {name}": value for name, value in found.items()}
    names = list(dict.fromkeys(name for found in rows.values() for name in found))
    lines = [[name, *(f"{rows[codes][name]:,.2f}" if name in rows[codes] else "" for codes in rows)] for name in names]
    print(markdown_table(["", *map(str, rows)], lines) + "\n")
    report({"command": " ".join(sys.argv[1:]), "results": rows}, arguments.folder / "machine.json")


if __name__ == "__main__":
    main()
