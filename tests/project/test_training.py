"""The training loop of the recipes: exact after a kill, exact in its loss, and able to learn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertfeat.durable import steps
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.loading import load_encoder
from bertfeat.errors import CheckpointError, ConfigError, RunError, StoreError
from bertfeat.pipelines._models import (
    TaskModel,
    check_model_place,
    freeze,
    open_task_model,
    replace_model,
    save_model,
)
from bertfeat.pipelines._training import History, MakeBatch, Settings, discard, train
from bertfeat.progress import Progress
from tests.support.families import build_model, random_pack

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread", "no_fsync")]

LENGTHS = [4 + number % 5 for number in range(22)]
SETTINGS = Settings(learning_rate=1e-3, epochs=3, batch_size=4, patience=2, seed=5, device="cpu", save_every=2)


class Killed(Exception):
    """The process ends here."""


class KilledAt(Progress):
    """Ends the process after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def stage(self, text: str, n_done: int = 0, n_total: int | None = None) -> None:
        if n_done == self._step:
            raise Killed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model("bert", tmp_path_factory.mktemp("bert"), num_hidden_layers=3)


def opened(folder: Path) -> TaskModel:
    return open_task_model(str(folder), "sequence", seed=1, num_labels=2)


def make_batch(rows: Sequence[int], random: np.random.Generator) -> Mapping[str, torch.Tensor]:
    """Texts whose class is whether their first token is even; the last token is drawn each time."""
    n_tokens = max(LENGTHS[row] for row in rows)
    ids = torch.zeros(len(rows), n_tokens, dtype=torch.int64)
    for place, row in enumerate(rows):
        ids[place, : LENGTHS[row]] = 10 + row
        ids[place, LENGTHS[row] - 1] = int(random.integers(10, 90))
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([row % 2 for row in rows])}


def accuracy(model: Any) -> float:
    model.eval()
    inputs = dict(make_batch(range(len(LENGTHS)), np.random.default_rng(0)))
    labels = inputs.pop("labels")
    with torch.no_grad():
        return float((model(**inputs).logits.argmax(-1) == labels).float().mean())


def trained(
    model: TaskModel, folder: Path, settings: Settings = SETTINGS, progress: Progress | None = None, **identity: Any
) -> History:
    """Train on the texts above, with their accuracy as the score."""
    return train(
        model.model,
        LENGTHS,
        make_batch,
        settings,
        folder,
        identity=identity,
        evaluate=lambda: accuracy(model.model),
        progress=progress or Progress(),
    )


def weights(model: TaskModel) -> list[torch.Tensor]:
    return [values.clone() for values in model.model.state_dict().values()]


def test_a_killed_training_ends_with_the_same_weights(folder: Path, tmp_path: Path) -> None:
    whole = opened(folder)
    history = trained(whole, tmp_path / "whole")
    n_steps = history.step
    assert n_steps == 18
    for step in (1, 2, 3, 6, 7, 12, 17):
        place = tmp_path / str(step)
        for stop in (step, step + 1):  # killed again at once
            with pytest.raises(Killed):
                trained(opened(folder), place, progress=KilledAt(stop))
        again = opened(folder)
        continued = trained(again, place)
        assert all(torch.equal(*pair) for pair in zip(weights(whole), weights(again), strict=True))
        assert (continued.losses, continued.scores, continued.best_epoch) == (
            history.losses,
            history.scores,
            history.best_epoch,
        )


