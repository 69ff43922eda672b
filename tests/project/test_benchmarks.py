"""The benchmarks of speed: their corpora, their outputs, and one small run of the whole harness."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

import bertfeat
from benchmarks import hub_check
from benchmarks.speed.child import timed
from benchmarks.speed.corpora import CORPORA, count_tokens, padded_share
from benchmarks.speed.equality import assert_same_files
from benchmarks.speed.harness import Setup, make_task, run_workload
from benchmarks.speed.models import Shape, get_model
from benchmarks.speed.outputs import OUTPUTS
from benchmarks.speed.peers import make_peer
from benchmarks.speed.peers.writing import write_features
from benchmarks.speed.report import table, write_report
from benchmarks.speed.rivals import ENVIRONMENTS
from benchmarks.speed.workloads import CORPUS_ORDER, ENCODE, FLAIR, ONE, SORTED, WORKLOADS
from bertfeat.encoder.hub import is_hub_id
from bertfeat.encoder.packaged import minilm
from tests.support.places import ROOT


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(str(minilm().folder))


@pytest.mark.parametrize("name", CORPORA)
def test_corpora_are_the_same_each_time_and_no_text_is_cut(name, tokenizer):
    texts = CORPORA[name](tokenizer, 300)
    assert texts == CORPORA[name](tokenizer, 300)
    assert len(texts) == 300
    assert max(count_tokens(tokenizer, texts, 10_000)) <= 512


def test_mixed_lengths_are_of_all_orders_of_magnitude(tokenizer):
    lengths = np.array(count_tokens(tokenizer, CORPORA["mixed"](tokenizer, 2000), 512))
    assert lengths.min() <= 6
    assert lengths.max() >= 480
    # Log-uniform from 4 to 512: each factor of two has a seventh of the texts.
    shares = [((lengths >= low) & (lengths < 2 * low)).mean() for low in (8, 16, 32, 64, 128, 256)]
    assert np.allclose(shares, 1 / 7, atol=0.05)


def test_every_fifth_row_of_the_duplicates_repeats_another(tokenizer):
    texts = CORPORA["duplicates"](tokenizer, 1000)
    assert len(set(texts)) == 800
    assert len(set(CORPORA["distinct"](tokenizer, 1000))) == 1000


def test_padding_is_counted_by_batches():
    assert padded_share([4, 2, 1, 1], 2) == 1 - 8 / 10
    assert padded_share([3, 3, 3], 32) == 0


def test_operations_are_those_of_bert_base():
    """One window of one token: 12 blocks of 4 products of 768 x 768, two of 768 x 3072, and attention to itself."""
    base = Shape(Path(), n_layers=12, hidden_size=768, inner_size=3072, n_heads=12)
    assert base.flops([1]) == 12 * (2 * (4 * 768**2 + 2 * 768 * 3072) + 4 * 768)
    assert base.flops([10, 10], 6) < base.flops([20], 6)


def test_an_output_names_the_columns_that_bertfeat_writes(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one line\n")
    for name in ("token-last4-concat", "word-concat4"):
        output = OUTPUTS[name]
        store = bertfeat.extract(corpus, tmp_path / name, **output.settings())
        features = store.schema(output.level).features
        assert {feature.name: feature.layers for feature in features} == output.columns(6)


def test_other_vectors_and_other_rows_are_found(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one line\nand another one\n")
    output = OUTPUTS["sentence"]
    store = bertfeat.extract(corpus, tmp_path / "store", **output.settings())
    vectors, path = store.numpy("sentence", "layer_06"), tmp_path / "peer.parquet"
    write_features(path, {"doc_id": [0, 1]}, {"layer_06": vectors})
    assert assert_same_files(store.path, path, output, 6) == {"largest_difference": 0}
    assert assert_same_files(store.path, store.path, output, 6) == {"largest_difference": 0}
    write_features(path, {"doc_id": [0, 1]}, {"layer_06": vectors + np.float32(2e-4)})
    with pytest.raises(AssertionError, match="layer_06: differs by"):
        assert_same_files(store.path, path, output, 6)
    turned = vectors + np.float32([0.2]) * np.roll(vectors, 1, axis=1)
    write_features(path, {"doc_id": [0, 1]}, {"layer_06": turned})
    with pytest.raises(AssertionError, match=r"layer_06: a cosine of 0\.9"):
        assert_same_files(store.path, path, output, 6, dtype="bfloat16")
    expected = np.sum(vectors * turned, 1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(turned, axis=1)
    found = assert_same_files(store.path, path, output, 6, dtype="int8")
    assert found == pytest.approx({"cosine_least": expected.min(), "cosine_mean": expected.mean()}, abs=1e-6)
    write_features(path, {"doc_id": [1, 0]}, {"layer_06": vectors})
    with pytest.raises(AssertionError, match="doc_id differs"):
        assert_same_files(store.path, path, output, 6)


@pytest.mark.long
def test_rivals_run_in_turns_and_those_that_are_missing_are_named(tmp_path, monkeypatch):
    for variable, _ in ENVIRONMENTS.values():
        monkeypatch.setenv(variable, "/no/such/python")
    only = (CORPUS_ORDER, FLAIR)
    # Enough rows that their time is long compared with that of starting up, which is subtracted.
    result = run_workload(WORKLOADS["short-word"], tmp_path, Setup(n_rounds=2, n_rows=300, sweep=False, only=only))
    assert set(result["rivals"]) == {"bertfeat", CORPUS_ORDER}
    assert "set FLAIR_PYTHON" in result["missing"][FLAIR]
    theirs = result["rivals"][CORPUS_ORDER]
    assert len(theirs["wall_s"]) == len(theirs["cpu_s"]) == len(result["gemm_gflops"]) == 2
    assert 0 < theirs["largest_difference"] < 0.01
    write_report({"short-word": result}, tmp_path / "speed", "the command")
    write_report({"other": {}}, tmp_path / "speed", "another command")
    written = json.loads((tmp_path / "speed.json").read_text())["results"]
    assert written["short-word"]["command"] == "the command"
    assert set(written) == {"short-word", "other"}
    assert f"| | {FLAIR} | missing |" in table(written)
    assert all((tmp_path / f"speed{suffix}").stat().st_size > 1000 for suffix in (".png", ".svg"))


@pytest.mark.long
def test_vectors_in_memory_are_compared_too(tmp_path):
    setup = Setup(n_rounds=1, n_rows=12, sweep=False, only=(ENCODE,))
    result = run_workload(WORKLOADS["short-memory"], tmp_path, setup)
    assert result["rivals"][ENCODE]["largest_difference"] < 1e-4


@pytest.mark.parametrize("name", ["token-last4-concat", "sentence"])
def test_peers_and_bertfeat_leave_the_same_vectors(name, tmp_path):
    corpus, task = tmp_path / "corpus.txt", make_task(get_model("minilm", tmp_path), name, tmp_path)
    corpus.write_text("a rather longer line than the others\nshort\nshort\nof four words\n")
    outputs = {}
    for peer in ("bertfeat", CORPUS_ORDER, SORTED, ONE):
        outputs[peer] = tmp_path / peer
        measured = timed(make_peer(peer, task), {"do": "run", "corpus": corpus, "output": outputs[peer], "batch": 2})
        assert min(measured["wall_s"], measured["cpu_s"], measured["peak_bytes"]) > 0
    for peer in (CORPUS_ORDER, SORTED, ONE):
        assert_same_files(outputs["bertfeat"], outputs[peer], OUTPUTS[name], 6)


def test_the_file_of_a_peer_holds_one_row_per_token(tmp_path):
    from benchmarks.speed.peers.sorted_batches import Peer

    corpus, path = tmp_path / "corpus.txt", tmp_path / "out.parquet"
    corpus.write_text("a rather longer line\nshort\n")
    Peer(make_task(get_model("minilm", tmp_path), "token-last4", tmp_path)).run(corpus, path, 2)
    table_ = pq.read_table(path)
    assert table_["token"].to_pylist() == ["[CLS]", "a", "rather", "longer", "line", "[SEP]", "[CLS]", "short", "[SEP]"]
    assert table_["doc_id"].to_pylist() == [0] * 6 + [1] * 3
    assert table_.column_names[3:] == ["layer_03", "layer_04", "layer_05", "layer_06"]


@pytest.fixture
def checked(tiny_folder, tmp_path):
    """Check MiniLM, a random model and one that is missing; return the exit code and the rows."""

    def check(*models):
        output = tmp_path / "hub.json"
        code = hub_check.main(
            ["--models", *models, str(tmp_path / "missing"), "--lines=4", "--rounds=1", f"--output={output}"]
        )
        result = json.loads(output.read_text())
        assert result["machine"]["torch"]
        return code, result["models"]

    with pytest.MonkeyPatch.context() as patch:
        # These settings of transformers would last.
        for name in ("set_verbosity_error", "disable_progress_bar"):
            patch.setattr(hub_check.transformers.utils.logging, name, lambda: None)
        yield check


def test_models_are_compared_in_every_layer_and_a_missing_one_is_a_row(checked, tiny_folder, capsys):
    code, (minilm_row, tiny, missing) = checked("minilm", str(tiny_folder))
    assert code == 0
    assert (minilm_row["verdict"], minilm_row["layers"], tiny["verdict"], tiny["layers"]) == ("equal", 7, "equal", 4)
    assert 0 < minilm_row["relative"] < 1e-5
    assert minilm_row["texts"] > tiny["texts"] > 0, "texts that are too long for a model are left out"
    assert missing["verdict"].startswith("refused: model ")
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].startswith("| model | commit | family | layers |")
    assert lines[5].startswith("| minilm |  | bert | 7 | ")
    assert checked()[0] == 1, "nothing was compared"


def test_a_model_that_differs_or_fails_does_not_end_the_check(checked, tiny_folder, monkeypatch):
    plain = hub_check.Reference.states

    def states(self, text):
        found = plain(self, text)
        found[2] = found[2] + 2e-4
        return found

    monkeypatch.setattr(hub_check.Reference, "states", states)
    code, rows = checked(str(tiny_folder))
    assert (code, rows[0]["verdict"]) == (1, "differs: layers 2")
    monkeypatch.setattr(hub_check.Reference, "states", lambda self, text: 1 / 0)
    code, rows = checked(str(tiny_folder))
    assert (code, rows[0]["verdict"]) == (1, "failed: ZeroDivisionError: division by zero")
    monkeypatch.setattr(hub_check.Reference, "tokens", lambda self, text: {"input_ids": np.zeros((1, 3), int)})
    assert checked(str(tiny_folder))[1][0]["verdict"].startswith("differs: other tokens in 'Hm.'")
    assert len(rows) == 2
    assert rows[1]["verdict"].startswith("refused")


def test_the_models_of_the_table_are_hub_ids():
    assert len(set(hub_check.MODELS.values())) == len(hub_check.MODELS) == 16
    assert all(is_hub_id(name) and "/" in name for name in hub_check.MODELS.values())


def run_benchmark(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.mark.long
def test_the_benchmark_for_a_gpu_runs_without_one(tmp_path):
    tiny = ("--parts=forwards", "--device=cpu", "--models=bert-tiny", "--rows=12", "--rounds=1", "--backend=aot_eager")
    printed = run_benchmark(tmp_path, "benchmarks.gpu", *tiny, "--dtypes=bfloat16,float32", "--output=result")
    results = json.loads((tmp_path / "result-forwards.json").read_text())["results"]
    assert len(results) == 3 * 2
    of_packs = {"compiled", "compiled, reduce-overhead", "compiled, max-autotune"}
    for name, result in results.items():
        assert {"eager", "compiled, by length", "sentence-transformers, sdpa"} <= set(result["ways"])
        assert (of_packs <= set(result["ways"])) == name.endswith("bfloat16")
        assert all(facts["ratio"] > 0 and facts["warm_up_s"] > 0 for facts in result["ways"].values())
        assert name.endswith("float32") or "CUDA device" in result["missing"]["CUDA graph"]
    assert printed.count("| keep |") == len(results)


@pytest.mark.long
def test_the_benchmark_of_scale_runs_on_little(tmp_path):
    found = json.loads(run_benchmark(tmp_path, "benchmarks.scale", "files", "--files=30", "--whole"))["files"]
    assert [*found] == ["plan", "plan again", "extract", "verify"]
    for name in ("plan", "plan again"):
        assert (found[name]["files"], found[name]["rows"], found[name]["shards"]) == (30, 30, 1)
        assert {"list and digest", "plan", "open the store"} < set(found[name]["steps"])
    found = json.loads(run_benchmark(tmp_path, "benchmarks.scale", "rows", "--rows=120"))["rows"]
    assert [each["rows"] for each in found.values()] == [12, 12, 120, 120]
    found = json.loads(run_benchmark(tmp_path, "benchmarks.scale", "rates", "--rows=1"))["rates"]
    assert [*found] == ["1 x 1 rows", "10 x 1 rows", "100 x 1 rows"]
    assert all(each["rate_to_1"] > 0 and each["peak_to_1"] > 0 for each in found.values())
    found = json.loads(run_benchmark(tmp_path, "benchmarks.scale", "make", "--shards=12", "--store=store"))["make"]
    assert (found["rows"], found["shards"]) == (12, 12)
    found = json.loads(run_benchmark(tmp_path, "benchmarks.scale", "shards", "--store=store"))["shards"]
    assert found["shards"] == 12
