"""Which feature of a level a probe reads: the one named or meant, mixes of layers, all of them for a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertfeat.config import Combine, Level
from bertfeat.encoder.layers import feature_columns, parse_layers
from bertfeat.errors import ConfigError, UserError
from bertfeat.records import FeatureColumn
from bertfeat.store.reader import Store

_DEFAULT = "concat_last4"
_MIX, _CONCAT = "mix_", "concat_"


@dataclass(frozen=True, slots=True)
class Choice:
    """A feature, and how many layers a scalar mix weighs in it; None without a mix."""

    feature: str
    mix: int | None = None

    @property
    def name(self) -> str:
        """What it is called: the feature, or of a mix `mix_last4`, `mix_09_11`."""
        return self.feature if self.mix is None else _MIX + self.feature.removeprefix(_CONCAT)


def choose_feature(store: Store, level: Level, feature: str | None, mix: str | Sequence[int] | None) -> Choice:
    """Find the feature that is asked for.

    Args:
        store: The store.
        level: Its level.
        feature: Its name; None for the only one that is stored, or `concat_last4`.
        mix: Layers to mix (`9..12`, or a list of numbers), in place of a feature.

    Raises:
        UserError: There is no such feature, or it does not follow which one is meant.
    """
    if mix is not None:
        if feature is not None:
            raise UserError(f"feature {feature!r} and mix {mix!r} name two features; pass one of them")
        return mix_of(store, level, mix)
    if feature is not None:
        return Choice(store.feature(level, feature).name)
    stored = [column.name for column in store.features(level)]
    if len(stored) == 1:
        return Choice(stored[0])
    if _can_be_read(store, level, _DEFAULT) is None:
        raise UserError(f"{store.path}: several features at level {level}: {', '.join(stored)}; name one: --feature")
    return Choice(_DEFAULT)


def mix_of(store: Store, level: Level, layers: str | Sequence[int]) -> Choice:
    """Return the concatenation of the layers of a scalar mix, lowest first, and their number.

    Raises:
        UserError: The layers are malformed, or are not stored.

    Examples:
        >>> mix_of(store, Level.WORD, "-2..-1")  # doctest: +SKIP
        Choice(feature='concat_05_06', mix=2)
    """
    if not isinstance(layers, str):
        if not len(layers):
            raise UserError(f"mix {layers!r} is no layers; write them as '9..12' or [9, 10, 11, 12]")
        layers = ",".join(map(str, layers))
    try:
        numbers = parse_layers(layers, store.metadata["n_layers"], model=store.metadata["model"])
    except ConfigError as error:
        raise UserError(str(error).replace("--layers", "--mix")) from None
    return Choice(store.feature(level, set_name(store, Combine.CONCAT, numbers)).name, len(numbers))


def set_name(store: Store, combine: Combine, layers: tuple[int, ...]) -> str:
    """Return the name of a combination of layers, as an extraction would name its column."""
    n_layers = store.metadata["n_layers"]
    return feature_columns(layers, [combine], hidden_size=1, n_layers=n_layers)[0].name


def features_to_sweep(store: Store, level: Level, *, with_mixes: bool) -> list[Choice]:
    """Return each layer, each combination, and for neural heads mixes of layers, that can be read from a store.

    Layers come first, ascending; then the concatenation and mean of the last four and of all that are stored; sums are
    only taken where they are stored, since a mean differs from them by a factor alone.
    """
    layers = _readable_layers(store, level)
    choices = [Choice(name) for name in (f"layer_{layer:02d}" for layer in layers)]
    n_layers = store.metadata["n_layers"]
    last4 = tuple(range(n_layers - 3, n_layers + 1)) if n_layers >= 4 else ()
    sets = [
        wanted for wanted in dict.fromkeys([last4, tuple(layers)]) if len(wanted) > 1 and set(wanted) <= set(layers)
    ]
    for wanted in sets:
        choices += [Choice(set_name(store, how, wanted)) for how in (Combine.CONCAT, Combine.MEAN)]
    # What is stored and not among these: sums, other sets, the model's own pooled output.
    choices += [Choice(column.name) for column in store.features(level)]
    if with_mixes:
        blocks = tuple(layer for layer in layers if layer > 0)
        mixes = [wanted for wanted in dict.fromkeys([last4, blocks]) if len(wanted) > 1 and set(wanted) <= set(layers)]
        choices += [Choice(set_name(store, Combine.CONCAT, wanted), len(wanted)) for wanted in mixes]
    return list(dict.fromkeys(choices))


def named_choice(store: Store, level: Level, name: str) -> Choice:
    """Return a feature, or a mix, by the name that `Choice.name` gives it.

    Raises:
        UserError: It is not stored and cannot be made.
    """
    if not name.startswith(_MIX):
        return Choice(store.feature(level, name).name)
    found = store.feature(level, _CONCAT + name.removeprefix(_MIX))
    return Choice(found.name, len(found.layers))


def _readable_layers(store: Store, level: Level) -> list[int]:
    names = [f"layer_{layer:02d}" for layer in range(store.metadata["n_layers"] + 1)]
    return [layer for layer, name in enumerate(names) if _can_be_read(store, level, name) is not None]


def _can_be_read(store: Store, level: Level, name: str) -> FeatureColumn | None:
    """Describe a feature; None where it is not stored and cannot be made."""
    store.schema(level)
    try:
        return store.feature(level, name)
    except UserError:
        return None