def test_a_half_written_checkpoint_is_not_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = opened(folder)
    trained(whole, tmp_path / "whole")
    with pytest.raises(Killed):
        trained(opened(folder), tmp_path / "killed", progress=KilledAt(3))
    before = (tmp_path / "killed" / "training.pt").read_bytes()
    # What a process leaves that is killed while it writes the next one.
    (tmp_path / "killed" / "training.tmp").write_bytes(before[: len(before) // 2])

    def stop(name: str) -> None:
        if name == "training.pt.synced":
            raise Killed

    monkeypatch.setattr(steps, "hook", stop)
    with pytest.raises(Killed):
        trained(opened(folder), tmp_path / "killed")
    assert (tmp_path / "killed" / "training.pt").read_bytes() == before
    monkeypatch.undo()
    again = opened(folder)
    trained(again, tmp_path / "killed")
    assert all(torch.equal(*pair) for pair in zip(weights(whole), weights(again), strict=True))


def test_a_finished_training_is_loaded_until_it_is_discarded(folder: Path, tmp_path: Path) -> None:
    first, second = opened(folder), opened(folder)
    history = trained(first, tmp_path)
    assert trained(second, tmp_path, progress=KilledAt(1)) == history
    assert all(torch.equal(*pair) for pair in zip(weights(first), weights(second), strict=True))
    discard(tmp_path)
    with pytest.raises(Killed):
        trained(opened(folder), tmp_path, progress=KilledAt(1))


def test_the_weights_of_the_best_epoch_are_kept(folder: Path, tmp_path: Path) -> None:
    model, seen = opened(folder), []

    def evaluate() -> float:
        seen.append(weights(model))
        return [0.1, 0.3, 0.2][len(seen) - 1]

    history = train(
        model.model, LENGTHS, make_batch, SETTINGS, tmp_path, identity={}, evaluate=evaluate, progress=Progress()
    )
    assert (history.best_epoch, history.epoch) == (2, 3)
    found = [all(torch.equal(*pair) for pair in zip(weights(model), one, strict=True)) for one in seen]
    assert found == [False, True, False]


def test_a_seed_decides_the_order_and_dropout(folder: Path, tmp_path: Path) -> None:
    orders, losses = [], []
    for number, seed in enumerate((1, 1, 2)):
        rows: list[int] = []

        def recorded(batch: Sequence[int], random: np.random.Generator, rows: list[int] = rows) -> Mapping[str, Any]:
            rows.extend(batch)
            return make_batch(range(4), np.random.default_rng(0))

        settings, place = replace(SETTINGS, seed=seed), tmp_path / str(number)
        history = train(opened(folder).model, LENGTHS, recorded, settings, place, identity={}, progress=Progress())
        orders.append(rows)
        losses.append(history.losses)
    assert orders[0] == orders[1] != orders[2]
    assert losses[0] == losses[1] != losses[2]


def test_the_rate_rises_and_falls(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    plain = torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, closure: None = None) -> None:
        rates.append(self.param_groups[0]["lr"])
        plain(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    settings = Settings(learning_rate=1e-3, epochs=10, batch_size=11, device="cpu")
    trained(opened(folder), tmp_path, settings)
    assert rates == pytest.approx([5e-4, 1e-3, *(1e-3 * left / 18 for left in range(18, 0, -1))])


def test_other_settings_do_not_continue_a_training(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained(opened(folder), tmp_path, progress=KilledAt(3), data="a")
    with pytest.raises(StoreError, match="unfinished training with other settings \\(data was 'a', now 'b'\\)"):
        trained(opened(folder), tmp_path, data="b")


def test_a_small_task_is_learned(folder: Path, tmp_path: Path) -> None:
    model = opened(folder)
    settings = Settings(learning_rate=3e-3, epochs=40, batch_size=8, device="cpu")
    history = trained(model, tmp_path, settings)
    assert max(history.scores) == 1
    assert accuracy(model.model) == 1, "the weights of the best epoch are kept"
    assert history.losses[-1] < history.losses[0] / 5


@pytest.mark.parametrize(
    ("scores", "epochs", "best"), [((0, 0, 0.5, 0.4, 0.6), 4, 3), ((0, 0, 0, 0, 0), 5, 5), ((0.2, 0.2, 0.6), 2, 1)]
)
def test_epochs_without_a_score_above_0_do_not_end_a_training(
    scores: tuple[float, ...], epochs: int, best: int, folder: Path, tmp_path: Path
) -> None:
    model, found = opened(folder), iter(scores)
    settings = Settings(learning_rate=1e-3, epochs=5, batch_size=11, patience=1, device="cpu")
    evaluate = lambda: next(found)  # noqa: E731
    history = train(
        model.model, LENGTHS, make_batch, settings, tmp_path, identity={}, evaluate=evaluate, progress=Progress()
    )
    assert (history.epoch, history.best_epoch) == (epochs, best)


def test_the_loss_is_that_of_the_head(folder: Path, tmp_path: Path) -> None:
    model, other = opened(folder), opened(folder)
    settings = Settings(learning_rate=1e-9, epochs=1, batch_size=len(LENGTHS), device="cpu")
    rows: list[int] = []

    def recorded(batch: Sequence[int], random: np.random.Generator) -> Mapping[str, torch.Tensor]:
        rows.extend(batch)
        return make_batch(batch, random)

    for part in (model, other):
        for module in part.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    make: MakeBatch = recorded
    history = train(model.model, LENGTHS, make, settings, tmp_path, identity={}, progress=Progress())
    assert sorted(rows) == list(range(len(LENGTHS)))
    other.model.eval()
    with torch.no_grad():
        loss = other.model(**make_batch(rows, np.random.default_rng([0, 0]))).loss
    assert history.losses == [pytest.approx(float(loss), rel=1e-6)]


def test_frozen_layers_stay(folder: Path, tmp_path: Path) -> None:
    model = opened(folder)
    before = {name: values.clone() for name, values in model.model.state_dict().items()}
    assert freeze(model, "0..2") == (0, 1, 2)
    trained(model, tmp_path)
    changed = {name for name, values in model.model.state_dict().items() if not torch.equal(values, before[name])}
    frozen = ("bert.embeddings.", "bert.encoder.layer.0.", "bert.encoder.layer.1.")
    assert changed
    assert not [name for name in changed if name.startswith(frozen)]
    assert any(name.startswith("bert.encoder.layer.2.") for name in changed)
    with pytest.raises(ConfigError, match="out of range"):
        freeze(model, "9")


@pytest.mark.parametrize("family", ["deberta-v2", "mpnet", "xlm", "bart", "roberta-prelayernorm"])
def test_features_of_frozen_layers_stay(family: str, tmp_path: Path) -> None:
    """Blocks may share weights, such as those of relative positions, and may be in several parts."""
    original = build_model(family, tmp_path / "original")
    model = open_task_model(str(original), "sequence", seed=1, num_labels=2)
    freeze(model, "0..2")
    with torch.no_grad():
        for weights in model.model.parameters():
            if weights.requires_grad:
                weights.add_(torch.linspace(-1, 1, weights.numel()).reshape(weights.shape))
    save_model(model, tmp_path / "saved")
    states = []
    for folder in (original, tmp_path / "saved"):
        encoder = load_encoder(open_checkpoint(str(folder)), range(5))
        states.append(encoder.encode(random_pack([7])))
    for layer in range(5):
        assert torch.equal(*(one.layer(layer) for one in states)) == (layer <= 2), layer


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_attention_of_the_hub_is_not_asked_for(key: str, folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, key: "kernels-community/none"}))
    plain, found = (opened(one).model.config._attn_implementation for one in (folder, copy))
    assert plain == found == "sdpa"


def test_a_head_for_other_classes_is_drawn_at_random(folder: Path, tmp_path: Path) -> None:
    save_model(opened(folder), tmp_path)
    assert not open_task_model(str(tmp_path), "sequence", num_labels=2).new_weights
    models = [open_task_model(str(tmp_path), "sequence", seed=seed, num_labels=3) for seed in (1, 1, 2)]
    assert models[0].new_weights == ("classifier.bias", "classifier.weight")
    first, same, other = (model.model.classifier.weight for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(models[0].model.bert.pooler.dense.weight, opened(folder).model.bert.pooler.dense.weight)


@pytest.mark.parametrize("content", [b"", b"other", b"PK"])
def test_a_file_that_is_no_checkpoint_is_left(folder: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "training.pt").write_bytes(content)
    with pytest.raises(StoreError, match=r"training\.pt: is not a checkpoint of bertfeat; choose another --out"):
        trained(opened(folder), tmp_path)
    assert (tmp_path / "training.pt").read_bytes() == content


def test_a_model_is_replaced_whole(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop at any step of it does not stop the next run."""
    replace_model(opened(folder), tmp_path / "model")
    passed: list[str] = []
    monkeypatch.setattr(steps, "hook", passed.append)
    replace_model(opened(folder), tmp_path / "model")
    assert "folder.aside" in passed
    for at in dict.fromkeys(passed):

        def stop(name: str, at: str = at) -> None:
            if name == at:
                raise Killed

        monkeypatch.setattr(steps, "hook", stop)
        with pytest.raises(Killed):
            replace_model(opened(folder), tmp_path / "model")
        monkeypatch.undo()
        check_model_place(opened(folder), tmp_path / "model")
        replace_model(opened(folder), tmp_path / "model")
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_loss_that_is_not_finite_ends_the_training(folder: Path, tmp_path: Path) -> None:
    model = opened(folder)
    with torch.no_grad():
        model.model.classifier.bias.fill_(float("nan"))
    with pytest.raises(RunError, match=r"step 1: the loss is nan; use a lower --learning-rate than 0\.001"):
        trained(model, tmp_path)


def test_a_saved_model_is_a_model_with_a_trained_head(folder: Path, tmp_path: Path) -> None:
    model = opened(folder)
    assert model.new_weights == ("classifier.bias", "classifier.weight")
    with pytest.raises(CheckpointError, match="a trained head for whole texts"):
        open_task_model(str(folder), "sequence", trained=True)
    save_model(model, tmp_path / "saved")
    again = open_task_model(str(tmp_path / "saved"), "sequence", trained=True)
    assert all(torch.equal(*pair) for pair in zip(weights(model), weights(again), strict=True))


def test_a_family_without_the_head_is_refused(tmp_path: Path) -> None:
    gpt2 = build_model("gpt2", tmp_path / "gpt2")
    with pytest.raises(CheckpointError, match="transformers has no head for masked words for gpt2"):
        open_task_model(str(gpt2), "masked")


@pytest.mark.parametrize("family", ["longformer", "nystromformer"])
def test_new_biases_are_zero(family: str, tmp_path: Path) -> None:
    """transformers leaves some of them as they are in memory."""
    model = open_task_model(str(build_model(family, tmp_path)), "masked")
    biases = [name for name in model.new_weights if name.endswith("bias")]
    assert len(biases) == 4
    assert not any(model.model.state_dict()[name].any() for name in biases)
