"""Encoder of documents in memory: the rows that a store would hold, made by the same flow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from threading import RLock
from typing import Any, NamedTuple

import numpy as np

from bertfeat.choices import Combine, Level, StoreDtype
from bertfeat.config import ExtractConfig
from bertfeat.corpus.columns import CorpusSchema
from bertfeat.corpus.content import clean
from bertfeat.devices import resolve_device
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.sentencemodel import Prompts
from bertfeat.errors import ConfigError
from bertfeat.extraction.flow import Flow
from bertfeat.extraction.flowloading import load_flow
from bertfeat.extraction.job import authors_advice, find_prompt
from bertfeat.extraction.plan import level_schema, vector_digest
from bertfeat.extraction.resolution import Resolved, resolve
from bertfeat.extraction.staticmodels import check_static, open_tokenizer
from bertfeat.records import Document, FeatureColumn, Float32Array, LevelSchema, LevelTable
from bertfeat.settings import EncodeSettings
from bertfeat.text.tokenizer import Tokenizer

# A text, a list of words, or a pair of texts.
Text = str | list[str] | tuple[str, str]


class TextEncoder:
    """A model and its settings that turns documents into the rows of a store; threads may share it.

    The settings are checked on construction. The network is loaded once, by `load` or on first use. Methods that take a
    `config` use it in the place of the settings; it may ask for nothing that the network was not loaded for.

    Args:
        config: The settings. Of those of the corpus, only `is_split_into_words` has an effect: it is the kind of
            documents that the encoder is made ready for; those of another kind are encoded as well.

    Attributes:
        config: The settings; each document is alone.
        info: The model, with the digests of its weights and tokenizer.

    Raises:
        UserError: The model or a setting cannot be used.
    """

    def __init__(self, config: ExtractConfig) -> None:
        self.config = dataclasses.replace(config, document_context=False).effective()
        self._checkpoint = open_checkpoint(config.model, config.revision)
        self.info = self._checkpoint.info()
        self._lock = RLock()
        self._tokenizers: dict[bool, Tokenizer] = {}
        self._known: dict[ExtractConfig, _Settings] = {}
        self._digests: dict[ExtractConfig, str] = {}
        self._loaded: Flow | None = None
        self._settings(self.config)

    @property
    def sentence_sha256(self) -> str | None:
        """The digest of the model's own sentence embedding if the settings ask for it, else None."""
        sentence = self.resolved().sentence
        return sentence.sha256 if sentence else None

    def prompts(self) -> Prompts:
        """Read the model's prompts."""
        return self._checkpoint.prompts()

    def resolved(self, config: ExtractConfig | None = None) -> Resolved:
        """Return the settings with the model's defaults filled in."""
        return self._settings(config or self.config).resolved

    def is_current(self) -> bool:
        """Return whether the files of the model are those that were opened; a commit of the hub never changes.

        Raises:
            CheckpointError: The model is no longer there, or its files cannot be used.
        """
        if self.info.revision is not None:
            return True
        now, opened = open_checkpoint(self.config.model), self._checkpoint
        if (now.info(), now.config_sha256) != (opened.info(), opened.config_sha256):
            return False
        advice, known = authors_advice(now, self.config), self.resolved()
        return (advice.used, find_prompt(now, self.config)) == (known.sentence, known.prompt)

    def digest(self, config: ExtractConfig) -> str:
        """Return a digest (hex) of all that decides a vector, but for the document: model, settings and versions."""
        if config not in self._digests:
            self._digests[config] = vector_digest(config, self.resolved(config))
        return self._digests[config]

    def encode(self, documents: Sequence[Document]) -> Mapping[Level, LevelTable]:
        """Return the rows of each level in the order of the documents, with vectors of the stored type.

        Args:
            documents: All of one kind: texts, pairs, or given words.
        """
        return self.flow(documents, self.config).run(documents)

    def flow(self, documents: Sequence[Document], config: ExtractConfig) -> Flow:
        """Return the flow that encodes documents of their kind; all flows share one network."""
        if documents:
            words, pairs = documents[0].words is not None, documents[0].text_pair is not None
            config = dataclasses.replace(config, is_split_into_words=words, text_pairs=pairs)
        tokenizer, resolved, schemas = self._settings(config)
        loaded = self.load()
        return dataclasses.replace(loaded, config=config, schemas=schemas, resolved=resolved, tokenizer=tokenizer)

    def load(self) -> Flow:
        """Load the network, without blocks above the highest layer of any level, and return its flow."""
        with self._lock:
            if self._loaded is None:
                tokenizer, resolved, schemas = self._settings(self.config)
                device = resolve_device(self.config.device)[0]
                self._loaded = load_flow(self.config, schemas, resolved, self._checkpoint, tokenizer, device)
            return self._loaded

    def _settings(self, config: ExtractConfig) -> _Settings:
        with self._lock:
            if config not in self._known:
                checkpoint, words = self._checkpoint, config.is_split_into_words
                # The encoder is made ready for every level, whether it will be asked for or not.
                check_static(config, checkpoint, tokens=config != self.config)
                if words not in self._tokenizers:
                    self._tokenizers[words] = open_tokenizer(checkpoint, given_words=words)
                tokenizer = self._tokenizers[words].with_prompt(find_prompt(checkpoint, config))
                advice = authors_advice(checkpoint, config)
                resolved = resolve(config, checkpoint, tokenizer, advice)
                corpus = CorpusSchema(has_pairs=config.text_pairs)
                schemas = {level: level_schema(level, corpus, found) for level, found in resolved.columns.items()}
                self._known[config] = _Settings(tokenizer, resolved, schemas)
            return self._known[config]


