"""`bertfeat convert`: folders whose layers are those that transformers gives for the pickle files."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertfeat
from bertfeat.durable import steps
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.conversion import NOTE, convert
from bertfeat.encoder.loading import load_encoder
from bertfeat.errors import CheckpointError, UserError
from tests.support.command_line import good as run_good
from tests.support.drill import Zygote
from tests.support.families import build_model, random_pack, reference_encoder, reference_states
from tests.support.hostile_pickles import saved
from tests.support.runner_fakes import die_at

Tensors = dict[str, torch.Tensor]
FLAGS = ("--level", "sentence", "--layers", "-1", "--quiet")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFEAT_CACHE", str(tmp_path / "cache"))


def tensors_of(folder: Path) -> Tensors:
    return load_file(folder / "model.safetensors")


def pickled(folder: Path, *parts: Tensors, old: bool = False) -> Path:
    """Put pickle files in place of a folder's safetensors, with an index if there are several."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    if len(parts) == 1:
        (folder / "pytorch_model.bin").write_bytes(saved(parts[0], is_zip=not old))
        return folder
    names = {f"pytorch_model-{n:05}-of-{len(parts):05}.bin": part for n, part in enumerate(parts, 1)}
    for name, part in names.items():
        (folder / name).write_bytes(saved(part))
    index = {"metadata": {}, "weight_map": {key: name for name, part in names.items() for key in part}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def old_names(tensors: Tensors) -> Tensors:
    """Return tensors under the names of checkpoints that were converted from TensorFlow."""
    return {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for key, value in tensors.items()
    }


def in_two(tensors: Tensors) -> tuple[Tensors, Tensors]:
    half = dict(list(tensors.items())[::2])
    return half, {key: value for key, value in tensors.items() if key not in half}


@pytest.mark.promise("converted")
@pytest.mark.numeric
@pytest.mark.parametrize("case", ["bert with gamma and beta", "ernie in shards", "bert before torch 1.6"])
def test_layers_are_those_of_the_pickle_files(case: str, tmp_path: Path) -> None:
    """The oracle is transformers, which reads the pickle files itself."""
    model_type = case.partition(" ")[0]
    folder = build_model(model_type, tmp_path / "model")
    tensors = tensors_of(folder)
    if "gamma" in case:
        pickled(folder, old_names(tensors))
    elif "shards" in case:
        # Left by another conversion that did not end.
        shutil.copy(folder / "model.safetensors", folder / "model-00001-of-00002.safetensors")
        pickled(folder, *in_two(tensors))
    else:
        pickled(folder, tensors, old="before" in case)
    made = convert(str(folder), tmp_path / "made")
    assert made.n_tensors == len(tensors)
    checkpoint = open_checkpoint(str(tmp_path / "made"))
    assert made.weights_sha256 == checkpoint.weights_sha256
    assert len(checkpoint.weights_files) == (2 if "shards" in case else 1)
    encoder = load_encoder(checkpoint, range(checkpoint.n_layers + 1))
    pack = random_pack([7, 12, 3])
    reference = reference_states(reference_encoder(folder), pack, type_ids=encoder.supports_type_ids)
    states = encoder.encode(pack)
    for layer, expected in enumerate(reference):
        np.testing.assert_allclose(states.layer(layer).numpy(), expected.numpy(), atol=1e-4, rtol=1e-4)


@pytest.mark.promise("converted")
def test_tensors_are_kept_as_they_are(folder: Path, tmp_path: Path) -> None:
    """Types, shared storages, views, and further tensors; anything else is left out by name."""
    tensors: dict[str, Any] = dict(tensors_of(folder))
    word = tensors["bert.embeddings.word_embeddings.weight"]
    whole = torch.arange(24.0).reshape(4, 6)
    further = {
        "decoder.weight": word,
        "column": whole[:, 1],
        "transposed": whole.T,
        "parameter": torch.nn.Parameter(whole.clone()),
        "number": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.empty(0, 3),
        "half": whole.to(torch.float16),
        "brain": whole.to(torch.bfloat16),
        "ids": torch.arange(5),
        "mask": whole > 3,
    }
    pickled(folder, {**tensors, **further, "epoch": 3, "note": "hello", "nothing": None})
    made = convert(str(folder), tmp_path / "made")
    found = load_file(tmp_path / "made" / "model.safetensors")
    assert found.keys() == {*tensors, *further}
    for name, value in {**tensors, **further}.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        assert torch.equal(found[name], value), name
    assert made.left_out == ("epoch", "note", "nothing")
    assert made.n_bytes == sum(value.nbytes for value in found.values())


def test_the_command_end_to_end(folder: Path, tmp_path: Path) -> None:
    """A folder that every command takes, and the same bytes again."""
    (tmp_path / "two.txt").write_text("The quick fox.\nA lazy dog.\n")
    run_good("extract", tmp_path / "two.txt", "-o", tmp_path / "before", "--model", folder, *FLAGS)
    pickled(folder, tensors_of(folder))
    made = tmp_path / "deep" / "made"
    said = run_good("convert", folder, "-o", made).out
    assert all(words in said for words in (str(made), "78", "175.6 kB"))
    first = content(made)
    assert first.keys() == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", NOTE}
    assert [entry.name for entry in made.parent.iterdir()] == ["made"]
    answer = run_good("convert", folder, "-o", made, "--json").json
    assert answer["was_complete"] is True
    assert answer["source"] == str(folder)
    assert answer["weights_sha256"] in said
    assert content(made) == first
    assert run_good("inspect", made, "--json").json["converted_from"] == str(folder)
    run_good("extract", tmp_path / "two.txt", "-o", tmp_path / "after", "--model", made, *FLAGS)
    stores = [bertfeat.open_store(tmp_path / name).numpy("sentence", -1) for name in ("before", "after")]
    np.testing.assert_array_equal(*stores)


def test_dense_layers_and_files_of_sentence_transformers_are_converted(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from tests.support.sentence_models import save_sentence_model

    dense = [{"out_features": 8, "activation_function": torch.nn.Tanh()}]
    model = save_sentence_model(folder, tmp_path / "sentence", dense=dense, prompts={"query": "q: "})
    linear = load_file(model / "2_Dense" / "model.safetensors")
    (model / "2_Dense" / "pytorch_model.bin").write_bytes(saved(linear))
    (model / "2_Dense" / "model.safetensors").unlink()
    (model / "run.py").write_text("raise SystemExit")
    pickled(model, tensors_of(model))
    made = tmp_path / "made"
    convert(str(model), made)
    assert content(made).keys() - content(model).keys() == {"model.safetensors", "2_Dense/model.safetensors", NOTE}
    assert not {"run.py", "pytorch_model.bin", "2_Dense/pytorch_model.bin"} & content(made).keys()
    converted = load_file(made / "2_Dense" / "model.safetensors")
    assert all(torch.equal(converted[name], value) for name, value in linear.items())
    checkpoint = open_checkpoint(str(made))
    assert checkpoint.sentence_model().dim(32) == 8
    assert checkpoint.prompts().query == "q: "


def config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def link_out(folder: Path) -> None:
    (folder / "pytorch_model.bin").rename(folder.parent / "elsewhere.bin")
    (folder / "pytorch_model.bin").symlink_to(folder.parent / "elsewhere.bin")


def parallel(folder: Path) -> None:
    pickled(folder, {f"module.{key}": value for key, value in torch.load(folder / "pytorch_model.bin").items()})


def index_of(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "pytorch_model.bin").unlink()
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": name}}))

    return change


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (config(model_type="no-such"), "has no model type 'no-such'"),
        (config(intermediate_size=50), "after conversion, .*has shape"),
        (config(vocab_size=1 << 25), "after conversion, config.json: vocab_size is 33554432"),
        (link_out, "leads out of the model folder"),
        (parallel, "after conversion, .*is not in the files"),
        (index_of("../evil.bin"), "not a .bin file beside it"),
        (index_of("evil.pkl"), "not a .bin file beside it"),
    ],
)
def test_a_refused_model_leaves_nothing(spoil: Callable[[Path], None], said: str, folder: Path, tmp_path: Path) -> None:
    pickled(folder, tensors_of(folder))
    spoil(folder)
    before = content(folder)
    with pytest.raises(CheckpointError, match=said) as caught:
        convert(str(folder), tmp_path / "out" / "made")
    message = str(caught.value)
    assert message.isprintable()
    assert message.startswith(str(folder))
    assert ".tmp" not in message
    assert not list((tmp_path / "out").glob("**/*"))
    assert content(folder) == before


