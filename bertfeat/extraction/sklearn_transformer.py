"""`BertFeatures`: a scikit-learn transformer that turns a column of texts into vectors."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bertfeat.choices import Combine, Level, Pooling
from bertfeat.config import ExtractConfig
from bertfeat.errors import ConfigError, require

# Before torch is loaded.
try:
    from sklearn.base import BaseEstimator, TransformerMixin
except ImportError:
    require("sklearn", what="BertFeatures needs")
    raise

from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.extraction.caching import cached_vectors
from bertfeat.extraction.documents import documents_of
from bertfeat.extraction.flow import Flow
from bertfeat.extraction.resolution import find_prompt, own_embedding
from bertfeat.extraction.text_encoder import memory_config, normalized
from bertfeat.records import Document, FeatureColumn, Float32Array
from bertfeat.store.vectors import add_layers

# Poolings of hidden states, which cost little beside the network. The model's pooler and its own sentence embedding
# need other weights or other windows, and are encoded apart.
_OF_STATES = tuple(pooling for pooling in Pooling if pooling not in (Pooling.POOLER, Pooling.MODEL))


class BertFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn transformer of texts: one contextual vector per text.

    It learns nothing: `fit` checks the settings and the texts. It is pickled without weights; the two models used last
    stay loaded in the process. A text without tokens, such as an empty one, gives NaN, unless `pooling` is `cls`,
    `lasttoken` or `model`, or special tokens are included. As in other estimators of scikit-learn, parameters that
    have no effect beside others are accepted, such as `layers` with the poolings `pooler` and `model`.

    Args:
        model: Installed model package, local folder, or hub id.
        layers: The layer, or several: `-1`, `"last4"`, `[9, 12]`.
        pooling: How the tokens of a text become one vector; see `extract`.
        combine: How several layers become one vector: `concat`, `sum` or `mean`.
        normalize: Divide each vector by its Euclidean length.
        revision: Branch, tag or commit of a hub model.
        include_special_tokens: Let special tokens count in the mean and the maximum.
        prompt: A text put before each text.
        prompt_name: The name of one of the model's prompts.
        max_length: The longest window in tokens; None is the model's limit, 8,192 for most decoders.
        stride: The overlap of windows in tokens.
        on_overlong: `window`, `truncate` or `error`.
        device: `auto`, `cpu`, `cuda`, ...
        compute_dtype: `auto`, `float32`, `bfloat16` or `float16`.
        max_batch_tokens: The tokens of one forward pass.
        cache: A folder on a local disk where vectors are kept, so that cross-validation and a search over layers and
            poolings run the network once per text. A new text is encoded whole and stored with all layers and all
            poolings of hidden states: `4 * hidden_size * (n_layers + 1)` bytes for each of them.
        cache_size: The largest size of the cache, in bytes or as `"10GB"`; the oldest vectors make room.

    Examples:
        >>> BertFeatures("minilm", layers=[5, 6]).fit_transform(["a river bank", "a savings bank"]).shape
        (2, 768)
    """

    def __init__(
        self,
        model: str = "minilm",
        *,
        layers: str | int | Sequence[int] = -1,
        pooling: str = "mean",
        combine: str = "concat",
        normalize: bool = False,
        revision: str | None = None,
        include_special_tokens: bool = False,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_length: int | None = None,
        stride: int | None = None,
        on_overlong: str = "window",
        device: str = "auto",
        compute_dtype: str = "auto",
        max_batch_tokens: int | None = None,
        cache: str | Path | None = None,
        cache_size: int | str = 10_000_000_000,
    ) -> None:
        self.model = model
        self.layers = layers
        self.pooling = pooling
        self.combine = combine
        self.normalize = normalize
        self.revision = revision
        self.include_special_tokens = include_special_tokens
        self.prompt = prompt
        self.prompt_name = prompt_name
        self.max_length = max_length
        self.stride = stride
        self.on_overlong = on_overlong
        self.device = device
        self.compute_dtype = compute_dtype
        self.max_batch_tokens = max_batch_tokens
        self.cache = cache
        self.cache_size = cache_size

    def fit(self, X: Any, y: object = None) -> Self:  # noqa: N803, ARG002
        """Check the settings, against the model too, and the texts.

        Args:
            X: A list, an array or a Series of texts, or a frame or array with one column of texts.
            y: Ignored.

        Raises:
            UserError: A setting cannot be used, or `X` is something else.
        """
        self._column()
        _documents(X)
        return self

    def transform(self, X: Any) -> Float32Array:  # noqa: N803
        """Return one vector per text: float32 (n_texts, dim), or a frame if `set_output` asks for one.

        Args:
            X: A list, an array or a Series of texts, or a frame or array with one column of texts.

        Raises:
            UserError: A setting cannot be used, or `X` is something else.
        """
        documents = _documents(X)
        config = self._config()
        flow = self._flow(config)
        vectors = flow.vectors(documents) if self.cache is None else self._cached(flow, config, documents)
        return normalized(vectors) if self.normalize else vectors

    def get_feature_names_out(self, input_features: object = None) -> npt.NDArray[np.object_]:  # noqa: ARG002
        """Return the names of the columns: that of the store's column, and a number, as in `layer_06_0`."""
        column = self._column()
        return np.array([f"{column.name}_{number}" for number in range(column.dim)], dtype=object)

    def _config(self) -> ExtractConfig:
        settings = {name: value for name, value in self.get_params().items() if name != "normalize"}
        # A search sets parameters one by one: some combinations ignore one of them, without a warning.
        return memory_config(settings, (Level.SENTENCE,)).effective()

    def _cached(self, flow: Flow, config: ExtractConfig, documents: Sequence[Document]) -> Float32Array:
        """Return vectors by way of the cache: one run of the network gives all layers, and all poolings of states."""
        flows = [flow.under(dataclasses.replace(flow.config, pooling=config.pooling).effective())]
        for pooling in _OF_STATES if config.pooling in _OF_STATES else ():
            # A model may lack the token of `cls`.
            with contextlib.suppress(ConfigError):
                other = flow.under(dataclasses.replace(flow.config, pooling=pooling).effective())
                flows += [other] if pooling is not config.pooling else []
        wanted = flow.under(config).only_column
        layers = [
            cached_vectors(flows, one, documents)
            for one in flows[0].resolved.columns[Level.SENTENCE]
            if {*one.layers} <= {*wanted.layers}
        ]
        if wanted.combine in (Combine.NONE, Combine.CONCAT):
            return np.concatenate(layers, axis=1)
        return add_layers(layers, wanted.combine, np.empty_like(layers[0]))

    def _flow(self, config: ExtractConfig) -> Flow:
        if self.cache is not None:
            # One network for all layers, and for all poolings of states.
            pooling = Pooling.MEAN if config.pooling in _OF_STATES else config.pooling
            config = dataclasses.replace(config, layers="all", combine=(Combine.NONE,), pooling=pooling).effective()
        flow = _loaded_flow(config)
        if not _is_current(flow):
            _loaded_flow.cache_clear()
            flow = _loaded_flow(config)
        return flow

    def _column(self) -> FeatureColumn:
        config = self._config()
        return self._flow(config).under(config).only_column

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        tags.requires_fit = False
        return tags


@functools.lru_cache(maxsize=2)
def _loaded_flow(config: ExtractConfig) -> Flow:
    return Flow.of(config)


def _is_current(flow: Flow) -> bool:
    """Return whether the files of the model are those that were opened; a commit of the hub never changes."""
    opened = flow.network.checkpoint
    if opened.revision is not None:
        return True
    now = open_checkpoint(flow.config.model)
    found = now.info(), now.config_sha256, own_embedding(now, flow.config), find_prompt(now, flow.config)
    return found == (opened.info(), opened.config_sha256, flow.resolved.sentence, flow.resolved.prompt)


def _documents(X: Any) -> list[Document]:  # noqa: N803
    """Make documents of a column of texts."""
    values = np.asarray(X, dtype=object)
    if values.ndim == 2 and values.shape[1] != 1:
        names = f" ({', '.join(map(str, X.columns))})" if hasattr(X, "columns") else ""
        raise ConfigError(f"X has {values.shape[1]} columns{names:.200}; pass the one column of texts")
    if values.ndim not in (1, 2):
        raise ConfigError(
            f"X is of type {type(X).__name__}; pass a list, an array or a Series of texts, or a frame with one column"
        )
    return documents_of(values.ravel().tolist(), what="X")
