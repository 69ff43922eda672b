"""Choice of the feature that a probe reads: a feature, a mix of layers, or all features for a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from bertfeat.choices import Combine, Level
from bertfeat.config import names_in
from bertfeat.encoder.layers import feature_columns, parse_layers
from bertfeat.errors import UserError
from bertfeat.heads.base import Probe
from bertfeat.heads.registry import heads_with
from bertfeat.store.reader import Store

_MIX, _CONCAT = "mix_", "concat_"


@dataclass(frozen=True, slots=True)
class FeatureChoice:
    """A feature, and the number of its layers that a scalar mix weights; None without a mix."""

    feature: str
    mix: int | None = None

    @property
    def name(self) -> str:
        """The name of the feature, or of the mix: `mix_last4`, `mix_09_11`."""
        return self.feature if self.mix is None else _MIX + self.feature.removeprefix(_CONCAT)


def choose_feature(
    store: Store, level: Level, feature: str | int | None, mix: str | Sequence[int] | None
) -> FeatureChoice:
    """Return the feature that is asked for by its name, the number of a layer, or the layers of a mix."""
    if mix is None:
        return FeatureChoice(store.choose_feature(level, feature))
    if not len(mix):
        raise UserError(f"mix {mix!r} names no layers; write them as '9..12' or [9, 10, 11, 12]")
    layers = mix if isinstance(mix, str) else ",".join(map(str, mix))
    facts = store.metadata
    numbers = parse_layers(layers, facts["n_layers"], model=facts["model"], setting="mix")
    return FeatureChoice(store.feature(level, _set_name(store, Combine.CONCAT, numbers)).name, len(numbers))


def choose_features(
    store: Store, level: Level, head: type[Probe], features: str | Sequence[str | int] | None
) -> list[FeatureChoice]:
    """Return the features of a sweep, as a list or with commas between them; None for all that a head can use."""
    if features is None:
        return _all_features(store, level, with_mixes=hasattr(head, "mix"))
    if isinstance(features, str):
        names = names_in(features)
        features = [int(name) if name.removeprefix("-").isdecimal() else name for name in names]
    if not features:
        raise UserError("features is empty; name one or more, or leave it out for all")
    choices = []
    for name in features:
        if isinstance(name, str) and name.startswith(_MIX):
            if not hasattr(head, "mix"):
                raise UserError(f"feature {name}: head {head.head} has no scalar mix; it goes with {heads_with('mix')}")
            found = store.feature(level, _CONCAT + name.removeprefix(_MIX))
            choices.append(FeatureChoice(found.name, len(found.layers)))
        else:
            choices.append(FeatureChoice(store.feature(level, name).name))
    return list(dict.fromkeys(choices))


def _all_features(store: Store, level: Level, *, with_mixes: bool) -> list[FeatureChoice]:
    """Return the layers, ascending; the concatenation and mean of the last four and of all; the others; and mixes."""
    n_layers = store.metadata["n_layers"]
    layers, choices = [], []
    for layer in range(n_layers + 1):
        with suppress(UserError):
            choices.append(FeatureChoice(store.feature(level, layer).name))
            layers.append(layer)
    last4 = tuple(range(n_layers - 3, n_layers + 1)) if n_layers >= 4 else ()

    def combinations(*sets: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [wanted for wanted in dict.fromkeys(sets) if len(wanted) > 1 and set(wanted) <= set(layers)]

    for wanted in combinations(last4, tuple(layers)):
        choices += [FeatureChoice(_set_name(store, how, wanted)) for how in (Combine.CONCAT, Combine.MEAN)]
    # Stored features that are not among these: sums (means times a factor), other sets, the model's own pooled output.
    choices += [FeatureChoice(column.name) for column in store.features(level)]
    if with_mixes:
        for wanted in combinations(last4, tuple(layer for layer in layers if layer > 0)):
            choices.append(FeatureChoice(_set_name(store, Combine.CONCAT, wanted), len(wanted)))
    return list(dict.fromkeys(choices))


def _set_name(store: Store, combine: Combine, layers: tuple[int, ...]) -> str:
    """Return the name of a combination of layers, as an extraction names its column."""
    return feature_columns(layers, [combine], hidden_size=1, n_layers=store.metadata["n_layers"])[0].name
