"""Factory strings: estimated sizes against real indexes, and no string ends the process."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys

import pytest

from bertfeat.ann.factory import describe
from bertfeat.ann.library import faiss
from bertfeat.errors import UserError
from bertfeat.vectors.nearest import Metric
from tests.support.search_vectors import mixture

DIM = 32

STORAGES = [
    *("Flat", "SQ6", "SQfp16", "PQ8x4", "RaBitQ4", "IVF16,SQ8", "IVF16,PQ8", "IVF16,RaBitQ2", "IVF64_HNSW16,Flat"),
    *("HNSW32", "HNSW16,PQ8", "IVF16,PQ16x4fs,Refine(SQ8)", "IVF16,PQ8,RFlat", "IVF16,SQ4,Refine(SQfp16)"),
]


def built(text: str, metric: Metric, n: int):
    vectors = mixture(n, DIM)
    index = describe(text, DIM, metric).make()
    index.train(vectors[:1000])
    index.add(vectors)
    return index


@pytest.mark.parametrize("text", STORAGES)
def test_an_estimate_is_the_size_of_the_file(text):
    # The second metric where faiss builds something else for it.
    for metric in (Metric.IP, Metric.L2) if "IVF" in text else (Metric.COSINE,):
        n_vectors = 4000
        n_bytes = len(faiss.serialize_index(built(text, metric, n_vectors)))
        assert describe(text, DIM, metric).estimate_bytes(n_vectors) == pytest.approx(n_bytes, rel=0.02, abs=1500)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is not known here; use Flat, SQ8"),
        ("IVF0,Flat", "the lists of IVF are 0; give 1 to 1048576"),
        ("HNSW1", "the links of HNSW are 1; give 2 to 256"),
        ("PQ8x4fs", "it is not known here; use Flat, SQ8"),
        ("PQ7", "PQ cuts 32 dimensions into 7 parts; give a number that divides 32: 1, 2, 4, 8, 16, 32"),
        ("OPQ8_64,PQ8", "the dimensions that OPQ leaves are 64; give 1 to 32"),
        ("PCA16,PQ8", "PCA16 is a linear step; use `transform`"),
    ],
)
def test_a_wrong_string_is_refused_in_one_line(text, reason):
    with pytest.raises(UserError) as caught:
        describe(text, DIM)
    message = str(caught.value)
    assert message.startswith(f"index {text[:200]!r} of 32 dimensions: ")
    assert reason in message
    assert "\n" not in message


CHILD = """
import json, sys
import faiss, numpy as np
from bertfeat.errors import UserError
from bertfeat.ann.factory import describe
faiss.omp_set_num_threads(1)
vectors = np.random.default_rng(0).normal(size=(400, 8)).astype("f4")
n_built = 0
for text in json.load(sys.stdin):
    print(text, flush=True)
    try:
        index = describe(text, 8).make()
    except UserError:
        continue
    index.train(vectors)
    index.add(vectors[:300])
    index.add(vectors[300:])
    scores, positions = index.search(vectors[:5], 3)
    assert (positions < 400).all() and len(index.reconstruct(0) if "Flat" == text else vectors[0]) == 8
    n_built += 1
print("built", n_built)
"""


def test_no_string_ends_the_process():
    prefixes = ["", "", "OPQ0,", "OPQ2,", "OPQ4_0,", "OPQ4_4,", "OPQ3_8,", "OPQ4_16,", "PCA4,"]
    heads = ["", "IVF0,", "IVF1,", "IVF4,", "IVF4_HNSW0,", "IVF4_HNSW4,", "HNSW0,", "HNSW1,", "HNSW2,"]
    storages = [
        *("Flat", "SQ0", "SQ4", "SQ8", "SQfp16", "PQ0", "PQ4", "PQ4x0", "PQ4x1", "PQ4x4", "PQ5x4", "PQ4x4fs"),
        *("PQ4x0fs", "PQ3x4fs", "RaBitQ", "RaBitQ0", "RaBitQ3", "RaBitQ9", "Pad9", "RFlat"),
    ]
    suffixes = ["", ",RFlat", ",Refine(SQ8)", ",Refine(PQ4)", ",Refine(Flat)"]
    texts = ["".join(parts) for parts in itertools.product(prefixes, heads, storages, suffixes)]
    some = random.Random(0).sample(texts, 100)
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(some), capture_output=True, text=True, timeout=120, check=False
    )
    last = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0, (last, done.stderr[-500:])
    assert int(last.split()[1]) > 5
