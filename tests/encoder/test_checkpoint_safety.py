"""Untrusted model folders and pickles: a refusal is one line, and nothing in the folder is run or unpickled."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.conversion import convert
from bertfeat.encoder.encoder import PackEncoder
from bertfeat.encoder.loading import load_encoder
from bertfeat.errors import CheckpointError
from tests.support.families import N_LAYERS, VOCAB_SIZE
from tests.support.hostile_pickles import calls, damaged

WATCHED: list[Path] = []
SEEN: list[str] = []


def audit(event: str, args: tuple[Any, ...]) -> None:
    """Note forbidden events while a folder is watched; an audit hook cannot be removed, so a list switches it."""
    if not WATCHED:
        return
    inside = str(WATCHED[0])
    if event in ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "socket.connect"):
        SEEN.append(f"{event} {args}")
    elif event == "exec" and inside in str(getattr(args[0], "co_filename", "")):
        SEEN.append(f"exec of {args[0].co_filename}")
    elif event == "open" and str(args[0]).startswith(inside) and str(args[0]).endswith((".bin", ".py", ".pt")):
        SEEN.append(f"open of {args[0]}")


sys.addaudithook(audit)


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[None]:
    import transformers.models.bert.modeling_bert  # noqa: F401  (imported before the watch: imports execute code)

    SEEN.clear()
    WATCHED.append(folder)
    try:
        yield
    finally:
        WATCHED.clear()
    assert SEEN == []


@pytest.fixture(autouse=True)
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that only code of a model folder would write."""
    monkeypatch.setenv("BERTFEAT_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "canary"
    assert not (tmp_path / "canary").exists()


def payload(canary: Path) -> bytes:
    """Return a pickle that writes the canary."""
    return calls(canary)["os.system, old"][0]


def load(folder: Path) -> PackEncoder:
    checkpoint = open_checkpoint(str(folder))
    return load_encoder(checkpoint, range(checkpoint.n_layers + 1))


def refusal(folder: Path) -> str:
    """Open and load a folder that must be refused; return the message."""
    with watched(folder), pytest.raises(CheckpointError) as caught:
        load(folder)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in message
    assert str(folder) in message
    return message


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_good_folder_loads_and_the_payload_works(folder: Path, canary: Path) -> None:
    with watched(folder):
        assert load(folder).n_blocks == N_LAYERS
    pickle.loads(payload(canary))
    canary.unlink()


@pytest.mark.promise("pickle")
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
def test_pickle_only_folder(folder: Path, canary: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(payload(canary))
    said = f"{folder}: no model.safetensors in it; for pickle weights, run: bertfeat convert {folder} -o FOLDER"
    assert refusal(folder) == said


@pytest.mark.promise("pickle")
@pytest.mark.parametrize("kind", ["os.system", "os.system, old"])
def test_pickle_disguised_as_safetensors(folder: Path, canary: Path, kind: str) -> None:
    (folder / "model.safetensors").write_bytes(calls(canary)[kind][0])
    assert "model.safetensors" in refusal(folder)


@pytest.mark.parametrize(
    ("shard", "reason"),
    [
        ("pytorch_model.bin", "not a .safetensors file beside it"),
        ("../evil.safetensors", "not a .safetensors file beside it"),
        ("/tmp/evil.safetensors", "not a .safetensors file beside it"),
        ("sub/evil.safetensors", "not a .safetensors file beside it"),
        ("model-00001-of-00002.safetensors", "missing"),
    ],
)
def test_index_that_points_elsewhere(folder: Path, tmp_path: Path, canary: Path, shard: str, reason: str) -> None:
    shutil.move(folder / "model.safetensors", tmp_path / "evil.safetensors")
    (folder / "pytorch_model.bin").write_bytes(payload(canary))
    index = {"metadata": {"total_size": 1}, "weight_map": {"embeddings.word_embeddings.weight": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert reason in refusal(folder)


@pytest.mark.promise("pickle")
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_its_own(folder: Path, canary: Path, file: str) -> None:
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w').close()\nclass Evil: pass\n")
    change_json(folder / file, auto_map={"AutoModel": "evil.Evil"})
    assert "auto_map" in refusal(folder)
    change_json(folder / "config.json", model_type="new")
    assert "take a copy of the model with the model type 'gte'" in refusal(folder)


def test_weights_and_attention_code_named_by_the_config_are_ignored(folder: Path, canary: Path) -> None:
    (folder / "evil.bin").write_bytes(payload(canary))
    own = {"attn_implementation": "someone/kernel", "_attn_implementation": "someone/kernel"}
    change_json(folder / "config.json", transformers_weights="evil.bin", **own)
    with watched(folder):
        load(folder)


def test_folders_with_an_adapter_or_without_a_fast_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "no fast tokenizer" in refusal(folder)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere/model"}')
    assert "adapter" in refusal(folder)


def claim(**changes: Any) -> Callable[[bytes], bytes]:
    """Return a change of what the header says of the first tensor."""

    def change(content: bytes) -> bytes:
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        header[next(name for name in header if name != "__metadata__")] |= changes
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + content[end:]

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        claim(shape=[2**62, 2**62]),
        claim(shape=[-1, -1]),
        claim(dtype="OBJECT"),
        claim(data_offsets=[0, 2**60]),
        claim(data_offsets=[8, 0]),
        lambda content: content[:-4],
        lambda content: content + b"\0",
        lambda content: b"",
        lambda content: (2**60).to_bytes(8, "little") + content[8:],
        lambda content: (100_000).to_bytes(8, "little") + b"[" * 100_000,
    ],
)
def test_safetensors_files_that_lie_or_are_not_whole(folder: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    assert "model.safetensors" in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantization_config": {"load_in_4bit": True}}, "quantized weights"),
        ({"model_type": None}, "model_type"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers"),
        ({"vocab_size": 9_000_000}, "asks for"),
        ({"intermediate_size": 96}, r"has shape \(48,\), config.json asks for \(96,\) \(and 11 more\)"),
        ({"vocab_size": VOCAB_SIZE + 1}, "has shape"),
        ({"num_hidden_layers": N_LAYERS + 1}, "is not in the files"),
        ({"num_attention_heads": 5}, "config.json: it does not fit"),
    ],
)
def test_configs_that_do_not_fit_the_weights(folder: Path, changes: dict[str, Any], reason: str) -> None:
    change_json(folder / "config.json", **changes)
    assert re.search(reason, refusal(folder))


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1, "a": 2}', "[" * 100_000, '{"model_type": "bert"}'])
def test_malformed_and_huge_configs(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert "config.json" in refusal(folder)
    os.truncate(folder / "config.json", 10**9)
    assert "too many" in refusal(folder)


def test_links_within_a_hub_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "abc", tmp_path / "models--x" / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        shutil.copy(path, blobs / path.name)
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    assert load_encoder(open_checkpoint(str(snapshot)), [1]).layers == (1,)


def test_missing_weight_is_named(folder: Path) -> None:
    """Those of the blocks above are not needed; the comparison at load needs one block more."""
    weights = load_file(folder / "model.safetensors")
    del weights[next(name for name in weights if name.endswith("layer.3.output.dense.weight"))]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "encoder.layer.3.output.dense.weight" in refusal(folder)
    assert load_encoder(open_checkpoint(str(folder)), [1]).n_blocks == 1


@pytest.mark.promise("pickle")
@pytest.mark.parametrize("name", [*calls(Path("canary")), *damaged()])
def test_a_hostile_or_damaged_pickle_is_one_line_and_runs_nothing(name: str, folder: Path, tmp_path: Path) -> None:
    content, said = (calls(tmp_path / "canary") | damaged())[name]
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        convert(str(folder), folder.parent / "made")
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert str(folder / "pytorch_model.bin") in message
    assert re.search(said, message)
    assert message.isprintable()
    assert len(message) < 600
    assert "weights_only" not in message, "never advise to run the code of the file"
    assert {path.name for path in folder.parent.iterdir()} <= {"model", "cache"}, "no canary, and no output"
