"""Types of the settings that public functions take by name, so that editors complete and check them.

`ExtractConfig` checks the values; a test compares these names and types with theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict


class EncodeSettings(TypedDict, total=False):
    """The fields of `ExtractConfig` that `Encoder` and `embed` take beside those in their signatures."""

    revision: str | None
    word_pooling: str
    unknown_words: str
    include_special_tokens: bool
    prompt: str | None
    prompt_name: str | None
    max_length: int | None
    stride: int | None
    on_overlong: str
    compute_dtype: str
    max_batch_tokens: int | None


class ExtractSettings(EncodeSettings, total=False):
    """The fields of `ExtractConfig`, as `extract` takes them."""

    format: str
    text_column: str
    text_pair_column: str | None
    text_pairs: bool
    id_column: str | None
    keep_columns: str | Sequence[str]
    is_split_into_words: bool
    label_column: str | None
    document_column: str | None
    no_header: bool
    delimiter: str | None
    limit: int | None
    bad_rows: str
    model: str
    levels: str | Sequence[str]
    layers: str | int | Iterable[int]
    rows: str | None
    positions: str | Sequence[int]
    combine: str | Sequence[str]
    spans: str | None
    span_pooling: str
    span_pair: str
    chunk: str | None
    chunk_context: str
    pooling: str
    document_context: bool
    store_dtype: str
    vector_encoding: str
    shard_bytes: int
    device: str
    workers: int | None
    shards: str | None
    runner: str
    ray_address: str | None
    cache: str | Path | None
    cache_size: int
