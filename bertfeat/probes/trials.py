"""Fits of one head, seed by seed: the request, the best fit, and a record of all fits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, Probe, encode_labels, require_same_kind
from bertfeat.heads.registry import head_class, heads_with_mix, make_head
from bertfeat.heads.scores import METRICS
from bertfeat.heads.sequences import Sequences
from bertfeat.probes.features import Choice
from bertfeat.probes.labels import LabelTable
from bertfeat.probes.learningrows import Dataset, LabelledRows, read_vectors
from bertfeat.probes.scoring import ProbeScore, score_labelled
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store
from bertfeat.vectors.array import Vectors

#: Takes a line of progress, also after each epoch of a neural head.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """One fit: its seed (None for a head without randomness), its scores on dev, and the report of the head."""

    seed: int | None
    score: ProbeScore | None
    report: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as JSON values."""
        scores = self.score.scores if self.score else None
        entity_f1 = {} if scores is None or scores.entities is None else {"entity_f1": scores.entities.f1}
        named = {} if scores is None else {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1, **entity_f1}
        return {"seed": self.seed, "dev": named or None, "fit_report": dict(self.report)}


@dataclass(frozen=True, slots=True)
class FitRequest:
    """A head with parameters to fit on a level of a store, with a number of seeds from the first `seed` on.

    `max_memory` is the number of bytes that vectors may take.
    """

    store: Store
    dev: Store | None
    level: Level
    head: str
    params: Mapping[str, Any]
    seeds: int
    seed: int
    max_memory: int

    def check(self, *, mix: str | Sequence[int] | None, dev_labels: LabelTable | None) -> None:
        """Check, before anything is read, the head with its level, mix and parameters, and the labels of dev.

        Args:
            mix: Layers to mix.
            dev_labels: The labels of the dev store.

        Raises:
            UserError: The head does not exist or cannot do this, or there are labels of dev without a dev store.
        """
        kind = head_class(self.head)
        if self.seeds < 1:
            raise UserError(f"seeds {self.seeds} is below 1")
        if kind.is_tagger and self.level is Level.SENTENCE:
            raise UserError(
                f"head {self.head} tags the words or tokens of a document; pass `level='word'` or `level='token'`"
            )
        if mix is not None and not kind.has_mix:
            raise UserError(f"head {self.head} has no scalar mix; `mix` goes with {heads_with_mix()}")
        make_head(self.head, **self.params)
        if self.dev is None and dev_labels is not None:
            raise UserError("dev labels without a dev store; pass `dev` too")

    def spec(self, choice: Choice) -> FeatureSpec:
        """Return a feature, which dev must have too.

        Raises:
            UserError: Dev has another feature.
        """
        spec = FeatureSpec.of(self.store, self.level, choice.feature)
        if self.dev is not None:
            spec.find_in(self.dev, mine=f"store {self.store.path.name}")
        return spec

    def classes(self, train: LabelledRows, dev: LabelledRows | None) -> Labels:
        """Return the classes of train.

        Raises:
            UserError: There are fewer than two classes, or as many as rows; dev has no rows with both a label and a
                vector; or only one of the two has text as labels.
        """
        classes, codes = encode_labels(train.labels[train.has_vector], what=train.source)
        if len(classes) == len(codes):
            raise UserError(f"{train.source} has a different value in each row; a classifier needs classes that repeat")
        if dev is not None:
            if not dev.has_vector.any():
                without = f"{dev.n_without_label} without a label, {len(dev.rows)} without a vector"
                raise UserError(
                    f"{(self.dev or self.store).path}: the dev split is empty: it has {dev.n_total} rows at level "
                    f"{self.level}, {without}; pass one with labelled rows, or none"
                )
            require_same_kind(dev.labels, dev.source, classes, "train")
        return classes

    def read(self, feature: str, train: LabelledRows, dev: LabelledRows | None) -> tuple[Dataset, Dataset | None]:
        """Read the vectors of train and dev; without a dev store, dev is a part of the store."""
        data = read_vectors(self.store, self.level, feature, train, max_memory=self.max_memory)
        if dev is None:
            return data, None
        # Vectors of train stay in memory; a stream works on less than half of it.
        rest = self.max_memory // 2 if data.is_streamed else self.max_memory - data.n_bytes
        return data, read_vectors(self.dev or self.store, self.level, feature, dev, max_memory=rest)

    def fit(
        self, choice: Choice, train: Dataset, dev: Dataset | None, say: Say, *, bootstrap: bool = False
    ) -> tuple[Probe, list[Trial]]:
        """Fit the head with each seed; return the best probe on dev (the first without dev), and all fits.

        A head without randomness is fitted once. With `bootstrap`, the scores of the first fit have intervals.
        """
        numbers: list[int | None] = [None]
        if head_class(self.head).is_random:
            numbers = list(range(self.seed, self.seed + self.seeds))
        best: tuple[Probe, ProbeScore | None] | None = None
        trials: list[Trial] = []
        for number in numbers:
            count = "" if number is None else f", seed {number} ({len(trials) + 1} of {len(numbers)})"
            title = f"fitting {self.head}{count}"
            say(title)
            extra = {name: value for name, value in (("seed", number), ("mix", choice.mix)) if value is not None}
            probe = _fit(make_head(self.head, **self.params, **extra), train, dev, title, say)
            score = None
            if dev is not None:
                score = score_labelled(probe, dev.X, dev.labelled, self.level, bootstrap=bootstrap and not trials)
            trials.append(Trial(number, score, probe.fit_report()))
            if best is None or (score is not None and self._value(score) > self._value(best[1])):
                best = (probe, score)
        assert best is not None
        return best[0], trials

    def _value(self, score: ProbeScore | None) -> float:
        assert score is not None
        return score.scores.value(chosen_metric(score, self.params))


def chosen_metric(score: ProbeScore, params: Mapping[str, Any]) -> str:
    """Return the score that compares fits: the head's own metric if it is one of them, else the main score."""
    metric = params.get("metric")
    return metric if metric in METRICS and (metric != "entity_f1" or score.scores.entities) else score.metric


def _fit(probe: Probe, train: Dataset, dev: Dataset | None, title: str, say: Say) -> Probe:
    settings: dict[str, Any] = {"dev": None if dev is None else (_vectors(probe, dev), dev.labels)}
    if "on_epoch" in inspect.signature(probe.fit).parameters:
        settings["on_epoch"] = lambda report: say(_epoch_line(title, report))
    probe.fit(_vectors(probe, train), train.labels, **settings)
    return probe


def _vectors(probe: Probe, data: Dataset) -> Vectors | Sequences:
    return data.sequences if probe.is_tagger else data.X


def _epoch_line(title: str, report: Mapping[str, Any]) -> str:
    line = f"{title}: epoch {report['epoch']} of up to {report['max_epochs']}, loss {report['train_loss']:.4f}"
    return line + (f", {report['metric']} {report['dev_score']:.4f}" if "metric" in report else "")
