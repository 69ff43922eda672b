"""The training of the recipes: alike after a kill, with the weights of the best epoch, and able to learn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.loading import load_encoder
from bertfeat.errors import CheckpointError, RunError
from bertfeat.pipelines._training import (
    History,
    Settings,
    TaskModel,
    freeze,
    make_trainer,
    open_task_model,
    replace_model,
    train,
)
from tests.support.families import build_model, random_pack
from tests.support.pipeline_runs import Killed, kill_at

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread", "no_fsync")]

# Texts whose class is whether their first token is even.
EXAMPLES = [{"input_ids": [10 + row] * (4 + row % 5), "labels": row % 2} for row in range(22)]
SETTINGS = Settings(learning_rate=1e-3, epochs=3, batch_size=4, seed=5, device="cpu")
Score = Callable[[Any], float]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model("bert", tmp_path_factory.mktemp("bert"), num_hidden_layers=3)


def opened(folder: Path) -> TaskModel:
    return open_task_model(str(folder), "sequence", seed=1, num_labels=2)


def accuracy(predicted: Any) -> float:
    return float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())


def trained(
    model: TaskModel, folder: Path, settings: Settings = SETTINGS, score: Score = accuracy, **made_of: Any
) -> History:
    """Train on the texts above, which are dev too."""
    collator = transformers.DataCollatorWithPadding(model.tokenizer)
    return train(
        make_trainer(
            model.model, EXAMPLES, settings, folder, collator=collator, made_of=made_of, dev=EXAMPLES, score=score
        )
    )


def weights(model: TaskModel) -> list[torch.Tensor]:
    return [values.clone() for values in model.model.state_dict().values()]


def are_equal(one: TaskModel, other: TaskModel) -> bool:
    return all(torch.equal(*pair) for pair in zip(weights(one), weights(other), strict=True))


def test_a_killed_training_ends_with_the_same_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, again = opened(folder), opened(folder)
    history = trained(whole, tmp_path / "whole")
    assert (history.step, history.epoch, len(history.scores)) == (18, 3, 3)
    for step in (3, 16):
        kill_at(monkeypatch, step)
        with pytest.raises(Killed):
            trained(opened(folder), tmp_path / "killed")
    # A kill in the middle of a checkpoint leaves a folder without its last file.
    (place,) = (tmp_path / "killed" / ".checkpoints").iterdir()
    shutil.copytree(place / "checkpoint-12", place / "checkpoint-18")
    (place / "checkpoint-18" / "trainer_state.json").unlink()
    monkeypatch.undo()
    continued = trained(again, tmp_path / "killed")
    assert are_equal(whole, again)
    assert replace(continued, seconds=0) == replace(history, seconds=0)


@pytest.mark.parametrize(
    ("scores", "patience", "epochs", "best"),
    [((0.1, 0.3, 0.2), None, 3, 2), ((0, 0, 0.5, 0.4, 0.6), 1, 4, 3), ((0, 0, 0), 1, 3, 3)],
)
def test_the_weights_of_the_best_epoch_are_kept(
    scores: tuple[float, ...], patience: int | None, epochs: int, best: int, folder: Path, tmp_path: Path
) -> None:
    """While all scores are 0, as those of a tagger that has found no entity, a later epoch is better."""
    model, found, seen = opened(folder), iter(scores), []

    def score(_: object) -> float:
        seen.append(weights(model))
        return next(found)

    settings = replace(SETTINGS, epochs=len(scores), patience=patience, batch_size=11)
    history = trained(model, tmp_path, settings, score)
    assert (history.epoch, history.best_epoch) == (epochs, best)
    assert list(history.scores) == list(scores[:epochs])
    is_kept = [all(torch.equal(*pair) for pair in zip(weights(model), one, strict=True)) for one in seen]
    assert is_kept == [number == best for number in range(1, epochs + 1)]


def test_a_loss_that_is_not_finite_ends_the_training(folder: Path, tmp_path: Path) -> None:
    model = opened(folder)
    with torch.no_grad():
        model.model.classifier.bias.fill_(float("nan"))
    with pytest.raises(RunError, match=r"step 6: the loss is nan; use a lower --learning-rate than 0\.001"):
        trained(model, tmp_path)


@pytest.mark.parametrize("family", ["deberta-v2", "xlm"])
def test_features_of_frozen_layers_stay(family: str, tmp_path: Path) -> None:
    """Blocks may share weights, such as those of relative positions, and may be in several parts."""
    original = build_model(family, tmp_path / "original")
    model = open_task_model(str(original), "sequence", seed=1, num_labels=2)
    freeze(model, "0..2")
    with torch.no_grad():
        for weights in model.model.parameters():
            if weights.requires_grad:
                weights.add_(torch.linspace(-1, 1, weights.numel()).reshape(weights.shape))
    replace_model(model, tmp_path / "saved")
    states = []
    for folder in (original, tmp_path / "saved"):
        encoder = load_encoder(open_checkpoint(str(folder)), range(5))
        states.append(encoder.encode(random_pack([7])))
    for layer in range(5):
        assert torch.equal(*(one.layer(layer) for one in states)) == (layer <= 2), layer


def test_attention_of_the_hub_is_not_asked_for(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "attn_implementation": "kernels-community/none"}))
    assert opened(copy).model.config._attn_implementation == "sdpa"


def test_a_saved_head_is_kept_and_one_for_other_classes_is_drawn_at_random(folder: Path, tmp_path: Path) -> None:
    model, saved = opened(folder), str(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="a trained head for whole texts"):
        open_task_model(str(folder), "sequence", trained=True)
    replace_model(model, tmp_path / "saved")
    assert are_equal(model, open_task_model(saved, "sequence", trained=True))
    models = [open_task_model(saved, "sequence", seed=seed, num_labels=3) for seed in (1, 1, 2)]
    assert models[0].new_weights == ("classifier.bias", "classifier.weight")
    first, same, other = (model.model.classifier.weight for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