class _Settings(NamedTuple):
    """Settings with a model's defaults, the tokenizer that they need, and the columns of each level."""

    tokenizer: Tokenizer
    resolved: Resolved
    schemas: Mapping[Level, LevelSchema]


def only_column(resolved: Resolved) -> FeatureColumn:
    """Return the vector column of the sentence level.

    Raises:
        ConfigError: There are several.
    """
    columns = resolved.columns[Level.SENTENCE]
    if len(columns) > 1:
        raise ConfigError(f"combine none gives {len(columns)} columns; choose concat, sum or mean")
    return columns[0]


def memory_config(settings: Mapping[str, Any], levels: Sequence[Level] = tuple(Level)) -> ExtractConfig:
    """Return the settings of texts in memory, whose vectors are float32.

    Raises:
        ConfigError: A setting does not apply to texts in memory, or has a wrong value.
    """
    known = ["model", "pooling", "layers", "combine", "device", *EncodeSettings.__annotations__]
    for name in settings:
        if name not in known:
            raise ConfigError(f"no setting {name!r} for texts in memory; settings are {', '.join(known)}")
    own = {"levels": levels, "store_dtype": StoreDtype.FLOAT32}
    config = ExtractConfig.from_dict({"layers": "-1", "combine": "concat", **settings, **own})
    is_usual = config.has_one_vector and config.combine == (Combine.CONCAT,)
    # The column of a single layer is then `layer_06`, not `concat_06`.
    is_single = config.layers.removeprefix("-").isdecimal()
    return dataclasses.replace(config, combine=()) if is_usual or is_single else config


def sentence_vectors(encoder: TextEncoder, config: ExtractConfig, documents: Sequence[Document]) -> Float32Array:
    """Return one vector per document: float32 (n_documents, dim), NaN for a document without tokens.

    Raises:
        ConfigError: The sentence level has several columns of vectors.
    """
    column = only_column(encoder.resolved(config))
    return vectors_of(encoder.flow(documents, config).run(documents)[Level.SENTENCE], column.name)


def vectors_of(table: LevelTable, column: str) -> Float32Array:
    """Return the vectors of a column, (n_rows, dim) as float32, with NaN in rows that have none."""
    vectors: Float32Array = table.vectors[column].astype(np.float32, copy=False)
    if table.valid is not None:
        vectors[~table.valid] = np.nan
    return vectors


def normalized(vectors: Float32Array) -> Float32Array:
    """Divide each vector by its Euclidean length, in place; return the same array (n_rows, dim)."""
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return vectors


def documents_of(texts: Iterable[str], *, what: str = "texts") -> list[Document]:
    """Make documents from texts, numbered from 0; invalid characters such as surrogates are replaced as in files.

    Raises:
        ConfigError: `texts` is a single string, or an item is not a string.
    """
    found = _listed(texts, what)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise ConfigError(f"{what}[{number}] must be a string, not {text!r:.60}")
    return [_document(number, text) for number, text in enumerate(found)]


def documents_from(texts: str | Iterable[Text]) -> list[Document]:
    """Make documents, numbered from 0, from a text, or from texts, lists of words or pairs, all of one kind.

    Raises:
        ConfigError: `texts` is a table, or an item is none of these or of another kind than the first.
    """
    listed = [texts] if isinstance(texts, str) else _listed(texts, "texts")
    documents = [_document(number, item) for number, item in enumerate(listed)]
    kinds = [(document.words is not None, document.text_pair is not None) for document in documents]
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ConfigError(
                f"texts[{number}] is not of the kind of texts[0]; encode texts, lists of words and pairs apart"
            )
    return documents


def _listed(texts: Iterable[object], what: str) -> list[object]:
    if isinstance(texts, str):
        raise ConfigError(f"{what} takes a list of texts, not one string; put the text into a list")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        # The items of a table are the names of its columns.
        raise ConfigError(f"{what} is a {type(texts).__name__}; pass its column of texts")
    return list(texts)


def _document(number: int, item: object) -> Document:
    parts = [item] if isinstance(item, str) else list(item) if isinstance(item, list | tuple) else [None]
    is_pair = isinstance(item, tuple)
    if not all(isinstance(part, str) for part in parts) or (is_pair and len(parts) != 2):
        raise ConfigError(
            f"texts[{number}] must be a string, a list of words, or a pair of texts as a tuple, not {item!r:.60}"
        )
    cleaned = [clean(str(part)) for part in parts]
    if isinstance(item, list):
        return Document(number, number, " ".join(cleaned), words=tuple(cleaned))
    return Document(number, number, cleaned[0], text_pair=cleaned[1] if is_pair else None)
