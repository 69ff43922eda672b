"""Embeddings of a few texts in memory, by the same flow that fills a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from bertfeat.config import ExtractConfig, Level, StoreDtype
from bertfeat.corpus.rows import clean
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.devices import resolve_compute_dtype, resolve_device
from bertfeat.encoder.loading import load_encoder
from bertfeat.errors import ConfigError
from bertfeat.planning import resolve
from bertfeat.pooling import LevelBuffer, PoolerBuffer
from bertfeat.records import Document, LevelSchema
from bertfeat.tables import align, make_buffers
from bertfeat.text.packing import pack_windows
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.windows import cut_windows


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
    """Return one vector a text, in memory; for more than a few thousand texts, `extract` to a store.

    Args:
        texts: The texts; long ones are windowed, nothing is cut off.
        model: Installed model package, local folder, or hub id.
        pooling: `mean`, `max`, `cls` or `pooler`.
        layers: The layer, or several: `-1`, `"last4"`, `[9, 12]`.
        combine: How several layers become one vector: `concat`, `sum` or `mean`.
        normalize: Divide each vector by its Euclidean length.
        device: `auto`, `cpu`, `cuda`, ...

    Returns:
        float32 (n_texts, dim). The row of a text without tokens is NaN, for it has no mean and no maximum.

    Raises:
        UserError: The model or a setting cannot be used, or `texts` does not hold strings alone.

    Example:
        >>> embed(["a river bank", "a savings bank"]).shape
        (2, 384)
    """
    documents = _documents(texts)
    config = ExtractConfig(
        model=model,
        levels=(Level.SENTENCE,),
        layers=layers,  # type: ignore[arg-type]  # the config turns numbers into text
        combine=combine,  # type: ignore[arg-type]
        pooling=pooling,  # type: ignore[arg-type]
        store_dtype=StoreDtype.FLOAT32,
        device=device,
    )
    buffer = _encode(documents, config)
    vectors: npt.NDArray[np.float32] = next(iter(buffer.vectors.values())).astype(np.float32, copy=False)
    vectors[~buffer.valid] = np.nan
    if normalize:
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return vectors


def _documents(texts: Iterable[str]) -> list[Document]:
    if isinstance(texts, str):
        raise ConfigError("embed() takes a list of texts; put the text into a list")
    texts = list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(f"texts[{number}] is {text!r:.60}, which is no text")
    return [Document(index=i, doc_id=i, text=clean(text)) for i, text in enumerate(texts)]


def _encode(documents: Sequence[Document], config: ExtractConfig) -> LevelBuffer | PoolerBuffer:
    checkpoint = open_checkpoint(config.model, config.revision)
    tokenizer = Tokenizer.load(checkpoint.folder)
    resolved = resolve(config, checkpoint.info(), tokenizer)
    columns = resolved.columns[Level.SENTENCE]
    if len(columns) > 1:
        raise ConfigError(f"combine {list(config.combine)} gives {len(columns)} columns; choose concat, sum or mean")
    device = resolve_device(config.device)[0]
    encoder = load_encoder(
        checkpoint,
        columns[0].layers,
        device=device,
        compute_dtype=resolve_compute_dtype(config.compute_dtype, device),
        with_pooler=config.pooling == "pooler",
    )
    tokens = tokenizer.encode(documents)
    windows = cut_windows(tokens, tokenizer, resolved.limits, documents)
    text = align(documents, tokens, windows, tokenizer, config)
    buffer = make_buffers(text, {Level.SENTENCE: LevelSchema(Level.SENTENCE, (), columns)}, config)[Level.SENTENCE]
    for pack in pack_windows(windows, resolved.max_batch_tokens):
        buffer.add(pack, encoder.encode(pack))
    return buffer
