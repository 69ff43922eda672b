"""Vectors of texts through a cache: on a miss, one run of the network gives all layers and poolings of a text."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bertfeat.choices import Combine, Level, Pooling
from bertfeat.config import ExtractConfig
from bertfeat.encoder.transfers import Fetches
from bertfeat.errors import ConfigError
from bertfeat.extraction.flow import Flow
from bertfeat.extraction.leveltables import align, level_table, make_buffers
from bertfeat.extraction.textencoder import TextEncoder, vectors_of
from bertfeat.extraction.vectorcache import VectorCache
from bertfeat.progress import unreported
from bertfeat.records import Document, FeatureColumn, Float32Array, LevelTable
from bertfeat.store.vectors import add_layers

# Poolings of hidden states, which cost little beside the network. The model's pooler and its own sentence embedding
# need other weights or other windows, and are encoded apart.
_OF_STATES = tuple(pooling for pooling in Pooling if pooling not in (Pooling.POOLER, Pooling.MODEL))
# Texts that are encoded and then committed together.
_BATCH_TEXTS = 256
_KEY_BYTES = 16


def with_all_layers(config: ExtractConfig) -> ExtractConfig:
    """Return the settings that load a network for a cache; they do not depend on layers, nor on poolings of states."""
    pooling = Pooling.MEAN if config.pooling in _OF_STATES else config.pooling
    return config.adapted(layers="all", combine=(Combine.NONE,), pooling=pooling)


class CachedEncoder:
    """An encoder of texts whose vectors, one per text, pooling and layer, are kept in a folder.

    The network runs once per text for all layers and all poolings of hidden states, also when several processes or
    threads ask for the same texts at once: one encodes while the others wait. It is loaded on the first miss.

    Args:
        encoder: The encoder, whose settings are `with_all_layers`.
        pooling: The pooling.
        folder: The folder of the cache, which is made if it is missing.
        max_bytes: The largest size of the cache.
    """

    def __init__(self, encoder: TextEncoder, pooling: Pooling, folder: str | Path, max_bytes: int) -> None:
        self._encoder = encoder
        self._pooling = pooling
        self._folder = folder
        self._max_bytes = max_bytes

    def encode(self, documents: Sequence[Document], column: FeatureColumn) -> Float32Array:
        """Return a column of documents that are texts: float32 (n_documents, dim), NaN for one without tokens.

        Args:
            documents: The texts.
            column: The column, of a layer or of several.

        Raises:
            UserError: The folder has a cache of another version, or a damaged one.
            RunError: The system refused, or memory does not suffice.
        """
        with contextlib.closing(VectorCache(self._folder, self._max_bytes)) as cache:
            wanted = [one for one in self._columns(self._pooling) if set(one.layers) <= set(column.layers)]
            layers = [self._layer(documents, one, cache) for one in wanted]
        if column.combine in (Combine.NONE, Combine.CONCAT):
            return np.concatenate(layers, axis=1)
        return add_layers(layers, column.combine, np.empty_like(layers[0]))

    def _layer(self, documents: Sequence[Document], column: FeatureColumn, cache: VectorCache) -> Float32Array:
        keys = self._keys(self._pooling, column, documents)
        texts = dict(zip(keys, documents, strict=True))
        found = _vectors(cache, list(texts), column.dim)
        missing = [key for key in texts if key not in found]
        for start in range(0, len(missing), _BATCH_TEXTS):
            some = missing[start : start + _BATCH_TEXTS]
            with cache.alone():
                # Another process may have encoded some of them by now.
                there = _vectors(cache, some, column.dim)
                batch = [texts[key] for key in some if key not in there]
                found |= there
                if batch:
                    vectors = self._encoded(batch)
                    cache.put((key, vector.astype("<f4").tobytes()) for key, vector in vectors.items())
                    found |= {key: vectors[key] for key in some if key not in there}
        rows = np.empty((len(documents), column.dim), np.float32)
        for row, key in enumerate(keys):
            rows[row] = found[key]
        return rows

    def _config(self, pooling: Pooling) -> ExtractConfig:
        return self._encoder.config.adapted(pooling=pooling)

    def _columns(self, pooling: Pooling) -> tuple[FeatureColumn, ...]:
        return self._encoder.resolved(self._config(pooling)).columns[Level.SENTENCE]

    def _keys(self, pooling: Pooling, column: FeatureColumn, documents: Sequence[Document]) -> list[bytes]:
        """Return the key of each document's vector: a digest of the text, and of all else that decides the vector."""
        start = hashlib.sha256(f"{self._encoder.digest(self._config(pooling))} {column.name} ".encode())
        keys = []
        for document in documents:
            digest = start.copy()
            digest.update(document.text.encode())
            keys.append(digest.digest()[:_KEY_BYTES])
        return keys

    def _encoded(self, documents: Sequence[Document]) -> Mapping[bytes, Float32Array]:
        poolings = self._poolings()
        flows = [self._encoder.flow(documents, self._config(pooling)) for pooling in poolings]
        vectors: dict[bytes, Float32Array] = {}
        for pooling, table in zip(poolings, _pooled(flows, documents), strict=True):
            for column in self._columns(pooling):
                keys = self._keys(pooling, column, documents)
                vectors.update(zip(keys, vectors_of(table, column.name), strict=True))
        return vectors

    def _poolings(self) -> list[Pooling]:
        """Return the poolings that one run of the network gives; `cls` only if the model has such a token."""
        if self._pooling not in _OF_STATES:
            return [self._pooling]
        found: list[Pooling] = []
        for pooling in _OF_STATES:
            with contextlib.suppress(ConfigError):
                self._columns(pooling)
                found.append(pooling)
        return found


def _vectors(cache: VectorCache, keys: Sequence[bytes], dim: int) -> dict[bytes, Float32Array]:
    """Return the vectors that are there, (dim,) each, by key."""
    return {key: np.frombuffer(value, "<f4") for key, value in cache.get(dict.fromkeys(keys, 4 * dim))}


def _pooled(flows: Sequence[Flow], documents: Sequence[Document]) -> list[LevelTable]:
    """Run the network once and pool its states as each flow does; the flows differ in their poolings only."""
    first = flows[0]
    prepared, fetches = first.prepare(documents), Fetches(first.encoder.device)
    tokens, windows = prepared.text.tokens, prepared.text.windows
    texts = [align(documents, tokens, windows, flow.tokenizer, flow.config, flow.resolved.sentence) for flow in flows]
    buffers = [
        make_buffers(text, flow.schemas, flow.config, flow.resolved, flow.finish, flow.encoder.device)[Level.SENTENCE]
        for flow, text in zip(flows, texts, strict=True)
    ]
    first.fill(buffers, prepared, unreported, prepared.packs)
    tables = [
        level_table(Level.SENTENCE, text, buffer, flow.schemas[Level.SENTENCE], flow.tokenizer, fetches)
        for flow, text, buffer in zip(flows, texts, buffers, strict=True)
    ]
    fetches.wait()
    return tables
