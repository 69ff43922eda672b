"""Random weights: drawn by transformers' own initialisation, and by the seed and the name of each weight alone."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from bertfeat.choices import Pooling
from bertfeat.config import ExtractConfig
from bertfeat.encoder import hub, loading, randomweights
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.families import families
from bertfeat.encoder.loading import load_encoder
from bertfeat.encoder.weightdraws import draw_weights
from bertfeat.errors import CheckpointError, UserError
from bertfeat.extraction.job import authors_advice
from tests.support.families import HIDDEN, N_LAYERS, build_without_weights, random_pack
from tests.support.static_files import write_model2vec, write_vectors

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

ALL_LAYERS = range(N_LAYERS + 1)
# GPT-2 and ModernBERT draw deep models closer to zero, OpenAI GPT draws when a module is built, T5 is an encoder inside
# another model.
SOME = ["bert", "gpt2", "openai-gpt", "modernbert", "t5", "deberta-v2"]
TYPES = [family.model_type for family in families()]
by_type = pytest.mark.parametrize(
    "model_type",
    [pytest.param(one, marks=[] if one in SOME else [pytest.mark.long]) for one in TYPES],
)


@pytest.fixture(autouse=True)
def _unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the weights of linear layers as they are, so that they can be compared."""
    monkeypatch.setattr(loading, "can_pack", lambda *_: False)


def weights_of(folder: Path, seed: int = 7, layers: Any = ALL_LAYERS, **options: Any) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(str(folder), random_weights=seed)
    pooler = checkpoint.family.pooler != "none" and max(layers) == checkpoint.n_layers
    encoder = load_encoder(checkpoint, layers, with_pooler=pooler, **options)
    return dict(encoder._model.state_dict())


def global_states() -> list[object]:
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    return [torch.get_rng_state().tolist(), numpy_state[1].tolist(), random.getstate()]


def is_drawn(weight: torch.Tensor) -> bool:
    return weight.is_floating_point() and weight.numel() > 1 and float(weight.std()) > 0


@by_type
def test_weights_follow_from_the_seed_alone(tmp_path: Path, model_type: str) -> None:
    folder = build_without_weights(model_type, tmp_path)
    whole = weights_of(folder)
    torch.rand(1)
    before = global_states()
    again = weights_of(folder)
    assert global_states() == before
    assert all(torch.equal(again[name], weight) for name, weight in whole.items())
    cut = weights_of(folder, layers=[0, 2])
    # A norm of the last layer alone is left out.
    kept = [name for name, weight in cut.items() if name in whole]
    assert len(kept) == len(cut)
    assert all(torch.equal(cut[name], whole[name]) for name in cut)
    half = weights_of(folder, layers=[0, 1], compute_dtype=torch.bfloat16)
    assert all(torch.equal(half[name], whole[name].to(half[name].dtype)) for name in half)
    other = weights_of(folder, seed=8)
    # Positions of some families are computed.
    fixed = [name for name in whole if is_drawn(whole[name]) and torch.equal(whole[name], other[name])]
    assert all(name.endswith("embed_positions.weight") for name in fixed)


@by_type
def test_weights_are_spread_as_those_of_transformers(tmp_path: Path, model_type: str) -> None:
    """Mean and deviation of each weight, within six standard errors; constants are equal."""
    found = weights_of(build_without_weights(model_type, tmp_path))
    family = open_checkpoint(str(tmp_path), random_weights=7).family
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    for key, value in family.overrides.items():
        setattr(config, key, value)
    options = {"add_pooling_layer": True} if family.pooler == "optional" else {}
    torch.manual_seed(0)
    model = getattr(transformers, family.model_class)(config, **options)
    expected = (model if family.inner is None else model.get_submodule(family.inner)).state_dict()
    compared = 0
    for name, weight in expected.items():
        if name.startswith(family.unused):
            continue
        if not is_drawn(weight):
            assert torch.equal(found[name], weight), name
            continue
        n, deviation = weight.numel(), float(weight.std())
        assert abs(float(found[name].mean() - weight.mean())) < 6 * deviation * (2 / n) ** 0.5, name
        assert abs(float(found[name].std()) / deviation - 1) < 6 / n**0.5, name
        compared += 1
    assert compared > 10


class Tiny(nn.Module):
    """A model as transformers builds and initialises one; each case draws in its own way."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case = case
        self.first, self.second = nn.Parameter(torch.empty(2)), nn.Parameter(torch.empty(2))
        self.built = nn.Parameter(torch.rand(2) if case == "other draw" else torch.empty(2))
        if case != "no value":
            nn.init.uniform_(self.built, -1.0, 1.0)

    @classmethod
    def _from_config(cls, config: str, dtype: torch.dtype) -> Tiny:
        assert dtype == torch.float32
        return cls(config)

    def initialize_weights(self) -> None:
        weights = [self.first, self.second]
        for weight in reversed(weights) if self.case == "other order" else weights:
            nn.init.normal_(weight, 1.0, 0.5)
            nn.init.normal_(torch.empty(2))
            nn.init.trunc_normal_(weight[1:], std=0.5)


def drawn(case: str) -> dict[str, list[float]]:
    checkpoint: Any = SimpleNamespace(random_weights=7, n_layers=2)
    return {name: weight.tolist() for name, weight in draw_weights(checkpoint, Tiny, case, {}).items()}


def test_the_numbers_of_a_seed_are_the_same_on_every_machine_and_in_every_order() -> None:
    """NumPy's, which do not depend on the processor; the second ones also depend on how this torch truncates."""
    found = drawn("plain")
    assert found == drawn("other order")
    assert {name: values[0] for name, values in found.items()} == {
        "first": 0.18683069944381714,
        "second": 1.5494287014007568,
        "built": 0.8860485553741455,
    }


