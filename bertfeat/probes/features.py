"""Choice of the feature that a probe reads: a feature, a mix of layers, or all features for a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertfeat.choices import Combine, Level
from bertfeat.encoder.layers import feature_columns, parse_layers
from bertfeat.errors import ConfigError, UserError
from bertfeat.store.reader import Store

_MIX, _CONCAT = "mix_", "concat_"


@dataclass(frozen=True, slots=True)
class Choice:
    """A feature, and the number of its layers that a scalar mix weights; None without a mix."""

    feature: str
    mix: int | None = None

    @property
    def name(self) -> str:
        """The name of the feature, or of the mix: `mix_last4`, `mix_09_11`."""
        return self.feature if self.mix is None else _MIX + self.feature.removeprefix(_CONCAT)


def choose_feature(store: Store, level: Level, feature: str | int | None, mix: str | Sequence[int] | None) -> Choice:
    """Find the feature that is asked for.

    Args:
        store: The store.
        level: Its level.
        feature: Its name, or a layer's number; None for the only one that is stored, or `concat_last4`.
        mix: Layers to mix (`9..12`, or a list of numbers), instead of a feature.

    Raises:
        UserError: There is no such feature, or several could be meant.
    """
    if mix is not None:
        if feature is not None:
            raise UserError(f"feature {feature!r} and mix {mix!r} name two features; pass one of them")
        return _mix_of(store, level, mix)
    return Choice(store.choose_feature(level, feature))


def _mix_of(store: Store, level: Level, layers: str | Sequence[int]) -> Choice:
    """Return the concatenation of the layers of a scalar mix, the lowest first, and their number."""
    if not isinstance(layers, str):
        if not len(layers):
            raise UserError(f"mix {layers!r} names no layers; write them as '9..12' or [9, 10, 11, 12]")
        layers = ",".join(map(str, layers))
    try:
        numbers = parse_layers(layers, store.metadata["n_layers"], model=store.metadata["model"])
    except ConfigError as error:
        raise UserError(str(error).replace("`layers", "`mix")) from None
    return Choice(store.feature(level, _set_name(store, Combine.CONCAT, numbers)).name, len(numbers))


def _set_name(store: Store, combine: Combine, layers: tuple[int, ...]) -> str:
    """Return the name of a combination of layers, as an extraction names its column."""
    return feature_columns(layers, [combine], hidden_size=1, n_layers=store.metadata["n_layers"])[0].name


def features_to_sweep(store: Store, level: Level, *, with_mixes: bool) -> list[Choice]:
    """Return the layers and combinations that can be read from a store, and for neural heads mixes of layers.

    Layers come first, ascending; then the concatenation and mean of the last four layers and of all layers; then other
    stored features. Sums are taken only if they are stored: they differ from means by a factor.
    """
    n_layers = store.metadata["n_layers"]
    layers = [layer for layer in range(n_layers + 1) if _can_be_read(store, level, f"layer_{layer:02d}")]
    last4 = tuple(range(n_layers - 3, n_layers + 1)) if n_layers >= 4 else ()

    def combinations(*sets: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [wanted for wanted in dict.fromkeys(sets) if len(wanted) > 1 and set(wanted) <= set(layers)]

    choices = [Choice(f"layer_{layer:02d}") for layer in layers]
    for wanted in combinations(last4, tuple(layers)):
        choices += [Choice(_set_name(store, how, wanted)) for how in (Combine.CONCAT, Combine.MEAN)]
    # Stored features that are not among these: sums, other sets, the model's own pooled output.
    choices += [Choice(column.name) for column in store.features(level)]
    if with_mixes:
        for wanted in combinations(last4, tuple(layer for layer in layers if layer > 0)):
            choices.append(Choice(_set_name(store, Combine.CONCAT, wanted), len(wanted)))
    return list(dict.fromkeys(choices))


def named_choice(store: Store, level: Level, name: str | int) -> Choice:
    """Return a feature or a mix by its `Choice.name`.

    Raises:
        UserError: The feature is not stored and cannot be made.
    """
    if not isinstance(name, str) or not name.startswith(_MIX):
        return Choice(store.feature(level, name).name)
    found = store.feature(level, _CONCAT + name.removeprefix(_MIX))
    return Choice(found.name, len(found.layers))


def _can_be_read(store: Store, level: Level, name: str) -> bool:
    """Return whether a feature is stored or can be made."""
    store.schema(level)
    try:
        store.feature(level, name)
    except UserError:
        return False
    return True
