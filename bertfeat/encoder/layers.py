"""Parser of layer specifications, and the vector columns of the layers.

Layer 0 is the output of the embedding layer, layer n that of the last block; negative numbers count from the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bertfeat.choices import Combine
from bertfeat.config import layer_pieces
from bertfeat.errors import ConfigError
from bertfeat.records import FeatureColumn


def parse_layers(spec: str, n_layers: int, *, model: str = "the model", setting: str = "layers") -> tuple[int, ...]:
    """Return the absolute layers that `spec` names, ascending, each once.

    Args:
        spec: `all`, `last4`, numbers and ranges (`9..12`, both ends included), separated by commas.
        n_layers: Blocks of the model; its layers are 0 to `n_layers`.
        model: The model's name, for messages.
        setting: The name of the setting, for messages.

    Raises:
        ConfigError: A piece is malformed or out of range.

    Examples:
        >>> parse_layers("0,-2..-1", 6), parse_layers("last4", 6)
        ((0, 5, 6), (3, 4, 5, 6))
    """
    layers: set[int] = set()
    for piece in layer_pieces(spec, setting):
        layers.update(_named_layers(piece, n_layers, model, setting))
    return tuple(sorted(layers))


def _named_layers(piece: re.Match[str], n_layers: int, model: str, setting: str) -> range:
    if piece[0] == "all":
        return range(n_layers + 1)
    if piece[0] == "last4":
        if n_layers < 4:
            raise ConfigError(f"`{setting}='last4'`: {model} has {n_layers} blocks only; pass `{setting}='all'`")
        return range(n_layers - 3, n_layers + 1)
    first = _absolute(int(piece[1]), n_layers, model, setting)
    last = first if piece[2] is None else _absolute(int(piece[2]), n_layers, model, setting)
    if last < first:
        raise ConfigError(
            f"`{setting}='{piece[0]}'`: layer {first} is higher than layer {last}; write the lower one first"
        )
    return range(first, last + 1)


def _absolute(layer: int, n_layers: int, model: str, setting: str) -> int:
    if not -n_layers - 1 <= layer <= n_layers:
        raise ConfigError(
            f"`{setting}`: layer {layer} is out of range; {model} has layers 0 (embeddings) to {n_layers}, "
            f"or {-n_layers - 1} to -1"
        )
    return layer % (n_layers + 1)


def feature_columns(
    layers: tuple[int, ...], combine: Iterable[Combine], *, hidden_size: int, n_layers: int
) -> tuple[FeatureColumn, ...]:
    """Return the vector columns of a layer set: one per layer for `none`, then concat, sum and mean of the set.

    The column of a set is named `concat_last4` for the last four blocks, else by its absolute layers in two digits:
    `concat_09_11`. In `concat` the lowest layer comes first. A set of one layer has one column only.

    Args:
        layers: Absolute layers, ascending.
        combine: How they become columns; the order of the columns does not depend on its order.
        hidden_size: Width of one layer.
        n_layers: Blocks of the model.

    Examples:
        >>> [column.name for column in feature_columns((3, 5), ["concat", "none"], hidden_size=4, n_layers=6)]
        ['layer_03', 'layer_05', 'concat_03_05']
    """
    wanted = {Combine(how) for how in combine}
    columns = []
    if Combine.NONE in wanted:
        columns += [FeatureColumn(f"layer_{layer:02d}", (layer,), str(Combine.NONE), hidden_size) for layer in layers]
    is_last4 = n_layers >= 4 and layers == tuple(range(n_layers - 3, n_layers + 1))
    name = "last4" if is_last4 else "_".join(f"{layer:02d}" for layer in layers)
    combined = () if columns and len(layers) == 1 else (Combine.CONCAT, Combine.SUM, Combine.MEAN)
    for how in combined:
        if how in wanted:
            dim = hidden_size * len(layers) if how is Combine.CONCAT else hidden_size
            columns.append(FeatureColumn(f"{how}_{name}", layers, str(how), dim))
    return tuple(columns)
