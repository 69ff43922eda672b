"""Heads that torch trains: a multi-layer perceptron over rows, and taggers that label the words of a sentence.

Below them are their networks and their training: AdamW on minibatches, early stopping on dev, the best epoch kept.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from bertfeat.choices import Task
from bertfeat.devices import memory_errors, resolve_device
from bertfeat.errors import ConfigError, RunError, UserError
from bertfeat.heads.base import DEV_METRICS, Labels, Probe, codes_of, is_list, penalties
from bertfeat.heads.batching import BatchSize, batches, hold_out
from bertfeat.heads.row_probe import check_dev, check_width, with_labels
from bertfeat.heads.scores import primary_metric, score_by
from bertfeat.heads.sequences import Sequences, flatten_labels
from bertfeat.heads.targets import Targets, check_truth, decide, encode, indicators, weights_of
from bertfeat.records import BoolArray, Float32Array, Float64Array, IntArray
from bertfeat.vectors.array import as_vectors
from bertfeat.vectors.standardized import Scaling, fit_scaling, mean_norms

#: Called after each epoch with its numbers: epoch, max_epochs, train_loss, dev_loss, dev_score, metric, best_epoch, ...
OnEpoch: TypeAlias = Callable[[dict[str, Any]], None]

# Longer gradients are clipped: rare ones of recurrent networks would undo what was learned.
_MAX_GRADIENT_NORM = 5.0
# The few weights of a scalar mix must change much: from equal shares to one layer alone.
_MIX_LR_FACTOR = 10.0


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralProbe(Probe):
    """Base of the heads that torch trains, with the parameters that they share.

    A subclass is a dataclass of its own parameters, and builds the body of its network.

    Args:
        lr: AdamW's learning rate.
        weight_decay: AdamW's weight decay, or a list of values to choose from on dev.
        batch_size: The most rows of a minibatch; for taggers sequences.
        max_epochs: The most epochs.
        patience: Epochs without a better score after which training stops.
        mix: The number of layers in the vectors, concatenated with the lowest first, which a learned scalar mix
            reduces to one; None for no mix.
        standardize: Whether each column of the vectors is standardized first.
        class_weight: None, or "balanced" to weight classes inversely to their number of rows.
        metric: The score that stops training: "accuracy", "macro_f1", "loss", for taggers also "entity_f1"; "auto" is
            entity_f1 for taggers of tags such as B-PER, else accuracy.
        validation_fraction: Share of the rows of each class, or for taggers of the sequences, that is held out
            without dev; up to 32 MB of float32.
        early_stopping: Whether the score on dev stops training, and the best epoch is kept; otherwise all epochs run,
            and the last one is kept.
        seed: The seed of the first weights, the order of rows or sequences, and the dropout.
        device: "auto" (CUDA if available, else the CPU), or a device as in `ExtractConfig`, the first if it names many.

    Attributes:
        network_: The trained network.
    """

    is_random = True
    penalty_name = "weight_decay"

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

    def fit(self, X: object, y: object, *, dev: tuple[Any, Any] | None = None, on_epoch: OnEpoch | None = None) -> Self:
        """Train on vectors and labels.

        Without dev and with `early_stopping`, a part of X is held out for the score that stops training. If
        `weight_decay` is a list, each value is tried and the best on dev is kept; of equal scores the larger value.

        Args:
            X: Numbers (n_rows, dim), or `Vectors`, which are read in chunks; for taggers sequences of them.
            y: Labels (n_rows,): strings, integers or booleans; for taggers also one list per sequence.
            dev: Vectors and labels for the score that stops training and chooses the weight decay.
            on_epoch: Called after each epoch with its numbers, a dict of JSON values.

        Raises:
            UserError: A parameter, the data or dev cannot be used; the message says why.
            RunError: The loss is not finite (the message names the epoch), or there is not enough memory.
        """
        self._check_parameters(dev)
        device = _training_device(self.device)
        data = self._sequences(X)
        truth = check_truth(self.task, flatten_labels(y, data.lengths) if self.task == Task.CLASSIFY else y)
        classes, targets = encode(self.task, truth)
        with_labels(data.vectors, targets, "X", "y")
        weights = weights_of(targets, len(classes), self.class_weight)
        # Numbers are learned as deviations from their mean, in units of their deviation.
        units = fit_scaling(as_vectors(targets)) if self.task == Task.REGRESS else None
        given = Examples(self.task, data, targets if units is None else units.apply(targets), weights)
        examples, split = self._split(given, truth, classes, dev, units)
        scaling = fit_scaling(data.vectors) if self.standardize else Scaling.identity(data.dim)
        first = _first_scores(self.task, targets, weights)
        best: tuple[dict[str, Any], Network] | None = None
        tried = []
        for decay in penalties("weight_decay", self.weight_decay, has_dev=dev is not None)[::-1]:
            with (
                memory_errors(device, "training; use a smaller hidden_size or batch_size"),
                own_randomness(int(self.seed), device),
            ):
                network = self._build(scaling, len(first)).to(device)
                network.start_at(first)
                report = train(network, examples, split, self, weight_decay=decay, on_epoch=on_epoch)
            tried.append(report)
            if best is None or rank(report) > rank(best[0]):
                best = report, network
        assert best is not None
        self.classes_, self.network_ = classes, best[1]
        if units is not None:
            self.network_.unscale(units)
        self.report_ = best[0] | {"device": str(device)}
        if is_list(self.weight_decay):
            self.report_["tried"] = tried
        if self.network_.mix is not None:
            norms = mean_norms(data.vectors, scaling, self.network_.mix.n_layers)
            self.report_["mix"] = self.network_.mix.report() | {"norms": norms}
        return self

    def predict(self, X: object) -> Any:
        """Return what `RowProbe.predict` returns, of the labels' own type; for taggers one array per sequence."""
        data = self._sequences(X)
        return self._shaped(self._labels(data), data)

    @available_if(lambda self: self.task != Task.REGRESS)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: object) -> Any:
        """Return the probabilities of the classes, float32 (n_rows, n_classes); see `predict`."""
        data = self._sequences(X)
        scores = torch.from_numpy(self._scores(data))
        chances = torch.softmax(scores, dim=1) if self.task == Task.CLASSIFY else torch.sigmoid(scores)
        return self._shaped(chances.numpy(), data)

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the network's arrays by name; see `Probe`."""
        check_is_fitted(self, "network_")
        return {name: tensor.cpu().numpy().copy() for name, tensor in self.network_.state_dict().items()}

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Restore the network's arrays (see `Probe`), on the device of its training if it is there, else on the CPU."""
        # The network takes no memory here: the saved arrays become its weights.
        with torch.device("meta"):
            network = self._build(Scaling.identity(len(arrays["mean"])), len(arrays["body.output.bias"]))
        network.load_state_dict({name: torch.tensor(array).float() for name, array in arrays.items()}, assign=True)
        try:
            device = _training_device(self.device)
        except ConfigError:
            device = torch.device("cpu")
        self.network_ = network.to(device)
        return self

    def _body(self, dim: int, n_outputs: int) -> Body:
        """Return the body of the network, for vectors `dim` wide."""
        raise NotImplementedError

    def _sequences(self, X: object) -> Sequences:
        """Return X as sequences, of one row each unless the head is a tagger."""
        if self.is_tagger:
            return Sequences.of(X)
        source = as_vectors(X)
        return Sequences(source, np.ones(source.shape[0], dtype=np.int64))

    def _shaped(self, flat: npt.NDArray[Any], data: Sequences) -> Any:
        """Return results of rows in the shape in which the data came."""
        # Without sequences, np.split still returns one empty piece.
        return np.split(flat, data.starts[1:-1])[: len(data)] if self.is_tagger else flat

    def _labels(self, data: Sequences) -> Labels:
        return decide(self.task, self._scores(data), self.classes_)

    def _scores(self, data: Sequences) -> Float32Array:
        """Return the scores of the outputs, before a softmax, float32 (n_rows, n_outputs)."""
        check_is_fitted(self, "network_")
        check_width(data.vectors, self.n_features_in_, "X")
        return np.asarray(predict_scores(self.network_, data).numpy())

    def _build(self, scaling: Scaling, n_outputs: int) -> Network:
        n_layers, dim = self.mix or 1, len(scaling.mean)
        if dim % n_layers:
            raise UserError(f"mix {n_layers} does not divide vectors {dim} wide into layers of one width")
        return Network(scaling, self.mix, self._body(dim // n_layers, n_outputs))

    def _split(
        self, train: Examples, truth: Labels, classes: Labels, dev: tuple[Any, Any] | None, units: Scaling | None
    ) -> tuple[Examples, DevSplit | None]:
        """Return the examples to learn from, and the dev split if there is one."""
        metric = DEV_METRICS[self.task][0] if self.metric == "auto" else self.metric
        if self.metric == "auto" and self.is_tagger:
            metric = primary_metric(classes.tolist())
        if dev is not None:
            held = self._sequences(dev[0])
            own = flatten_labels(dev[1], held.lengths) if self.task == Task.CLASSIFY else dev[1]
            _, labels = check_dev(held.vectors, own, train.data.dim, classes, self.task)
        elif self.early_stopping:
            rng = np.random.default_rng(self.seed)
            strata = None if self.is_tagger or self.task != Task.CLASSIFY else train.targets
            held, rows, taking_part = hold_out(train.data, self.validation_fraction, rng, strata)
            labels, train = truth[rows], replace(train, taking_part=taking_part)
        else:
            return train, None
        if units is not None:
            labels = units.apply(labels.reshape(len(labels), -1))
            targets: Targets = labels
        elif self.task == Task.MULTILABEL:
            targets = indicators(labels, classes)
        else:
            targets = codes_of(labels, classes)
            if metric == "loss" and (targets < 0).all():
                raise UserError("dev holds no label that train has seen, so it has no loss; pass another metric")
        return train, DevSplit(Examples(self.task, held, targets, train.class_weights), labels, classes, metric)

    def _ignored(self, *, has_dev: bool) -> Iterator[tuple[str, str]]:
        yield from super()._ignored(has_dev=has_dev)
        if has_dev:
            yield "validation_fraction", "with dev, so that nothing is held out"
        if not self.early_stopping:
            yield "patience", "without early_stopping"
            if not has_dev:
                yield "validation_fraction", "without early_stopping"
                yield "metric", "without `dev`; add it"


@dataclass(kw_only=True, eq=False, repr=False)
class MLPProbe(NeuralProbe):
    """A multi-layer perceptron: hidden layers with ReLU and dropout, then a linear layer.

    Classes have a softmax, several labels a logistic function each. Numbers are learned by squared error, as deviations
    from their mean. Further parameters are those of `NeuralProbe`.

    Args:
        task: What it learns: "classify", a class per row; "regress", one or several numbers; or "multilabel", a list of
            labels.
        hidden_size: Width of the hidden layers.
        n_layers: The number of hidden layers.
        dropout: Share of the hidden values that training drops.

    Examples:
        >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
        >>> probe = MLPProbe(early_stopping=False, lr=0.01).fit(X, ["odd", "odd", "even", "even"])
        >>> probe.predict(X).tolist()
        ['odd', 'odd', 'even', 'even']
    """

    head = "mlp"
    choices: ClassVar = {"task": tuple(Task)}

    task: str = "classify"
    hidden_size: int = 256
    n_layers: int = 1
    dropout: float = 0.1
    batch_size: int = 256

    def _body(self, dim: int, n_outputs: int) -> Body:
        steps: list[nn.Module] = []
        for _ in range(self.n_layers):
            steps += [nn.Linear(dim, self.hidden_size), nn.ReLU(), nn.Dropout(self.dropout)]
            dim = self.hidden_size
        return RowByRow(nn.Sequential(*steps), nn.Linear(dim, n_outputs))


@dataclass(kw_only=True, eq=False, repr=False)
class Tagger(NeuralProbe):
    """Base of the taggers, which learn from and label sequences.

    X is a list of arrays (n_words, dim), one per sequence, or `Sequences`, in memory or over a stream. A sequence may
    be empty. Further parameters are those of `NeuralProbe`.

    Args:
        batch_tokens: The most words of a minibatch; a longer sequence is a minibatch alone.
    """

    is_tagger = True

    batch_size: int = 32
    batch_tokens: int = 2048

    def score(self, X: object, y: object) -> float:
        """Return the F1 of entities where the classes are tags such as B-PER, else the accuracy of words.

        Labels are flat, or one list per sequence.
        """
        data = self._sequences(X)
        truth, metric = flatten_labels(y, data.lengths), primary_metric(self.classes_.tolist())
        return score_by(metric, truth, self._labels(data), data.lengths)


@dataclass(kw_only=True, eq=False, repr=False)
class LinearTagger(Tagger):
    """A softmax over the vector of each word, without its neighbors; parameters as in `NeuralProbe` and `Tagger`."""

    head = "linear"

    def _body(self, dim: int, n_classes: int) -> Body:
        output = nn.Linear(dim, n_classes)
        # The loss is convex: random weights would only be noise that training has to remove first.
        nn.init.zeros_(output.weight)
        return RowByRow(nn.Identity(), output)


@dataclass(kw_only=True, eq=False, repr=False)
class BiLSTMTagger(Tagger):
    """A BiLSTM over each sequence and a softmax over its states: the paper's head, two layers, 768 per direction.

    Further parameters are those of `NeuralProbe` and `Tagger`.

    Args:
        hidden_size: Width of the states of each direction.
        n_layers: The number of layers.
        dropout: Share of the values that training drops, of the input, between layers and of the output.

    Examples:
        >>> X = [np.array([[0.0], [1.0], [0.0]]), np.array([[1.0], [0.0]])] * 4  # a word after a 1 is "after"
        >>> y = [["no", "no", "after"], ["no", "after"]] * 4
        >>> tagger = BiLSTMTagger(hidden_size=8, lr=0.05, early_stopping=False).fit(X, y)
        >>> [labels.tolist() for labels in tagger.predict(X[:2])]
        [['no', 'no', 'after'], ['no', 'after']]
    """

    head = "bilstm"

    hidden_size: int = 768
    n_layers: int = 2
    dropout: float = 0.3
    max_epochs: int = 30

    def _body(self, dim: int, n_classes: int) -> Body:
        return BiLSTM(dim, self.hidden_size, self.n_layers, self.dropout, n_classes)


def _first_scores(task: str, targets: Targets, weights: Float64Array) -> Float64Array:
    """Return the scores of a network that knows the shares of the classes alone, (n_outputs,)."""
    if task == Task.REGRESS:
        return np.zeros(targets.shape[1])
    if task == Task.MULTILABEL:
        totals = weights * np.stack([(~targets).sum(axis=0), targets.sum(axis=0)], axis=1)
        return np.asarray(np.log(np.maximum(totals[:, 1], 0.5) / np.maximum(totals[:, 0], 0.5)))
    totals = np.bincount(targets) * weights
    return np.asarray(np.log(totals / totals.sum()))


def _training_device(spec: str) -> torch.device:
    """Return the device that a head trains on; an Apple GPU must be named, `mps`."""
    if spec == "auto":
        spec = "cuda" if torch.cuda.is_available() else "cpu"
    return resolve_device(str(spec))[0]


class ScalarMix(nn.Module):
    """gamma * sum over layers of softmax(w)_l * h_l (Peters et al. 2018, equation 1), at first their mean."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.n_layers = n_layers
        self.weights = nn.Parameter(torch.zeros(n_layers))
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, layers: torch.Tensor) -> torch.Tensor:
        """Mix layers, float (n_rows, n_layers, hidden), into (n_rows, hidden)."""
        shares = self.gamma * torch.softmax(self.weights, dim=0)
        return torch.einsum("nld,l->nd", layers, shares)

    def report(self) -> dict[str, Any]:
        """Return the weights of the layers, which sum to 1, the lowest layer first, and gamma."""
        shares = torch.softmax(self.weights.detach().double(), dim=0)
        return {"weights": shares.tolist(), "gamma": self.gamma.item()}


class Network(nn.Module):
    """A network that standardizes vectors, mixes their layers unless `n_layers` is None, and scores rows by a body."""

    mean: torch.Tensor
    scale: torch.Tensor
    body: Body

    def __init__(self, scaling: Scaling, n_layers: int | None, body: Body) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(scaling.mean))
        self.register_buffer("scale", torch.tensor(scaling.scale))
        self.mix = None if n_layers is None else ScalarMix(n_layers)
        self.body = body

    def start_at(self, scores: Float64Array) -> None:
        """Start at scores, (n_outputs,), that every row gets; to learn them takes the intercept thousands of steps."""
        with torch.no_grad():
            self.body.output.bias.copy_(torch.from_numpy(scores))

    def unscale(self, scaling: Scaling) -> None:
        """Turn scores of numbers that were standardized into scores of the numbers."""
        mean, scale = torch.from_numpy(scaling.mean), torch.from_numpy(scaling.scale)
        with torch.no_grad():
            output = self.body.output
            output.weight.mul_(scale.to(output.weight)[:, None])
            output.bias.mul_(scale.to(output.bias)).add_(mean.to(output.bias))

    def forward(self, vectors: torch.Tensor, lengths: IntArray) -> torch.Tensor:
        """Return scores (n_rows, n_classes) of vectors (n_rows, dim), of sequences end to end, none of length 0."""
        vectors = (vectors - self.mean) / self.scale
        if self.mix is not None:
            vectors = self.mix(vectors.reshape(-1, self.mix.n_layers, len(self.mean) // self.mix.n_layers))
        scores: torch.Tensor = self.body(vectors, lengths)
        return scores


class RowByRow(nn.Module):
    """Modules applied to each row alone."""

    def __init__(self, hidden: nn.Module, output: nn.Linear) -> None:
        super().__init__()
        self.hidden = hidden
        self.output = output

    def forward(self, vectors: torch.Tensor, lengths: IntArray) -> torch.Tensor:  # noqa: ARG002
        """Return scores; see `Network.forward`."""
        scores: torch.Tensor = self.output(self.hidden(vectors))
        return scores


class BiLSTM(nn.Module):
    """A BiLSTM with dropout and a linear layer."""

    # Sequences are packed: padded batches take oneDNN 1.6 times as long (768 wide, 32 sentences, one thread).

    def __init__(self, dim: int, hidden_size: int, n_layers: int, dropout: float, n_classes: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(dim, hidden_size, n_layers, bidirectional=True, dropout=dropout if n_layers > 1 else 0.0)
        self.output = nn.Linear(2 * hidden_size, n_classes)

    def forward(self, vectors: torch.Tensor, lengths: IntArray) -> torch.Tensor:
        """Return scores; see `Network.forward`."""
        order, sequences = np.argsort(-lengths, kind="stable"), torch.split(vectors, lengths.tolist())
        packed = pack_sequence([sequences[number] for number in order])
        states = unpack_sequence(self.lstm(packed._replace(data=self.dropout(packed.data)))[0])
        back = torch.cat([states[place] for place in np.argsort(order)])
        scores: torch.Tensor = self.output(self.dropout(back))
        return scores


#: The part of a network that scores rows; `output`, a linear layer, is its last step.
Body: TypeAlias = RowByRow | BiLSTM


@dataclass(frozen=True, eq=False)
class Examples:
    """Sequences, with what each row is labelled with (see `Targets`), and the weights of classes in the loss."""

    task: str
    data: Sequences
    targets: Targets
    class_weights: Float64Array
    taking_part: BoolArray | None = None  # the sequences that are learned from, (n_sequences,); None is all


@dataclass(frozen=True, eq=False)
class DevSplit:
    """Examples that training is judged on, with their labels, (n_rows,); those that train has not seen are errors."""

    examples: Examples
    labels: Labels
    classes: Labels
    metric: str

    def measure(self, network: Network) -> dict[str, Any]:
        """Return the metric, its score and the mean loss, which is None if no label is a known class."""
        task, data, targets = self.examples.task, self.examples.data, torch.from_numpy(self.examples.targets)
        try:
            scores = predict_scores(network, data)
        except UserError as error:
            raise UserError(f"dev: {error}") from None
        known = targets >= 0 if task == Task.CLASSIFY else torch.ones(len(targets), dtype=torch.bool)
        loss = None
        if known.any():
            weights = torch.from_numpy(self.examples.class_weights).float()
            losses = loss_of(task, scores[known], targets[known], weights, reduction="none")
            loss = losses.mean(dtype=torch.float64).item()
        score = loss
        if self.metric != "loss":
            found = decide(task, scores.numpy(), self.classes)
            score = score_by(self.metric, self.labels, found, data.lengths, classes=self.classes)
        return {"metric": self.metric, "dev_score": score, "dev_loss": loss}


def loss_of(
    task: str, scores: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, reduction: str
) -> torch.Tensor:
    """Return the losses of rows, or their sum: cross-entropy, squared error, or the cross-entropy of each label."""
    if task == Task.CLASSIFY:
        return cross_entropy(scores, targets, weight=weights, reduction=reduction)
    if task == Task.REGRESS:
        return mse_loss(scores, targets.float(), reduction=reduction)
    each = torch.where(targets, weights[:, 1], weights[:, 0])
    return binary_cross_entropy_with_logits(scores, targets.float(), weight=each, reduction=reduction)


def rank(measure: Mapping[str, Any]) -> tuple[float, float]:
    """Return a key to compare measures by score, then by loss: F1 stays 0 until the first entity is found."""
    loss = -math.inf if measure["dev_loss"] is None else -measure["dev_loss"]
    return (loss if measure["metric"] == "loss" else measure["dev_score"], loss)


def train(
    network: Network,
    examples: Examples,
    dev: DevSplit | None,
    settings: NeuralProbe,
    *,
    weight_decay: float,
    on_epoch: OnEpoch | None = None,
) -> dict[str, Any]:
    """Train a network, by the parameters of a head; return a report, with the measure of the best epoch on dev."""
    lr, stops, epoch = float(settings.lr), settings.early_stopping, 0
    optimizer = torch.optim.AdamW(_parameter_groups(network, lr, weight_decay), lr=lr, fused=True)
    size = BatchSize(settings.batch_size, getattr(settings, "batch_tokens", settings.batch_size))
    rng = np.random.default_rng(settings.seed)
    best: dict[str, Any] = {"best_epoch": 0}
    best_weights: dict[str, Any] = {}
    while epoch < settings.max_epochs and not (stops and epoch - best["best_epoch"] >= settings.patience):
        epoch += 1
        loss = _run_epoch(network, examples, optimizer, size, rng)
        measure = {} if dev is None else dev.measure(network)
        for what, value in (("training loss", loss), ("loss on dev", measure.get("dev_loss"))):
            if value is not None and not math.isfinite(value):
                raise RunError(f"epoch {epoch}: the {what} is {value}; train with a lower lr than {lr:g}")
        if not stops or epoch == 1 or rank(measure) > rank(best):
            best = {"best_epoch": epoch, "train_loss": loss, **measure}
            if stops:
                best_weights = copy.deepcopy(network.state_dict())
        if on_epoch is not None:
            numbers = {"epoch": epoch, "max_epochs": settings.max_epochs, "train_loss": loss}
            on_epoch(numbers | {"best_epoch": best["best_epoch"], "weight_decay": weight_decay} | measure)
    if stops:
        network.load_state_dict(best_weights)
    return {"weight_decay": weight_decay, "n_epochs": epoch, **best}


def predict_scores(network: Network, data: Sequences) -> torch.Tensor:
    """Return the scores of the classes before the softmax, float32 (n_rows, n_classes), on the CPU."""
    scores = torch.zeros((data.vectors.shape[0], network.body.output.out_features))
    network.eval()
    with torch.inference_mode():
        for batch in batches(data, BatchSize.for_evaluation(data.dim)):
            scores[torch.from_numpy(batch.rows)] = network(batch.vectors.to(network.mean.device), batch.lengths).cpu()
    return scores


@contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators of the CPU and a device; restore those of the CPU and of CUDA afterwards."""
    is_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if is_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif device.type == "mps":
            torch.mps.manual_seed(seed)
        yield


def _run_epoch(
    network: Network, examples: Examples, optimizer: torch.optim.Optimizer, size: BatchSize, rng: np.random.Generator
) -> float:
    """Take a step for each batch; return the mean loss of a row."""
    network.train()
    device = network.mean.device
    weights = torch.from_numpy(examples.class_weights).float().to(device)
    losses, n_rows = [], 0
    for batch in batches(examples.data, size, rng, examples.taking_part):
        targets = torch.from_numpy(examples.targets[batch.rows]).to(device)
        scores = network(batch.vectors.to(device), batch.lengths)
        # torch's weighted mean would divide by the weights in the batch, which makes rare classes count less.
        loss = loss_of(examples.task, scores, targets, weights, reduction="sum") / len(targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), _MAX_GRADIENT_NORM)
        optimizer.step()
        losses.append(loss.detach() * len(targets))
        n_rows += len(targets)
    # They are added up here in float64, which not every device has.
    return float(sum(torch.stack(losses).tolist())) / n_rows


def _parameter_groups(network: Network, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    mix = [] if network.mix is None else list(network.mix.parameters())
    rest = list(network.body.parameters())
    groups = [
        {"params": [p for p in rest if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0},
        {"params": mix, "weight_decay": 0.0, "lr": lr * _MIX_LR_FACTOR},
    ]
    return [group for group in groups if group["params"]]
