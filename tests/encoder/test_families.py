"""Every family's hidden states equal plain transformers, one text at a time."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from bertfeat.encoder.checkpoint import UNLIMITED_DEFAULT, Checkpoint, open_checkpoint
from bertfeat.encoder.encoder import Encoder
from bertfeat.encoder.families import families, family_of
from bertfeat.encoder.loading import load_encoder
from bertfeat.errors import CheckpointError, ConfigError
from bertfeat.records import Pack
from tests.support.families import (
    HIDDEN,
    MAX_LENGTH,
    N_LAYERS,
    all_model_types,
    build_model,
    random_pack,
    reference_encoder,
    reference_states,
    windows_of,
)
from tests.support.places import ROOT

ALL_LAYERS = range(N_LAYERS + 1)


pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Built on demand by `checkpoint_of`, once a family."""
    return {"": tmp_path_factory.mktemp("families")}


def checkpoint_of(folders: dict[str, Path], model_type: str) -> Checkpoint:
    if model_type not in folders:
        folders[model_type] = build_model(model_type, folders[""] / model_type)
    return open_checkpoint(str(folders[model_type]))


def assert_close(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    difference = found - expected
    assert difference.abs().max() <= 1e-4, what
    assert difference.norm() <= 1e-5 * expected.norm(), what


def assert_equal_layers(encoder: Encoder, pack: Pack, expected: list[torch.Tensor]) -> None:
    states = encoder.encode(pack)
    for layer in encoder.layers:
        assert states.layer(layer).shape == (pack.n_tokens, HIDDEN)
        assert_close(states.layer(layer), expected[layer], f"layer {layer}")


@pytest.mark.parametrize("model_type", all_model_types())
def test_layers_equal_transformers_at_every_length(folders: dict[str, Path], model_type: str) -> None:
    checkpoint = checkpoint_of(folders, model_type)
    assert (checkpoint.n_layers, checkpoint.hidden_size) == (N_LAYERS, HIDDEN)
    unlimited = checkpoint.family.positions == "unlimited"
    assert checkpoint.max_length == (UNLIMITED_DEFAULT if unlimited else MAX_LENGTH)
    encoder = load_encoder(checkpoint, ALL_LAYERS)
    pack = random_pack([*range(1, MAX_LENGTH + 1), 7, 7, 7, 1, 1, MAX_LENGTH])
    reference = reference_encoder(checkpoint.family, checkpoint.folder)
    expected = reference_states(reference, pack, type_ids=encoder.supports_type_ids)
    assert len(expected) == N_LAYERS + 1
    assert_equal_layers(encoder, pack, expected)
    for index in (0, 20, 35):
        window = windows_of(pack)[index]
        tokens = {name: getattr(pack, name)[window] for name in ("input_ids", "position_ids", "type_ids")}
        alone = Pack(**tokens, lengths=pack.lengths[[index]], windows=pack.windows[[index]])
        assert_equal_layers(encoder, alone, [state[window] for state in expected])


@pytest.mark.parametrize("model_type", all_model_types())
def test_cut_models_equal_the_whole_one(folders: dict[str, Path], model_type: str) -> None:
    checkpoint = checkpoint_of(folders, model_type)
    pack = random_pack([30, 12, 12, 5, 1], seed=3)
    whole = load_encoder(checkpoint, ALL_LAYERS)
    states = whole.encode(pack)
    expected = [states.layer(layer) for layer in ALL_LAYERS]
    n_whole = sum(parameter.numel() for parameter in whole._model.parameters())
    for layers in ([0], [2], [1, 3]):
        encoder = load_encoder(checkpoint, layers)
        assert encoder.n_blocks == max(1, *layers)
        assert_equal_layers(encoder, pack, expected)
        n_cut = sum(parameter.numel() for parameter in encoder._model.parameters())
        assert n_cut < n_whole or model_type == "albert" or checkpoint.family.whole


@pytest.mark.parametrize("model_type", [family.model_type for family in families() if family.pooler != "none"])
def test_pooler_equals_transformers(folders: dict[str, Path], model_type: str) -> None:
    checkpoint = checkpoint_of(folders, model_type)
    if model_type == "roberta":
        # Saved from a masked language model, like the published RoBERTa: it has no trained pooler.
        with pytest.raises(CheckpointError, match="no trained pooler"):
            load_encoder(checkpoint, [1], with_pooler=True)
        return
    encoder = load_encoder(checkpoint, [1], with_pooler=True)
    pack = random_pack([20, 9, 9, 4], seed=4)
    pooled = encoder.encode(pack).pooler()
    reference = reference_encoder(checkpoint.family, checkpoint.folder)
    for index, window in enumerate(windows_of(pack)):
        inputs = {"input_ids": torch.from_numpy(pack.input_ids[window])[None]}
        if encoder.supports_type_ids:
            inputs["token_type_ids"] = torch.from_numpy(pack.type_ids[window])[None]
        with torch.inference_mode():
            assert_close(pooled[index], reference(**inputs).pooler_output[0], f"window {index}")


def test_pooler_is_refused_where_there_is_none(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="DistilBERT has no pooler"):
        load_encoder(checkpoint_of(folders, "distilbert"), [1], with_pooler=True)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "modernbert", "gpt2", "deberta-v2"])
