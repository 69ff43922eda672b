"""Description of an encoder family: what must be known to run it; `bertfeat.encoder.families` is the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Family:
    """What must be known of one `model_type` to load a part of it and to run it right.

    Attributes:
        model_type: The value in config.json.
        title: The name for people.
        model_class: The class of transformers that holds the encoder.
        path: How packs run: `packed`, `equal-length` or `lookup`, see `bertfeat.encoder.families`.
        layers_key: Keys of config.json for the number of blocks; the first one that is set counts.
        hidden_key: The same for the width.
        positions_key: The same for the number of positions.
        positions: `absolute`: as many tokens as positions; `after-padding`: positions start at padding_idx + 1, so
            as many fewer; `unlimited`: relative positions, where the tokenizer's limit counts, else that of the
            config, else `window`.
        window: Tokens of a window unless the user says otherwise, where the model takes more; None: what it takes.
        inner: Attribute of the encoder inside an encoder-decoder.
        final_norm: Attribute of the norm that transformers applies to the last hidden state only. A model that is cut
            below the last block leaves it out, as `output_hidden_states` of the whole model does.
        per_layer: Config lists with one entry per block, cut along with the blocks.
        overrides: Config values that are set on loading.
        fault: Returns why transformers cannot run a config, or None where it can.
        unused: Parts of the model that are never run: their weights are not needed, and are dropped.
        in_float32: Last names of parts that are computed in float32, because torch has no half precision for them.
        whole: All blocks are loaded and run, because the number of blocks changes what each computes.
        type_ids: The model takes `token_type_ids` (where its config has two types or more, or names no number).
        pooler: Whether the model has a pooler, and whether it can be built without.
        pooler_activation: Attribute of the activation, where it is not part of the pooler.
        slow_tokenizer: Its own tokenizer gives no character offsets: the folder needs a tokenizer.json.
        picks_states: `output_hidden_states` takes a list of layers, so that the others are freed on the way.
        attention: Which tokens a token sees and how, for people: `full` unless another word is there.
        note: A line for `bertfeat models`.
    """

    model_type: str
    title: str
    model_class: str
    _: KW_ONLY
    path: Literal["packed", "equal-length", "lookup"]
    layers_key: tuple[str, ...] = ("num_hidden_layers",)
    hidden_key: tuple[str, ...] = ("hidden_size",)
    positions_key: tuple[str, ...] = ("max_position_embeddings",)
    positions: Literal["absolute", "after-padding", "unlimited"] = "absolute"
    window: int | None = None
    inner: str | None = None
    final_norm: str | None = None
    per_layer: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    fault: Callable[[Mapping[str, Any]], str | None] | None = None
    unused: tuple[str, ...] = ()
    in_float32: tuple[str, ...] = ()
    whole: bool = False
    type_ids: bool = False
    pooler: Literal["none", "optional", "always"] = "none"
    pooler_activation: str | None = None
    slow_tokenizer: bool = False
    picks_states: bool = True
    attention: str = "full"
    note: str = ""

    def usual_length(self, max_length: int) -> int:
        """Return the tokens of a window unless the user says otherwise, for a model that takes `max_length`."""
        return min(max_length, self.window or max_length)
