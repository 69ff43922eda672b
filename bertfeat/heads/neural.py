"""Base of the neural heads: fitting with a dev split or held-out rows, scores, and a state of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.validation import check_is_fitted

from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, Probe, class_weights
from bertfeat.heads.batching import BatchSize, hold_out
from bertfeat.heads.hyperparameters import (
    choice,
    flag,
    fraction,
    is_list,
    not_negative,
    penalties,
    positive,
    positive_integer,
    seed_number,
)
from bertfeat.heads.judging import DevSplit, predict_scores
from bertfeat.heads.matrices import Sequences, flatten_labels
from bertfeat.heads.networks import Body, Network
from bertfeat.heads.rowprobe import (
    TrainingRows,
    check_dev,
    check_training,
    check_width,
    dev_pair,
)
from bertfeat.heads.scaling import Scaling, fit_scaling
from bertfeat.heads.trainingloop import (
    Examples,
    OnEpoch,
    Settings,
    Training,
    device_to_load_on,
    memory_errors_explained,
    own_randomness,
    pick_device,
    train,
)
from bertfeat.records import Float32Array, Float64Array


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralProbe(Probe):
    """Base of the heads that torch trains, with the parameters that they share.

    A subclass is a dataclass of its own parameters, checks them, and builds the body of its network.

    Args:
        lr: AdamW's learning rate.
        weight_decay: AdamW's weight decay, or a list of values to choose from on dev.
        batch_size: The most rows of a minibatch; for taggers sequences.
        max_epochs: The most epochs.
        patience: Epochs without a better score after which training stops.
        mix: The number of layers in the vectors, concatenated with the lowest first, which a learned scalar mix
            reduces to one; None for no mix.
        standardize: Whether each column of the vectors is standardised first.
        class_weight: None, or "balanced" to weight classes inversely to their number of rows.
        metric: The score that stops training: "accuracy", "macro_f1", "loss", for taggers also "entity_f1"; "auto" is
            entity_f1 for taggers of tags such as B-PER, else accuracy.
        validation_fraction: Share of the rows of each class, or for taggers of the sequences, that is held out
            without dev; up to 32 MB of float32.
        early_stopping: Whether the score on dev stops training, and the best epoch is kept; otherwise all epochs run,
            and the last one is kept.
        seed: The seed of the first weights, the order of rows or sequences, and the dropout.
        device: "auto" (CUDA if available, else the CPU), "cpu", "cuda", "cuda:1", ...

    Attributes:
        classes_: The classes, sorted.
        network_: The trained network.
    """

    is_random = True
    has_mix = True
    penalty_name = "weight_decay"
    #: The scores that can stop training.
    metrics: ClassVar[tuple[str, ...]] = ("auto", "accuracy", "macro_f1", "loss")

    lr: float = 1e-3
    weight_decay: float | Sequence[float] = 0.01
    batch_size: int
    max_epochs: int = 50
    patience: int = 5
    mix: int | None = None
    standardize: bool = True
    class_weight: str | None = None
    metric: str = "auto"
    validation_fraction: float = 0.1
    early_stopping: bool = True
    seed: int = 0
    device: str = "auto"
    network_: Network = field(init=False)

    @property
    def n_features_in_(self) -> int:
        """Width of the vectors that it was fitted on."""
        return len(self.network_.mean)

    def fit(
        self,
        X: object,
        y: object,
        *,
        dev: tuple[Any, Any] | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Train on vectors and labels.

        Without dev and with `early_stopping`, a part of X is held out for the score that stops training. If
        `weight_decay` is a list, each value is tried and the best on dev is kept; of equal scores the larger value.

        Args:
            X: Vectors (n_rows, dim), in memory or as a stream; for taggers sequences of them.
            y: Labels (n_rows,): strings, integers or booleans; for taggers also one list per sequence.
            dev: Vectors and labels for the score that stops training and chooses the weight decay.
            on_epoch: Called after each epoch with its numbers, a dict of JSON values.

        Raises:
            UserError: A parameter, the data or dev cannot be used; the message says why.
            RunError: The loss is not finite (the message names the epoch), or there is not enough memory.
        """
        decays = penalties("weight_decay", self.weight_decay, not_negative, has_dev=dev is not None)
        settings = self._settings(pick_device(self.device))
        data = self._sequences(X)
        rows = check_training(data.vectors, flatten_labels(y, data.lengths))
        metric = self._metric(rows.classes)
        split, examples = self._split(data, rows, metric, dev, settings)
        scaling = fit_scaling(data.vectors) if self.standardize else Scaling.identity(data.dim)
        best: tuple[Training, Network] | None = None
        tried = []
        for decay in decays[::-1]:
            with memory_errors_explained(settings.device), own_randomness(settings.seed, settings.device):
                network = self._build(scaling, len(rows.classes))
                network.start_at(_shares(examples))
                training = train(network, examples, split, settings, weight_decay=decay, on_epoch=on_epoch)
            tried.append(training.report())
            if best is None or (training.best is not None and training.best.is_better_than(best[0].best)):
                best = training, network
        assert best is not None
        self.classes_, self.network_ = rows.classes, best[1]
        self._report = best[0].report() | {"device": str(settings.device)}
        if is_list(self.weight_decay):
            self._report["tried"] = tried
        return self

    def fit_report(self) -> dict[str, Any]:
        """Return the epochs and the score on dev, the weight decay that was kept, and the learned weights of a mix."""
        report = super().fit_report()
        return report if self.network_.mix is None else report | {"mix": self.network_.mix.report()}

    def get_state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return the fitted state: the network's arrays by name, and JSON values by name."""
        check_is_fitted(self, "network_")
        arrays = {name: tensor.cpu().numpy().copy() for name, tensor in self.network_.state_dict().items()}
        return arrays, {"report": self._report}

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> Self:
        """Restore a fitted state as `get_state` returns it; see `Probe`.

        The network goes to the device that it was trained on, or to the CPU if this machine does not have that device.
        """
        # The network takes no memory here: the saved arrays become its weights.
        with torch.device("meta"):
            network = self._build(Scaling.identity(len(arrays["mean"])), len(self.classes_))
        network.load_state_dict({name: torch.tensor(array).float() for name, array in arrays.items()}, assign=True)
        self.network_ = network.to(device_to_load_on(self.device))
        self._report = dict(values["report"])
        return self

    def _body(self, dim: int, n_classes: int) -> Body:
        """Return the body of the network, for vectors `dim` wide."""
        raise NotImplementedError

    def _batch_size(self) -> BatchSize:
        raise NotImplementedError

    def _sequences(self, X: object) -> Sequences:
        """Return X as sequences."""
        raise NotImplementedError

    def _metric(self, classes: Labels) -> str:  # noqa: ARG002
        return "accuracy" if self.metric == "auto" else self.metric

    def _scores(self, data: Sequences) -> Float32Array:
        """Return the scores of the classes before the softmax, float32 (n_rows, n_classes)."""
        check_is_fitted(self, "network_")
        check_width(data.vectors, self.n_features_in_, "X")
        scores = predict_scores(self.network_, data, len(self.classes_), self.network_.mean.device)
        return np.asarray(scores.numpy())

    def _probabilities(self, data: Sequences) -> Float32Array:
        return np.asarray(torch.softmax(torch.from_numpy(self._scores(data)), dim=1).numpy())

    def _build(self, scaling: Scaling, n_classes: int) -> Network:
        n_layers, dim = 1 if self.mix is None else positive_integer("mix", self.mix), len(scaling.mean)
        if dim % n_layers:
            raise UserError(f"mix {n_layers} does not divide vectors {dim} wide into layers of one width")
        return Network(scaling, None if self.mix is None else n_layers, self._body(dim // n_layers, n_classes))

    def _split(
        self, data: Sequences, rows: TrainingRows, metric: str, dev: object, settings: Settings
    ) -> tuple[DevSplit | None, Examples]:
        """Return the dev split, if there is one, and the examples to learn from."""
        weights = class_weights(rows.codes, len(rows.classes), self.class_weight)
        if dev is not None:
            dev_data, labels = self._dev(dev, data.dim, rows.classes)
            return DevSplit(dev_data, labels, rows.classes, weights, metric), Examples(data, rows.codes, weights)
        if settings.patience is None:
            return None, Examples(data, rows.codes, weights)
        rng = np.random.default_rng(settings.seed)
        strata = None if self.is_tagger else rows.codes
        held, held_rows, taking_part = hold_out(data, self.validation_fraction, rng, strata)
        split = DevSplit(held, rows.classes[rows.codes[held_rows]], rows.classes, weights, metric)
        return split, Examples(data, rows.codes, weights, taking_part)

    def _dev(self, dev: object, dim: int, classes: Labels) -> tuple[Sequences, Labels]:
        X, y = dev_pair(dev)
        if isinstance(X, Sequence) and not len(X):
            raise UserError("dev has no rows; give a dev split with labelled rows or none")
        data = self._sequences(X)
        _, labels = check_dev((data.vectors, flatten_labels(y, data.lengths)), dim, classes)
        return data, labels

    def _settings(self, device: torch.device) -> Settings:
        """Return the settings of training, with the shared parameters checked."""
        choice("metric", self.metric, self.metrics)
        flag("standardize", self.standardize)
        fraction("validation_fraction", self.validation_fraction)
        patience = positive_integer("patience", self.patience)
        return Settings(
            lr=positive("lr", self.lr),
            max_epochs=positive_integer("max_epochs", self.max_epochs),
            patience=patience if flag("early_stopping", self.early_stopping) else None,
            size=self._batch_size(),
            seed=seed_number("seed", self.seed),
            device=device,
        )


def _shares(examples: Examples) -> Float64Array:
    """Return the share of each class, (n_classes,), with rows weighted by class."""
    totals = np.bincount(examples.codes, minlength=len(examples.class_weights)) * examples.class_weights
    return np.asarray(totals / totals.sum(), dtype=np.float64)
