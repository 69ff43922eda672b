"""The benchmarks: one small run of each family, and what makes their comparisons fair."""

from __future__ import annotations

import numpy as np
import pytest

import bertfeat
from benchmarks.speed.child import timed
from benchmarks.speed.equality import assert_same_files
from benchmarks.speed.harness import make_task
from benchmarks.speed.models import get_model
from benchmarks.speed.outputs import OUTPUTS
from benchmarks.speed.peers import make_peer
from benchmarks.speed.peers.writing import write_features
from benchmarks.speed.workloads import CORPUS_ORDER, ONE, SORTED


def test_other_vectors_and_other_rows_are_found(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one line\nand another one\n")
    output = OUTPUTS["sentence"]
    store = bertfeat.extract(corpus, tmp_path / "store", **output.settings())
    vectors, path = store.numpy("sentence", "layer_06"), tmp_path / "peer.parquet"
    write_features(path, {"doc_id": [0, 1]}, {"layer_06": vectors})
    assert assert_same_files(store.path, path, output, 6) == {"largest_difference": 0}
    write_features(path, {"doc_id": [0, 1]}, {"layer_06": vectors + np.float32(2e-4)})
    with pytest.raises(AssertionError, match="layer_06: differs by"):
        assert_same_files(store.path, path, output, 6)
    turned = vectors + np.float32([0.2]) * np.roll(vectors, 1, axis=1)
    write_features(path, {"doc_id": [0, 1]}, {"layer_06": turned})
    with pytest.raises(AssertionError, match=r"layer_06: a cosine of 0\.9"):
        assert_same_files(store.path, path, output, 6, dtype="bfloat16")
    write_features(path, {"doc_id": [1, 0]}, {"layer_06": vectors})
    with pytest.raises(AssertionError, match="doc_id differs"):
        assert_same_files(store.path, path, output, 6)


def test_peers_and_bertfeat_leave_the_same_vectors(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a rather longer line than the others\nshort\nshort\nof four words\n")
    for name in ("token-last4-concat", "sentence"):
        task = make_task(get_model("minilm", tmp_path), name, tmp_path)
        outputs = {}
        for peer in ("bertfeat", CORPUS_ORDER, SORTED, ONE):
            outputs[peer] = tmp_path / f"{name}-{peer}"
            asked = {"do": "run", "corpus": corpus, "output": outputs[peer], "batch": 2}
            measured = timed(make_peer(peer, task), asked)
            assert min(measured["wall_s"], measured["cpu_s"], measured["peak_bytes"]) > 0
        for peer in (CORPUS_ORDER, SORTED, ONE):
            assert_same_files(outputs["bertfeat"], outputs[peer], OUTPUTS[name], 6)