def test_what_is_at_the_output_stays(folder: Path, tmp_path: Path) -> None:
    made, other = tmp_path / "made", tmp_path / "other"
    with pytest.raises(CheckpointError, match="its weights need no conversion"):
        convert(str(folder), made)
    pickled(folder, tensors_of(folder))
    other.mkdir()
    (other / "mine.txt").write_text("x")
    with pytest.raises(UserError, match=r"holds files .* \(mine.txt\); choose"):
        convert(str(folder), other)
    assert convert(str(folder), made) == convert(str(folder), made)
    (made / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="of other files or changed since; remove the folder"):
        convert(str(folder), made)


def convert_and_die(step: str, folder: str, out: str) -> None:
    """Convert a model in a process that dies at a step."""
    die_at(step)
    convert(folder, out)


@pytest.mark.promise("converted")
@pytest.mark.usefixtures("no_fsync")
def test_a_kill_at_any_step_leaves_nothing_or_the_whole(
    folder: Path, tmp_path: Path, warm: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled(folder, tensors_of(folder))
    passed: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(steps, "hook", passed.append)
        convert(str(folder), tmp_path / "whole")
    whole = content(tmp_path / "whole")
    # What the cache keeps depends on the clock.
    names = [name for name in passed if not name.startswith("cache.")]
    assert len(names) == len(set(names)) == 5
    for name in names:
        out = tmp_path / f"killed-{name}"
        assert warm.run(convert_and_die, name, str(folder), str(out)) == -signal.SIGKILL
        assert not out.exists() or content(out) == whole, name
        for left in tmp_path.glob(f".killed-{name}.*"):
            shutil.rmtree(left)
        convert(str(folder), out)
        assert content(out) == whole, name
