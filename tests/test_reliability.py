"""What can go wrong around a real extraction, and what then stands on disk and on the screen."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from drill import orphans, result_files, write_corpus
from families import build_model
from safetensors.torch import load_file, save_file

from bertfeat.cli import main as cli
from bertfeat.errors import FeatureError, InputError, PlanMismatch, RunError, StoreError, UserError
from bertfeat.extraction import extract
from bertfeat.store import mark_for_redoing, open_for_writing, open_store, verify


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model("bert", tmp_path_factory.mktemp("model") / "bert", num_hidden_layers=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No power fails here, and tiny products are slower on several threads."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def settings(tmp_path, model) -> dict[str, Any]:
    """Three shards."""
    return {
        "inputs": str(write_corpus(tmp_path / "corpus.jsonl", 24)),
        "model": str(model),
        "id_column": "id",
        "levels": ["word", "sentence"],
        "layers": "-1",
        "shard_bytes": 25_000,
    }


def flags(settings: dict[str, Any]) -> list[str]:
    named = {name: value for name, value in settings.items() if name != "inputs"}
    pairs = [("--level" if name == "levels" else "--" + name.replace("_", "-"), named[name]) for name in named]
    return [settings["inputs"], *(f"{flag}={','.join(v) if isinstance(v, list) else v}" for flag, v in pairs)]


def run_cli(*arguments: str) -> tuple[int, str, list[str]]:
    """Run a command; return its exit code, what it prints, and the lines on standard error."""
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr.splitlines()


# Write errors


class Shim:
    """Fails the n-th write to a file of the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        self.code, self.fails_at, self.n_writes = code, 0, 0
        self._write = os.write
        monkeypatch.setattr("bertfeat.store.files.os.write", self)

    def __call__(self, fd: int, data: Any) -> int:
        self.n_writes += 1
        if self.n_writes == self.fails_at:
            self._write(fd, bytes(data[: len(data) // 2]))
            raise OSError(self.code, os.strerror(self.code))
        return self._write(fd, data)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_write_error_at_every_write_is_one_line_and_resumable(tmp_path, settings, monkeypatch, code):
    settings |= {"levels": ["sentence"]}
    whole = result_files(extract(output=tmp_path / "whole", **settings).path)
    shim = Shim(monkeypatch, code)
    extract(output=tmp_path / "counted", **settings)
    n_writes = shim.n_writes
    # The plan, 3 parts of several writes each, 3 receipts, the manifest.
    assert n_writes >= 8
    points = range(1, n_writes + 1) if n_writes < 20 else sorted({1, 2, n_writes, *range(3, n_writes, n_writes // 15)})
    for point in points:
        root = tmp_path / f"{code}-{point}"
        shim.fails_at, shim.n_writes = point, 0
        exit_code, _, errors = run_cli("extract", *flags(settings), "-o", str(root))
        assert (exit_code, len(errors)) == (3, 1), errors
        assert os.strerror(code).lower() in errors[0]
        assert "run the same command again" in errors[0]
        assert result_files(root).items() <= whole.items()
        kept = {name: (root / name).stat().st_ino for name in result_files(root) if name.endswith(".parquet")}
        shim.fails_at = 0
        extract(output=root, **settings)
        assert result_files(root) == whole
        assert orphans(root) == []
        assert all((root / name).stat().st_ino == inode for name, inode in kept.items())


def test_a_file_size_limit_is_one_line_and_resumable(tmp_path, settings):
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8000, resource.RLIM_INFINITY))\n"
        "from bertfeat.cli import main; main()"
    )
    command = [sys.executable, "-c", script, "extract", *flags(settings), "-o", str(tmp_path / "s")]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.count("\n") == 1
    assert "file too large" in ended.stderr
    assert "ulimit -f" in ended.stderr
    extract(output=tmp_path / "s", **settings)
    whole = result_files(extract(output=tmp_path / "whole", **settings).path)
    assert result_files(tmp_path / "s") == whole


# Damage


def damage_keeping_time(path: Path, data: bytes) -> None:
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_what_verify_names_the_same_command_does_again_and_nothing_else(tmp_path, settings):
    root = extract(output=tmp_path / "s", **settings).path
    whole = result_files(root)
    parts = [name for name in whole if name.endswith(".parquet")]
    rng = random.Random(5)
    for trial in range(12):
        name = rng.choice(parts)
        data = bytearray(whole[name])
        place = rng.randrange(len(data))
        if trial % 3 == 2:
            del data[place:]
        else:
            data[place] ^= 1 << rng.randrange(8)
        damage_keeping_time(root / name, bytes(data))
        shard = name[-13:-8]
        inodes = {receipt.name: receipt.stat().st_ino for receipt in (root / "_bertfeat/receipts").iterdir()}
        exit_code, printed, errors = run_cli("verify", str(root))
        assert exit_code == 1
        assert printed.startswith(f"{name}: ")
        assert printed.count("\n") == 1
        assert len(errors) == 1
        assert "run the same extract command again to redo 1 shard" in errors[0]
        assert run_cli("extract", *flags(settings), "-o", str(root), "--quiet") == (0, "", [])
        again = {r.name for r in (root / "_bertfeat/receipts").iterdir() if r.stat().st_ino != inodes[r.name]}
        assert again == {f"{shard}.json"}
        assert result_files(root) == whole
        assert orphans(root) == []
    assert run_cli("verify", str(root))[0] == 0


def test_missing_swapped_and_edited_files_are_named_and_mended(tmp_path, settings):
    root = extract(output=tmp_path / "s", **settings).path
    whole = result_files(root)
    first, second = root / "word/part-00000.parquet", root / "word/part-00001.parquet"

    def swap() -> None:
        first.rename(root / "x")
        second.rename(first)
        (root / "x").rename(second)

    def edit() -> None:
        manifest = json.loads((root / "manifest.json").read_text())
        manifest["totals"]["n_rows"]["word"] += 1
        (root / "manifest.json").write_text(json.dumps(manifest))

    for deed, named in [
        (first.unlink, ["word/part-00000.parquet"]),
        (swap, ["word/part-00000.parquet", "word/part-00001.parquet"]),
        (edit, ["manifest.json"]),
        ((root / "manifest.json").unlink, ["manifest.json"]),
    ]:
        deed()
        exit_code, printed, _ = run_cli("verify", str(root), "--json")
        report = json.loads(printed)
        assert (exit_code, report["good"]) == (1, False)
        assert [problem["part"] for problem in report["problems"]] == named
        extract(output=root, **settings)
        assert result_files(root) == whole


def test_verify_does_not_disturb_a_run_and_reads_what_it_may_not_write(tmp_path, settings):
    store = extract(output=tmp_path / "s", **settings)
    (store.path / "word/part-00001.parquet").write_bytes(b"x")
    with open_for_writing(store.path, store.plan):
        assert mark_for_redoing.__module__ == "bertfeat.store.verification"
        exit_code, printed, errors = run_cli("verify", str(store.path))
    assert exit_code == 1
    assert "is writing this store" in errors[0]
    assert not (store.path / "_bertfeat/damaged.json").exists()


# The lock


def test_a_second_run_is_refused_with_the_first_ones_process_and_a_stale_lock_is_none(tmp_path, settings):
    script = (
        "import sys, time; from bertfeat.cli import main; from bertfeat.store import steps\n"
        "def hook(name):\n"
        "    if name == 'receipt.durable': print('ready', file=sys.stderr, flush=True); time.sleep(600)\n"
        "steps.hook = hook; main()"
    )
    root = tmp_path / "s"
    command = [sys.executable, "-c", script, "extract", *flags(settings), "-o", str(root)]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert first.stderr is not None
    assert first.stderr.readline() == "ready\n"
    before = result_files(root)
    exit_code, _, errors = run_cli("extract", *flags(settings), "-o", str(root))
    assert (exit_code, len(errors)) == (2, 1)
    assert f"process {first.pid} on host" in errors[0]
    assert result_files(root) == before
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=30)
    extract(output=root, **settings)
    assert verify(root).is_good


# The plan


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "layers": ({"layers": "0"}, "layers"),
    "combine": ({"combine": "none"}, "combine"),
    "levels": ({"levels": ["word"]}, "levels"),
    "word_pooling": ({"word_pooling": "mean"}, "word_pooling"),
    "pooling": ({"pooling": "max"}, "pooling"),
    "max_length": ({"max_length": 12}, "max_length"),
    "stride": ({"stride": 2}, "stride"),
    "store_dtype": ({"store_dtype": "float32"}, "store_dtype"),
    "vector_encoding": ({"vector_encoding": "binary"}, "vector_encoding"),
    "compute_dtype": ({"compute_dtype": "bfloat16"}, "compute_dtype"),
    "max_batch_tokens": ({"max_batch_tokens": 64}, "max_batch_tokens"),
    "shard_bytes": ({"shard_bytes": 20_000}, "shard_bytes"),
    "id_column": ({"id_column": None}, "id_column"),
    "on_overlong": ({"on_overlong": "truncate"}, "on_overlong"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("made")
    settings = {
        "inputs": str(write_corpus(folder / "corpus.jsonl", 12)),
        "model": str(shutil.copytree(model, folder / "model")),
        "id_column": "id",
        "levels": ["word", "sentence"],
        "layers": "-1",
        "shard_bytes": 25_000,
    }
    extract(output=folder / "s", **settings)
    return folder, settings


def refused(root: Path, settings: dict[str, Any]) -> set[str]:
    """Try to go on with a store; return the differing fields that the refusal names, and check that it is untouched."""
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in root.rglob("*") if file.is_file()}
    with pytest.raises(PlanMismatch) as got:
        extract(output=root, **settings)
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in before} == before
    assert set(root.rglob("*")) >= set(before)
    assert all(name in str(got.value) for name in got.value.fields)
    return set(got.value.fields)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_refused_and_named(made, name):
    folder, settings = made
    change, field = CHANGES[name]
    assert refused(folder / "s", settings | change) == {field}


def test_a_changed_byte_of_input_weights_or_tokenizer_is_refused_and_named(made, tmp_path):
    folder, settings = made
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(Path(settings["inputs"]).read_text().replace("the", "thE", 1))
    assert refused(folder / "s", settings | {"inputs": str(corpus)}) == {"input.0.digest"}
    assert refused(folder / "s", settings | {"inputs": [settings["inputs"]] * 2}) >= {"n_inputs"}
    model = Path(settings["model"])
    weights = load_file(model / "model.safetensors")
    for file, field in [("model.safetensors", "model.weights_sha256"), ("tokenizer.json", "model.tokenizer_sha256")]:
        kept = (model / file).read_bytes()
        if file == "model.safetensors":
            name = next(name for name in weights if name.endswith("word_embeddings.weight"))
            save_file({**weights, name: weights[name] * 1.001}, model / file, metadata={"format": "pt"})
        else:
            (model / file).write_bytes(
                kept.replace(b'"lowercase":true', b'"lowercase":false').replace(
                    b'"lowercase": true', b'"lowercase": false'
                )
            )
        assert (model / file).read_bytes() != kept
        assert refused(folder / "s", settings) == {field}
        (model / file).write_bytes(kept)


@pytest.mark.parametrize("change", [{"workers": 1}, {"workers": 4}, {"device": "cpu"}])
def test_what_does_not_change_the_bytes_is_accepted(made, change):
    folder, settings = made
    before = result_files(folder / "s")
    extract(output=folder / "s", **settings, **change)
    assert result_files(folder / "s") == before


def test_inputs_and_stores_may_move(made, tmp_path):
    folder, settings = made
    shutil.copytree(folder / "s", tmp_path / "elsewhere")
    moved = shutil.copy(settings["inputs"], tmp_path / "moved.jsonl")
    extract(output=tmp_path / "elsewhere", **settings | {"inputs": moved})
    assert result_files(tmp_path / "elsewhere") == result_files(folder / "s")


# Rows and values


def test_an_id_that_stands_twice_is_refused_with_both_places(tmp_path, settings):
    second = tmp_path / "second.jsonl"
    second.write_text('{"id": "new", "text": "fine"}\n{"id": "d3", "text": "again"}\n')
    with pytest.raises(InputError) as got:
        extract(output=tmp_path / "s", **settings | {"inputs": [settings["inputs"], str(second)]})
    assert str(got.value).startswith(f"{second}:2: id 'd3' stands twice, first at {settings['inputs']}:4;")
    assert not (tmp_path / "s").exists()


def test_only_bad_rows_and_no_rows_give_a_valid_empty_store(tmp_path, settings):
    corpus = tmp_path / "bad.jsonl"
    corpus.write_text('{"id": \n[1]\n')
    store = extract(output=tmp_path / "bad", **settings | {"inputs": str(corpus), "bad_rows": "quarantine"})
    assert store.manifest["totals"]["n_bad_rows"] == 2
    (tmp_path / "none.csv").write_text("id,text\n")
    empty = extract(output=tmp_path / "none", **settings | {"inputs": str(tmp_path / "none.csv")})
    for made in (store, empty):
        assert verify(made.path).is_good
        assert made.n_rows("word") == made.n_rows("sentence") == 0
        assert made.numpy("sentence", "layer_02").shape == (0, 32)
        assert made.polars("word").columns[-1] == "layer_02"
        assert orphans(made.path) in ([], ["_bertfeat/quarantine/00000.jsonl"])


@pytest.mark.parametrize("n_files", [1, 2])
def test_empty_files_are_one_clear_line(tmp_path, settings, n_files):
    for n in range(n_files):
        (tmp_path / f"{n}.txt").touch()
    given = flags(settings | {"inputs": str(tmp_path / "?.txt"), "id_column": "id"})
    exit_code, _, errors = run_cli("extract", *given, "-o", str(tmp_path / "s"))
    assert (exit_code, len(errors)) == (2, 1)
    assert f"{tmp_path / '0.txt'}: is empty" in errors[0]
    assert not (tmp_path / "s").exists()


def spoilt_model(folder: Path, model: Path, value: float) -> Path:
    """Copy a model whose last block adds `value` to one component of its output."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("encoder.layer.1.output.LayerNorm.bias"))
    weights[name][3] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("value", "dtype", "shown"), [(1e5, "float16", "inf"), (float("nan"), "float16", "nan"), (1e39, "float32", "inf")]
)
def test_features_that_are_not_finite_name_document_and_layer(tmp_path, settings, model, value, dtype, shown):
    spoilt = spoilt_model(tmp_path / "spoilt", model, value)
    settings |= {"model": str(spoilt), "store_dtype": dtype, "layers": "1,2", "levels": ["sentence"]}
    with pytest.raises(FeatureError, match=rf"document 'd0': layer_02 of sentence .* {shown}") as got:
        extract(output=tmp_path / "s", **settings)
    assert ("--store-dtype float32" in str(got.value)) == (value == 1e5)
    exit_code, _, errors = run_cli("extract", *flags(settings), "-o", str(tmp_path / "s"))
    assert (exit_code, len(errors)) == (3, 1)
    if value == 1e5:
        fine = extract(output=tmp_path / "wide", **settings | {"store_dtype": "float32"})
        assert fine.numpy("sentence", "layer_02").max() > 99_000


# Memory


def test_packs_that_memory_does_not_hold_are_halved_and_the_receipts_say_so(tmp_path, settings, monkeypatch):
    from bertfeat.encoder.encoder import Encoder

    whole = extract(output=tmp_path / "whole", **settings)
    run = Encoder._run

    def short_of_memory(self: Encoder, pack: Any) -> Any:
        if pack.n_tokens > 40:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return run(self, pack)

    monkeypatch.setattr(Encoder, "_run", short_of_memory)
    store = extract(output=tmp_path / "s", **settings)
    notes = [receipt.notes for receipt in store.receipts()]
    assert [note["n_halvings"] > 0 for note in notes] == [True, True, True]
    assert "n_halvings" not in (store.path / "manifest.json").read_text()
    assert store.manifest["totals"]["counts"] == whole.manifest["totals"]["counts"]
    np.testing.assert_allclose(store.numpy("word", "layer_02"), whole.numpy("word", "layer_02"), atol=2e-3)
    assert "memory" in run_cli("inspect", str(store.path))[1]
    monkeypatch.setattr(
        Encoder, "_run", lambda self, pack: short_of_memory(self, pack) if len(pack.lengths) > 1 else 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        extract(output=tmp_path / "single", **settings)


def test_a_single_window_that_memory_does_not_hold_is_an_error_that_resumes(tmp_path, settings, monkeypatch):
    from bertfeat.encoder.encoder import Encoder

    def out_of_memory(self: Encoder, pack: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "_run", out_of_memory)
        with pytest.raises(RunError, match="with a single window of"):
            extract(output=tmp_path / "s", **settings)
    assert verify(extract(output=tmp_path / "s", **settings).path).is_good


# Names and places


def test_ids_never_become_paths(tmp_path, settings):
    odd = ["../../up", "/etc/passwd", "a\x00b", "..", "", "x" * 5000, "manifest.json", "\n", "C:\\x", "~"]
    corpus = tmp_path / "odd.jsonl"
    corpus.write_text("".join(json.dumps({"id": name, "text": "a b"}) + "\n" for name in odd))
    before = set(tmp_path.iterdir()) | {tmp_path / "s"}
    store = extract(output=tmp_path / "s", **settings | {"inputs": str(corpus)})
    assert set(tmp_path.iterdir()) == before
    assert store.polars("sentence", ["doc_id"])["doc_id"].to_list() == odd
    assert orphans(store.path) == []


@pytest.mark.parametrize("place", ["", "word", "_bertfeat", "manifest.json", "_bertfeat/tmp"])
def test_symbolic_links_in_the_outputs_place_are_refused(tmp_path, settings, place):
    target = tmp_path / "target"
    target.mkdir()
    root = tmp_path / "s"
    if place:
        extract(output=root, **settings | {"levels": ["word"]})
        shutil.rmtree(root / place) if (root / place).is_dir() else (root / place).unlink()
    (root / place).symlink_to(target)
    with pytest.raises((StoreError, UserError), match="symbolic link"):
        extract(output=root, **settings | {"levels": ["word"]})
    assert list(target.iterdir()) == []


def test_no_text_of_the_corpus_is_in_what_is_logged(tmp_path, settings, caplog):
    words = {"zyxxoracle", "qwertzheim"}
    corpus = tmp_path / "secret.jsonl"
    corpus.write_text(
        "".join(json.dumps({"id": n, "text": f"{a} and {b}"}) + "\n" for n, (a, b) in enumerate([sorted(words)] * 30))
    )
    caplog.set_level(0)
    exit_code, printed, errors = run_cli(
        "extract", *flags(settings | {"inputs": str(corpus)}), "-o", str(tmp_path / "s"), "--progress"
    )
    said = printed + "".join(errors) + caplog.text + run_cli("inspect", str(tmp_path / "s"))[1]
    said += "".join(file.read_text() for file in (tmp_path / "s/_bertfeat").rglob("*.json"))
    assert exit_code == 0
    assert not [word for word in words if word in said]
