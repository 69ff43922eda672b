"""The settings of a fit and of a sweep: one frozen object, made from flags or Python."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from bertfeat.choices import Task, one_of
from bertfeat.config import names_in
from bertfeat.errors import BertfeatWarning, ConfigError
from bertfeat.heads.registry import HeadSettings
from bertfeat.progress import Progress
from bertfeat.settings import ExtractSettings
from bertfeat.store.reader import Store

#: A file (.csv, .tsv, .jsonl, .parquet) or frame with labels.
LabelTable = str | Path | pl.DataFrame

_HOLD_OUT = 0.2


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Every setting of `fit_probe` and `sweep_probes`.

    Attributes:
        level: token, word, span or sentence; None for the only one that is stored.
        feature: The feature of a fit, or the number of a layer (-1 is the last one); None for the only one that is
            stored, or `concat_last4`.
        mix: Layers that a neural head weights in a scalar mix (`9..12`, or a list), instead of a feature.
        features: The features of a sweep: layers by number, features, and mixes such as `mix_last4`, as a list or with
            commas. None is each layer, the concatenation and mean of the last four layers and of all, other stored
            features, and for neural heads a scalar mix of the last four layers and of all layers but the embeddings.
        task: What the label is: `classify` (one class per row), `regress` (a number, or a list of them) or `multilabel`
            (a list of labels). `auto` tells by the column: decimals are numbers, lists are several labels.
        head: For classes logreg, svm, ridge, centroid, knn, mlp, and at word and token level the taggers linear and
            bilstm; for numbers ridge, knn, mlp, mean; for several labels logreg, svm, mlp. None is logreg, or ridge for
            numbers.
        params: The parameters of the head; a call takes them by name too.
        dev: A store to choose settings and seeds by, and to score a sweep on, extracted like the first one.
        hold_out: The share of the documents that a sweep without `dev` scores on.
        seeds: The number of seeds of a random head. The best fit on dev is kept; more than one seed needs a dev split.
        seed: The first seed, and the seed of the documents that are held out.
        labels: A file or frame with the labels, instead of a column of the store. Its columns are `doc_id`, at word and
            token level `word_index` or `token_index`, and the label's.
        dev_labels: The same for dev.
        max_memory: Bytes that vectors may take; if they do not fit, they are streamed. None is half of the free memory.
        limit: The number of documents to learn from, the first ones of the store; None is all.
        limits: The numbers of documents of a learning curve, as a list or with commas: `100,300,all`. A sweep fits each
            feature on that many documents, drawn by `seed` from those it learns from: more documents include those of
            fewer, and all fits are scored on the same rows.
        control: Whether a sweep also scores the control task: a random label for each word type.
        baselines: What a sweep is compared with: `majority`, `type`, `random-weights=FOLDER` and, beside dev,
            `random-weights-dev=FOLDER`, as a list or with commas. The folders are stores of the same texts, extracted
            with a model of random weights.
        mdl: Whether a sweep also computes the codelength of the labels of train, by the online code.

    Raises:
        ConfigError: A number is out of its range, two settings name the features, or labels of dev have no dev store.

    Examples:
        >>> ProbeConfig(head="ridge", params={"alpha": 10.0}).seeds
        1
    """

    level: str | None = None
    feature: str | int | None = None
    mix: str | Sequence[int] | None = None
    features: str | Sequence[str | int] | None = None
    task: str = "auto"
    head: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    dev: str | Path | Store | None = None
    hold_out: float = _HOLD_OUT
    seeds: int = 1
    seed: int = 0
    labels: LabelTable | None = None
    dev_labels: LabelTable | None = None
    max_memory: int | None = None
    limit: int | None = None
    limits: str | Sequence[int | str] | None = None
    control: bool = False
    baselines: str | Sequence[str] | None = None
    mdl: bool = False

    def __post_init__(self) -> None:
        for name in ("seeds", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"`{name}={value}` is below 1")
        # Reading them checks them.
        _ = self.sizes
        if not 0 < self.hold_out < 1:
            raise ConfigError(f"`hold_out={self.hold_out}` is not between 0 and 1")
        if self.task != "auto":
            one_of(Task, "task", self.task)
        if self.feature is not None and self.mix is not None:
            raise ConfigError(f"feature {self.feature!r} and mix {self.mix!r} name two features; pass one of them")
        for name in ("seed", "mix", "task"):
            if name in self.params:
                raise ConfigError(f"params holds {name!r}, which is a setting of its own; pass `{name}`")
        if self.dev is not None and self.hold_out != _HOLD_OUT:
            warnings.warn(BertfeatWarning("`hold_out` has no effect with `dev`"), stacklevel=3)
        if self.dev is None and self.dev_labels is not None:
            raise ConfigError("dev labels without a dev store; pass `dev` too")

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """The numbers in `limits`, None for `all`; empty without limits."""
        names = names_in(self.limits if isinstance(self.limits, str) else map(str, self.limits or ()))
        if names and self.limit is not None:
            raise ConfigError(f"`limit={self.limit}` beside `limits`; pass one of them")
        for name in names:
            if name != "all" and (not name.isdecimal() or int(name) < 1):
                raise ConfigError(f"`limits` holds {name!r}; write whole numbers above 0, or all")
        return tuple(None if name == "all" else int(name) for name in names)

    @classmethod
    def of(cls, config: ProbeConfig | None, settings: Mapping[str, Any], unused: Mapping[str, str]) -> ProbeConfig:
        """Return the settings of a call, by object or by name; `unused` has those not taken, and what to do instead."""
        if config is not None and settings:
            raise ConfigError(
                f"setting {next(iter(settings))!r} beside config; put it into config, or pass all by name"
            )
        known = {one.name: one.default for one in dataclasses.fields(cls)}
        if config is None:
            own = {name: value for name, value in settings.items() if name in known}
            params = {name: value for name, value in settings.items() if name not in known}
            config = cls(**{**own, "params": {**own.get("params", {}), **params}})
        for name, instead in unused.items():
            if getattr(config, name) != known[name]:
                raise ConfigError(f"`{name}` has no effect here; {instead}")
        return config


class ProbeSettings(HeadSettings, total=False):
    """The fields of `ProbeConfig` and the parameters of all heads, as `fit_probe` and `sweep_probes` take them."""

    level: str | None
    feature: str | int | None
    mix: str | Sequence[int] | None
    features: str | Sequence[str | int] | None
    task: str
    head: str | None
    params: Mapping[str, Any]
    dev: str | Path | Store | None
    hold_out: float
    seeds: int
    seed: int
    labels: LabelTable | None
    dev_labels: LabelTable | None
    max_memory: int | None
    limit: int | None
    limits: str | Sequence[int | str] | None
    control: bool
    baselines: str | Sequence[str] | None
    mdl: bool


class PredictSettings(ExtractSettings, total=False):
    """The settings of `FittedProbe.predict`, and those of the extraction of a corpus."""

    columns: str | Sequence[str]
    errors: bool
    label: str | None
    labels: LabelTable | None
    overwrite: bool
    progress: bool | Progress | None