@pytest.mark.parametrize(
    ("case", "reason"), [("other draw", "transformers draws by aten.rand.default"), ("no value", "'built' no value")]
)
def test_draws_that_have_no_stream_are_refused(case: str, reason: str) -> None:
    with pytest.raises(CheckpointError, match=f"random weights: .*{reason}"):
        drawn(case)


def test_files_of_weights_are_neither_needed_nor_read(tmp_path: Path) -> None:
    bare = build_without_weights("bert", tmp_path / "bare")
    damaged = build_without_weights("bert", tmp_path / "damaged")
    (damaged / "model.safetensors").write_text("no weights")
    (damaged / "pytorch_model.bin").write_text("no pickle")
    first, second = (open_checkpoint(str(folder), random_weights=7) for folder in (bare, damaged))
    assert first.weights_sha256 == second.weights_sha256
    pack = random_pack([5])
    states = [load_encoder(one, [4]).encode(pack).layer(4) for one in (first, second)]
    assert torch.equal(*states)
    for folder in (bare, damaged):
        with pytest.raises(CheckpointError):
            open_checkpoint(str(folder))


def test_the_digest_is_that_of_seed_config_and_initialiser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build_without_weights("bert", tmp_path)

    def digest(seed: int = 7) -> str:
        return open_checkpoint(str(folder), random_weights=seed).info().weights_sha256

    def change(**values: Any) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **values}))

    first = digest()
    assert digest(8) != first
    change(transformers_version="4.0.0", architectures=["Other"])
    assert digest() == first
    change(initializer_range=0.5)
    assert digest() != first
    change(initializer_range=0.02)
    assert digest() == first
    monkeypatch.setattr(randomweights, "version", lambda name: "9.9")
    assert digest() != first
    assert randomweights.initialiser() == "transformers 9.9, torch 9.9, numpy 9.9"


def test_a_model_that_memory_cannot_hold_is_refused_before_it_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(str(build_without_weights("bert", tmp_path)), random_weights=7)
    monkeypatch.setattr(loading, "free_memory", lambda: 100_000)
    with pytest.raises(CheckpointError, match=r"drawn in memory as float32, [\d,]+ bytes .* and 100,000 are free"):
        load_encoder(checkpoint, ALL_LAYERS)


def test_a_hub_model_is_fetched_without_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    folder, asked = build_without_weights("bert", tmp_path), []
    monkeypatch.setattr(hub, "_resolve", lambda *_: "a" * 40)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *_, **given: asked.extend(given["allow_patterns"]) or str(folder)
    )
    assert open_checkpoint("owner/model", random_weights=7).revision == "a" * 40
    files = ["config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"]
    weights = ["model.safetensors", "model-00001-of-00002.safetensors", "2_Dense/model.safetensors"]
    weights += ["model.safetensors.index.json"]
    assert list(huggingface_hub.utils.filter_repo_objects([*files, *weights], allow_patterns=asked)) == files


def test_dense_layers_of_a_sentence_embedding_are_refused_by_name(tmp_path: Path) -> None:
    folder = build_without_weights("bert", tmp_path)
    modules = ["Transformer", "Pooling", "Dense"]
    entries = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries[:2]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": HIDDEN}))
    checkpoint = open_checkpoint(str(folder), random_weights=7)
    config = ExtractConfig(levels="sentence", pooling=Pooling.MODEL)
    assert authors_advice(checkpoint, config).description == "mean with special tokens"
    (folder / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(CheckpointError, match="its dense layers are trained, and `random_weights` draws none for them"):
        authors_advice(checkpoint, config)


def test_static_vectors_have_no_random_weights(tmp_path: Path) -> None:
    words = write_vectors(tmp_path / "glove.txt", {"a": [1]})
    for model in (words, write_model2vec(tmp_path / "folder", pieces=["a"])):
        with pytest.raises(CheckpointError, match=r"`random_weights=0`: .* static vectors, which are never drawn"):
            open_checkpoint(str(model), random_weights=0)


@pytest.mark.parametrize("seed", [-1, 2**63, 2**70, "x", 1.5, True])
def test_bad_seeds_are_one_line(seed: Any) -> None:
    with pytest.raises(UserError, match=r"^`random_weights") as caught:
        ExtractConfig(random_weights=seed)
    assert "\n" not in str(caught.value)