def test_neighbours_in_a_pack_change_nothing(folders: dict[str, Path], model_type: str) -> None:
    encoder = load_encoder(checkpoint_of(folders, model_type), ALL_LAYERS)
    together = random_pack([29, 17, 17, 17, 2], seed=5)
    states = encoder.encode(together)
    ids = np.where(np.arange(together.n_tokens) < 29, 7, together.input_ids)
    changed = encoder.encode(dataclasses.replace(together, input_ids=ids))
    for layer in ALL_LAYERS:
        assert torch.equal(states.layer(layer)[29:], changed.layer(layer)[29:])
        assert not torch.equal(states.layer(layer)[:29], changed.layer(layer)[:29])


def test_padding_token_in_the_text_keeps_transformers_positions(folders: dict[str, Path]) -> None:
    checkpoint = checkpoint_of(folders, "roberta")
    encoder = load_encoder(checkpoint, ALL_LAYERS)
    pack = random_pack([12, 8, 8, 3], seed=6)
    pack.input_ids[[3, 4, 13, 30]] = 1
    expected = reference_states(reference_encoder(checkpoint.family, checkpoint.folder), pack, type_ids=False)
    assert_equal_layers(encoder, pack, expected)


@pytest.mark.parametrize(
    ("model_type", "changes", "layers"),
    [
        # A decoder stays causal, and ALBERT with several groups of blocks is not cut.
        ("bert", {"is_decoder": True}, ALL_LAYERS),
        ("albert", {"num_hidden_groups": 2}, [1, 2]),
    ],
)
def test_other_configs_equal_transformers(
    tmp_path: Path, model_type: str, changes: dict[str, object], layers: Sequence[int]
) -> None:
    checkpoint = open_checkpoint(str(build_model(model_type, tmp_path / model_type, **changes)))
    pack = random_pack([12, 12, 5], seed=7)
    expected = reference_states(reference_encoder(checkpoint.family, checkpoint.folder), pack, type_ids=True)
    assert_equal_layers(load_encoder(checkpoint, layers), pack, expected)


def test_bart_and_t5_load_no_decoder(folders: dict[str, Path]) -> None:
    for model_type in ("bart", "t5"):
        encoder = load_encoder(checkpoint_of(folders, model_type), [N_LAYERS])
        assert not any("decoder" in name for name, _ in encoder._model.named_parameters())


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("funnel", "different lengths"), ("llama", "'llama' is not supported; `bertfeat models` lists")],
)
def test_other_families_are_refused(tmp_path: Path, model_type: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(CheckpointError, match=reason):
        open_checkpoint(str(tmp_path))


def test_packed_families_take_the_attention_interface() -> None:
    import transformers

    for family in families():
        module = sys.modules[getattr(transformers, family.model_class).__module__]
        assert hasattr(module, "ALL_ATTENTION_FUNCTIONS") or family.path == "equal-length", family.model_type
    assert family_of("mobilebert").path == "equal-length"  # type: ignore[union-attr]


def test_minilm_equals_transformers_on_every_layer() -> None:
    from transformers import AutoModel

    checkpoint = open_checkpoint("minilm")
    encoder = load_encoder(checkpoint, range(7))
    lengths = [512, 300, 64, 64, 63, 17, 17, 17, 8, 3, 2, 1]
    pack = random_pack(lengths, seed=9, least_id=1000, most_id=30_000)
    reference = AutoModel.from_pretrained(checkpoint.folder).eval()
    expected = reference_states(reference, pack, type_ids=True)
    states = encoder.encode(pack)
    for layer in range(7):
        assert_close(states.layer(layer), expected[layer], f"layer {layer}")


def test_loading_says_nothing(folders: dict[str, Path]) -> None:
    folder = checkpoint_of(folders, "bert").folder
    code = (
        "import sys; from bertfeat.encoder.checkpoint import open_checkpoint\n"
        "from bertfeat.encoder.loading import load_encoder\n"
        "load_encoder(open_checkpoint(sys.argv[1]), [2])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, env=environment, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
