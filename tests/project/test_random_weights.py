"""The recipe `random_weights`: a folder with transformers' own initialisation, the baseline of probes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.loading import load_encoder
from tests.support.families import all_model_types, build_model, random_pack
from tests.support.pipeline_runs import refusal, run

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

# OpenAI GPT draws when a module is built, T5 is an encoder inside another model.
SOME = ["bert", "openai-gpt", "modernbert", "t5"]
TYPES = all_model_types(lambda name: name in SOME, others_long=True)


def made(model: object, seed: int, folder: Path, *flags: str) -> Path:
    done = run("random_weights", model, "--seed", seed, "-o", folder, *flags)
    assert (done.code, done.err) == (0, ""), done.err
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.promise("random")
@pytest.mark.parametrize("model_type", TYPES)
def test_weights_follow_from_the_seed(tmp_path: Path, model_type: str) -> None:
    folder = build_model(model_type, tmp_path / "model")
    torch.rand(1)
    state = torch.get_rng_state()
    first = made(folder, 7, tmp_path / "first")
    assert torch.equal(torch.get_rng_state(), state)
    assert content(first) == content(made(folder, 7, tmp_path / "again"))
    trained, same, other = map(open_checkpoint, map(str, (folder, first, made(folder, 8, tmp_path / "other"))))
    assert len({trained.weights_sha256, same.weights_sha256, other.weights_sha256}) == 3
    assert same.config_sha256 == trained.config_sha256
    assert same.tokenizer_sha256 == trained.tokenizer_sha256
    states = [load_encoder(one, [1]).encode(random_pack([7, 3])).layer(1) for one in (trained, same, other)]
    assert all(bool(torch.isfinite(found).all()) for found in states)
    assert not any(torch.allclose(states[1], found, atol=1e-3) for found in (states[0], states[2]))


@pytest.mark.promise("random")
def test_weights_are_those_of_transformers(tmp_path: Path) -> None:
    folder = build_model("bert", tmp_path / "model")
    torch.manual_seed(7)
    expected = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(folder)).state_dict()
    found = load_file(made(folder, 7, tmp_path / "made") / "model.safetensors")
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert {name for name in expected if "position_ids" not in name} == found.keys()


def test_a_folder_that_is_there_stays_unless_a_recipe_made_it(tmp_path: Path) -> None:
    folder, target = build_model("bert", tmp_path / "model"), tmp_path / "made"
    first = content(made(folder, 0, target))
    assert "is there already; choose another --output, or pass --overwrite" in refusal(
        "random_weights", folder, "--seed", 1, "-o", target
    )
    assert content(target) == first
    assert content(made(folder, 1, target, "--overwrite")) != first
    trained = content(folder)
    assert "was not made by a recipe" in refusal("random_weights", folder, "--overwrite", "-o", folder)
    assert content(folder) == trained
