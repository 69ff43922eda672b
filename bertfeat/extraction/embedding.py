"""Embeddings of a few texts in memory, made by the same flow as a store."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bertfeat.config import ExtractConfig, Level, StoreDtype
from bertfeat.corpus.columns import CorpusSchema
from bertfeat.corpus.content import clean
from bertfeat.devices import resolve_device
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import ConfigError
from bertfeat.extraction.job import authors_advice, find_prompt, load_flow
from bertfeat.extraction.plan import level_schema, resolve
from bertfeat.records import Document, FeatureColumn, LevelTable
from bertfeat.text.tokenizer import Tokenizer


def embed(
    texts: Iterable[str],
    model: str = "minilm",
    *,
    pooling: str = "mean",
    layers: str | int | Iterable[int] = -1,
    combine: str = "concat",
    normalize: bool = False,
    device: str = "auto",
) -> npt.NDArray[np.float32]:
    """Return one vector per text, in memory; for more than a few thousand texts, use `extract`.

    Args:
        texts: The texts; a long text is split into windows, nothing is cut off.
        model: Installed model package, local folder, or hub id.
        pooling: `mean`, `max`, `cls` or `pooler`.
        layers: The layer, or several: `-1`, `"last4"`, `[9, 12]`.
        combine: How several layers become one vector: `concat`, `sum` or `mean`.
        normalize: Divide each vector by its Euclidean length.
        device: `auto`, `cpu`, `cuda`, ...

    Returns:
        float32 (n_texts, dim). The row of a text without tokens is NaN: it has no mean and no maximum.

    Raises:
        UserError: The model or a setting cannot be used, or an item of `texts` is not a string.

    Examples:
        >>> embed(["a river bank", "a savings bank"]).shape
        (2, 384)
    """
    documents = documents_of(texts)
    chosen = {"model": model, "layers": layers, "combine": combine, "pooling": pooling, "device": device}
    config = ExtractConfig.from_dict({**chosen, "levels": Level.SENTENCE, "store_dtype": StoreDtype.FLOAT32})
    encoder = TextEncoder(config)
    columns = encoder.features(Level.SENTENCE)
    if len(columns) > 1:
        raise ConfigError(f"combine {list(config.combine)} gives {len(columns)} columns; choose concat, sum or mean")
    table = encoder.encode(documents)[Level.SENTENCE]
    vectors: npt.NDArray[np.float32] = table.vectors[columns[0].name].astype(np.float32, copy=False)
    if table.valid is not None:
        vectors[~table.valid] = np.nan
    if normalize:
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return vectors


class TextEncoder:
    """A model and its settings, loaded once, that turns texts into the rows of a store.

    Args:
        config: The settings; settings of the corpus have no effect.
        given_words: Whether the documents are lists of words.

    Attributes:
        info: The model, with the digests of its weights and tokenizer.

    Raises:
        UserError: The model or a setting cannot be used.
    """

    def __init__(self, config: ExtractConfig, *, given_words: bool = False) -> None:
        checkpoint = open_checkpoint(config.model, config.revision)
        self.info = checkpoint.info()
        prompt = find_prompt(checkpoint, config)
        tokenizer = Tokenizer.load(checkpoint.folder, given_words=given_words, n_ids=checkpoint.n_ids, prompt=prompt)
        # Each text is a separate document.
        config = dataclasses.replace(config, document_context=False)
        resolved = resolve(config, self.info, tokenizer, authors_advice(checkpoint, config))
        schemas = {level: level_schema(level, CorpusSchema(), columns) for level, columns in resolved.columns.items()}
        device = resolve_device(config.device)[0]
        self._flow = load_flow(config, schemas, resolved, checkpoint, tokenizer, device)

    def features(self, level: Level) -> tuple[FeatureColumn, ...]:
        """Return the vector columns of a level."""
        return self._flow.schemas[level].features

    def encode(self, documents: Sequence[Document]) -> Mapping[Level, LevelTable]:
        """Return the rows of each level in the order of the documents, with vectors of the stored type."""
        return self._flow.run(documents)


def documents_of(texts: Iterable[str], *, what: str = "texts") -> list[Document]:
    """Make documents from texts, numbered from 0; invalid characters such as surrogates are replaced as in files.

    Raises:
        ConfigError: `texts` is a single string, or an item is not a string.
    """
    if isinstance(texts, str):
        raise ConfigError(f"{what} takes a list of texts, not one string; put the text into a list")
    texts = list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(f"{what}[{number}] is {text!r:.60}, which is not text")
    return [Document(index=i, doc_id=i, text=clean(text)) for i, text in enumerate(texts)]
