"""Vectors of texts in memory: `Encoder`, which is loaded once, and `embed`, its form of one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from bertfeat.choices import Combine, Level, Pooling, StoreDtype
from bertfeat.config import ExtractConfig
from bertfeat.durable.records import hash_of_json
from bertfeat.errors import ConfigError
from bertfeat.extraction.caching import cached_vectors
from bertfeat.extraction.documents import Text, documents_from
from bertfeat.extraction.flow import Flow
from bertfeat.extraction.mteb_encoder import MtebEncoder
from bertfeat.records import Float32Array
from bertfeat.settings import EncodeSettings
from bertfeat.store.parts import frame_of

if TYPE_CHECKING:
    import polars as pl


def embed(
    texts: str | Iterable[Text],
    model: str = "minilm",
    *,
    pooling: str = "mean",
    layers: str | int | Iterable[int] = -1,
    combine: str = "concat",
    normalize: bool = False,
    device: str = "auto",
    **settings: Unpack[EncodeSettings],
) -> Float32Array:
    """Load a model and return one vector per text, in memory.

    To encode more than once, keep an `Encoder`; for more than a few thousand texts, use `extract`.

    Args:
        texts: The texts, or lists of words, or pairs of texts; or one text. See `Encoder`.
        model: See `Encoder`, also for all that follows.
        pooling: How tokens become one vector.
        layers: The layer, or several.
        combine: How several layers become one vector.
        normalize: Divide each vector by its Euclidean length.
        device: `auto`, `cpu`, `cuda`, ...
        **settings: `max_length`, `include_special_tokens`, ...

    Returns:
        float32 (n_texts, dim), or (dim,) for one text that is not in a list. A text without tokens has no mean and no
        maximum: its vector is NaN.

    Raises:
        UserError: The model or a setting cannot be used, or an item of `texts` is not a text.

    Examples:
        >>> embed(["a river bank", "a savings bank"]).shape
        (2, 384)
    """
    named = {"model": model, "pooling": pooling, "layers": layers, "combine": combine, "device": device}
    flow = Flow.of(ExtractConfig.of(memory_config({**named, **settings}, (Level.SENTENCE,)), {}))
    documents = documents_from(texts)
    vectors = cached_vectors([flow.under(flow.config, documents)], flow.only_column, documents)
    vectors = normalized(vectors) if normalize else vectors
    return vectors[0] if isinstance(texts, str) else vectors


class Encoder:
    """A model that is loaded once and turns texts in memory into vectors; threads may share it.

    An item of `texts` is a text, a list of words (a document whose words are given), or a tuple of two texts (a pair,
    which the model sees together). The items of one call are of one kind. One string alone is one text, and gives one
    vector. Long texts are split into windows.

    Args:
        model: Installed model package, local folder, or hub id.
        pooling: How the tokens of a text become one vector: `model` (the model's own sentence embedding), `mean`,
            `max`, `cls`, `lasttoken`, `weightedmean` or `pooler`.
        layers: The layer, or several: `-1`, `"last4"`, `[9, 12]`. Blocks above the highest are not loaded.
        combine: How several layers become one vector: `concat`, `sum` or `mean`; `none` gives `tokens` and `words` a
            column per layer.
        normalize: Divide each vector of a text by its Euclidean length.
        device: `auto`, `cpu`, `cuda`, ...
        cache: A folder on a local disk where the vectors of texts are kept, so that a text is encoded once. It serves
            `encode`, `encode_query` and `encode_document`.
        cache_size: The largest size of the cache, in bytes or as `"10GB"`.
        **settings: `revision`, `word_pooling`, `include_special_tokens`, `prompt`, `prompt_name`,
            `max_length`, `stride`, `on_overlong`, `compute_dtype`, `max_batch_tokens`; they mean the same as for
            `extract`.

    Raises:
        UserError: The model or a setting cannot be used.

    Examples:
        >>> encoder = Encoder("minilm", normalize=True)
        >>> vectors = encoder.encode(["a river bank", "a savings bank"])
        >>> vectors.shape, float(vectors[0] @ vectors[1]) > 0.3
        ((2, 384), True)
        >>> encoder.words(["a river bank"])["word"].to_list()
        ['a', 'river', 'bank']
    """

    def __init__(
        self,
        model: str = "minilm",
        *,
        pooling: str = "mean",
        layers: str | int | Iterable[int] = -1,
        combine: str = "concat",
        normalize: bool = False,
        device: str = "auto",
        cache: str | Path | None = None,
        cache_size: int | str = 10_000_000_000,
        **settings: Unpack[EncodeSettings],
    ) -> None:
        named = {"model": model, "pooling": pooling, "layers": layers, "combine": combine, "device": device}
        kept = {"cache": cache, "cache_size": cache_size}
        self._flow = Flow.of(ExtractConfig.of(memory_config({**named, **kept, **settings}), {}))
        self._flow.network.load()
        self._normalize = normalize

    def encode(self, texts: str | Iterable[Text], *, prompt: str | None = None) -> Float32Array:
        """Return one vector per text: float32 (n_texts, dim), or (dim,) for one string; NaN for a text without tokens.

        `prompt` takes the place of the prompt of `Encoder`; an empty one stands for none.

        Raises:
            UserError: An item of `texts` is not a text, or `combine` gives several columns.
        """
        return self._encoded(texts, None if prompt is None else self._with_prompt(prompt))

    def encode_query(self, texts: str | Iterable[Text]) -> Float32Array:
        """Return one vector per query, after the model's own prompt for queries where it has one; see `encode`.

        Without one, the prompt that was passed to `Encoder` is used, and not the model's default prompt.
        """
        return self._encoded(texts, self._with_prompt(self._flow.network.checkpoint.prompts().query))

    def encode_document(self, texts: str | Iterable[Text]) -> Float32Array:
        """Return one vector per document, after the model's own prompt for documents; see `encode_query`."""
        return self._encoded(texts, self._with_prompt(self._flow.network.checkpoint.prompts().document))

    def tokens(self, texts: str | Iterable[Text]) -> pl.DataFrame:
        """Return one row per token, special tokens included, with its vectors.

        Returns:
            The columns of a store's token level: `doc_id` (the number of the text), `token_index`, `token`,
            `token_id`, `word_index`, `char_start`, `char_end`, `is_special`, `segment` (pairs), and the vectors as
            Arrays of float32, such as `layer_06`.

        Raises:
            UserError: An item of `texts` is not a text.
        """
        return self._frame(texts, Level.TOKEN)

    def words(self, texts: str | Iterable[Text]) -> pl.DataFrame:
        """Return one row per word with its vectors, which are null for a word that lost its tokens to truncation.

        Returns:
            The columns of a store's word level: `doc_id` (the number of the text), `word_index`, `word`,
            `char_start`, `char_end`, `n_tokens`, `segment` (pairs), and the vectors as Arrays of float32.

        Raises:
            UserError: An item of `texts` is not a text.
        """
        return self._frame(texts, Level.WORD)

    def for_mteb(self) -> MtebEncoder:
        """Return this encoder as `mteb.evaluate` takes it: with the model's own prompts for the tasks, and cosines.

        A text without tokens is zeros there. mteb keeps results by name and revision: the revision is a digest of the
        model and the settings.
        """
        checkpoint, flow, column = self._flow.network.checkpoint, self._flow, self._flow.only_column
        info, digest = checkpoint.info(), hash_of_json([flow.digest, self._normalize])
        # mteb wants the name of an owner.
        name = (
            info.name if info.name.count("/") == 1 and info.name[0] not in "./~" else f"bertfeat/{Path(info.name).name}"
        )
        meta = {"name": name, "revision": digest, "n_parameters": info.n_parameters, "embed_dim": column.dim}
        return MtebEncoder(self, checkpoint.prompts().texts, meta)

    def _encoded(self, texts: str | Iterable[Text], config: ExtractConfig | None = None) -> Float32Array:
        documents = documents_from(texts)
        flow = self._flow.under(config or self._config(Level.SENTENCE), documents)
        vectors = cached_vectors([flow], flow.only_column, documents)
        vectors = normalized(vectors) if self._normalize else vectors
        return vectors[0] if isinstance(texts, str) else vectors

    def _frame(self, texts: str | Iterable[Text], level: Level) -> pl.DataFrame:
        documents = documents_from(texts)
        flow = self._flow.under(self._config(level), documents)
        return frame_of(flow.run(documents)[level], flow.schemas[level], StoreDtype.FLOAT32)

    def _config(self, level: Level) -> ExtractConfig:
        config = self._flow.config
        # The model's own sentence embedding also decides the windows of tokens and words.
        levels = {level, Level.SENTENCE} if config.pooling is Pooling.MODEL else {level}
        return dataclasses.replace(config, levels=tuple(levels)).effective()

    def _with_prompt(self, prompt: str | None) -> ExtractConfig:
        config = self._config(Level.SENTENCE)
        if prompt is None and (config.prompt is not None or config.prompt_name is not None):
            return config
        return dataclasses.replace(config, prompt=prompt or "", prompt_name=None)


def memory_config(settings: Mapping[str, Any], levels: Sequence[Level] = (Level.WORD, Level.SENTENCE)) -> ExtractConfig:
    """Return the settings of texts in memory, whose vectors are float32; the token level has no settings of its own."""
    known = ["model", "pooling", "layers", "combine", "device", "cache", "cache_size", *EncodeSettings.__annotations__]
    for name in settings:
        if name not in known:
            raise ConfigError(f"no setting {name!r} for texts in memory; settings are {', '.join(known)}")
    own = {"levels": levels, "store_dtype": StoreDtype.FLOAT32}
    config = ExtractConfig.from_dict({"layers": "-1", "combine": "concat", **settings, **own})
    is_usual = config.has_one_vector and config.combine == (Combine.CONCAT,)
    # The column of a single layer is then `layer_06`, not `concat_06`.
    is_single = config.layers.removeprefix("-").isdecimal()
    return dataclasses.replace(config, combine=()) if is_usual or is_single else config


def normalized(vectors: Float32Array) -> Float32Array:
    """Divide each vector by its Euclidean length, in place; return the same array (n_rows, dim)."""
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return vectors
