"""A real extraction: write errors, second runs, odd rows, values and names, memory that runs out, and its peak."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bertfeat.durable import steps
from bertfeat.errors import FeatureError, StoreError, UserError
from bertfeat.extraction.run import extract
from bertfeat.store.verification import verify
from tests.support.command_line import flags_of, run_cli
from tests.support.drill import orphans, result_files, run_extract
from tests.support.places import ROOT
from tests.support.runner_fakes import wait_until
from tests.support.store_fakes import write_jsonl

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")


def run_limited(limit: int, command: list[str], ended: str) -> None:
    import torch

    # One thread, as here: on some processors, attention with heads of 8 values depends on their number.
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    Path(ended).write_text(json.dumps(run_cli(*command)))


@pytest.mark.promise("disk-full")
def test_a_file_size_limit_is_one_line_and_resumable(tmp_path, settings, warm):
    settings |= {"layers": "0,1,2"}
    whole = result_files(extract(output=tmp_path / "whole", **settings).path)
    limit = max(len(data) for name, data in whole.items() if name.startswith("word/")) - 1
    assert limit > max(len(data) for name, data in whole.items() if name.endswith("plan.json"))
    command = ["extract", *flags_of(settings), "-o", str(tmp_path / "s")]
    assert warm.run(run_limited, limit, command, str(tmp_path / "ended")) == 0
    exit_code, printed, errors = json.loads((tmp_path / "ended").read_text())
    assert (exit_code, printed, len(errors)) == (3, "", 1)
    assert "file too large" in errors[0]
    assert "ulimit -f" in errors[0]
    assert result_files(tmp_path / "s").items() < whole.items()
    extract(output=tmp_path / "s", **settings)
    assert result_files(tmp_path / "s") == whole


def run_and_wait(root: str, settings: dict[str, Any], ready: str) -> None:
    def hook(name: str) -> None:
        if name == "receipt.durable":
            Path(ready).touch()
            time.sleep(60)

    steps.hook = hook
    run_extract(root, settings)


@pytest.mark.promise("writers")
def test_a_second_run_is_refused_with_the_first_ones_process_and_a_stale_lock_is_none(tmp_path, settings, warm):
    root, ready = tmp_path / "s", tmp_path / "ready"
    first = warm.fork(run_and_wait, str(root), settings, str(ready))
    wait_until(ready.exists)
    before = result_files(root)
    exit_code, _, errors = run_cli("extract", *flags_of(settings), "-o", str(root))
    assert (exit_code, len(errors)) == (2, 1)
    assert f"process {first} on host" in errors[0]
    assert result_files(root) == before
    os.kill(first, signal.SIGKILL)
    assert warm.wait(first) == -signal.SIGKILL
    extract(output=root, **settings)
    assert verify(root).is_good


@pytest.mark.promise("rows")
def test_only_bad_rows_and_no_rows_give_a_valid_empty_store(tmp_path, settings):
    corpus = tmp_path / "bad.jsonl"
    corpus.write_text('{"id": \n[1]\n')
    store = extract(output=tmp_path / "bad", **settings | {"inputs": str(corpus), "bad_rows": "quarantine"})
    assert store.manifest.totals.n_bad_rows == 2
    (tmp_path / "none.csv").write_text("id,text\n")
    empty = extract(output=tmp_path / "none", **settings | {"inputs": str(tmp_path / "none.csv")})
    for made in (store, empty):
        assert verify(made.path).is_good
        assert made.n_rows("word") == made.n_rows("sentence") == 0
        assert made.numpy("sentence", "layer_02").shape == (0, 32)
        assert made.polars("word").columns[-1] == "layer_02"
        assert orphans(made.path) == []


@pytest.mark.promise("values")
@pytest.mark.parametrize(
    ("value", "dtype", "shown"),
    [(1e5, "float16", "inf"), (float("nan"), "float16", "nan"), (float("inf"), "float32", "inf")],
)
def test_features_that_are_not_finite_name_document_and_layer(tmp_path, settings, model, value, dtype, shown):
    # The last block adds the value to one component of its output.
    spoilt = shutil.copytree(model, tmp_path / "spoilt")
    weights = load_file(spoilt / "model.safetensors")
    name = next(name for name in weights if name.endswith("encoder.layer.1.output.LayerNorm.bias"))
    weights[name][3] = value
    save_file(weights, spoilt / "model.safetensors", metadata={"format": "pt"})
    settings |= {"model": str(spoilt), "store_dtype": dtype, "layers": "1,2", "levels": ["sentence"], "chunk": None}
    with pytest.raises(FeatureError, match=rf"document 'd0': layer_02 of sentence .* {shown}") as got:
        extract(output=tmp_path / "s", **settings)
    assert ("`store_dtype='float32'`" in str(got.value)) == (value == 1e5)
    if value == 1e5:
        fine = extract(output=tmp_path / "wide", **settings | {"store_dtype": "float32"})
        assert fine.numpy("sentence", "layer_02").max() > 99_000


@pytest.mark.promise("memory")
def test_packs_that_memory_does_not_hold_are_halved_and_the_receipts_say_so(tmp_path, settings, monkeypatch):
    whole = extract(output=tmp_path / "whole", **settings)
    forward = torch.nn.Embedding.forward

    def short_of_memory(self: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        if ids.numel() > 40:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(self, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", short_of_memory)
    store = extract(output=tmp_path / "s", **settings)
    assert [receipt.notes["n_halvings"] > 0 for receipt in store.receipts()] == [True, True, True]
    assert "n_halvings" not in (store.path / "manifests/00000.json").read_text()
    assert store.manifest.totals.counts == whole.manifest.totals.counts
    np.testing.assert_allclose(store.numpy("word", "layer_02"), whole.numpy("word", "layer_02"), atol=2e-3)
    assert "halvings" in run_cli("inspect", str(store.path))[1]


@pytest.mark.promise("paths")
def test_ids_never_become_paths(tmp_path, settings):
    odd = ["../../up", "/etc/passwd", "a\x00b", "..", "", "x" * 5000, "manifest.json", "\n", "C:\\x", "~"]
    corpus = write_jsonl(tmp_path / "odd.jsonl", [{"id": name, "text": "a b"} for name in odd])
    before = set(tmp_path.iterdir()) | {tmp_path / "s"}
    store = extract(output=tmp_path / "s", **settings | {"inputs": str(corpus)})
    assert set(tmp_path.iterdir()) == before
    assert store.polars("sentence", ["doc_id"])["doc_id"].to_list() == odd
    assert orphans(store.path) == []


@pytest.mark.promise("paths")
@pytest.mark.parametrize("place", ["", "word", "manifests/00000.json", "_bertfeat/tmp"])
def test_symbolic_links_in_the_outputs_place_are_refused(tmp_path, settings, place):
    target = tmp_path / "target"
    target.mkdir()
    root = tmp_path / "s"
    if place:
        extract(output=root, **settings | {"levels": ["word"], "chunk": None})
        shutil.rmtree(root / place) if (root / place).is_dir() else (root / place).unlink()
    (root / place).symlink_to(target)
    with pytest.raises((StoreError, UserError), match="symbolic link"):
        extract(output=root, **settings | {"levels": ["word"], "chunk": None})
    assert list(target.iterdir()) == []


@pytest.mark.promise("paths")
def test_no_text_of_the_corpus_is_in_what_is_logged(tmp_path, settings, caplog):
    words = {"zyxxoracle", "qwertzheim"}
    text = " and ".join(sorted(words))
    corpus = write_jsonl(tmp_path / "secret.jsonl", [{"id": n, "text": text} for n in range(30)])
    caplog.set_level(0)
    exit_code, printed, errors = run_cli(
        "extract", *flags_of(settings | {"inputs": str(corpus)}), "-o", str(tmp_path / "s"), "--progress"
    )
    said = printed + "".join(errors) + caplog.text + run_cli("inspect", str(tmp_path / "s"))[1]
    said += "".join(file.read_text() for file in (tmp_path / "s/_bertfeat").rglob("*.json"))
    assert exit_code == 0
    assert not [word for word in words if word in said]


@pytest.mark.promise("memory")
@pytest.mark.long
def test_twenty_times_the_corpus_takes_no_more_memory(capsys):
    command = [sys.executable, "-m", "benchmarks.memory", "--quick"]
    measured = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout)
    with capsys.disabled():
        print(f"\npeak memory on a corpus and on 20 times as much: {measured}")
    assert measured["twenty_times"]["n_lines"] == 20 * measured["one"]["n_lines"]
    assert measured["one"]["n_shards"] > 3
    assert measured["ratio"] <= 1.10
