"""Queries to tune an index by, which come from elsewhere than its vectors: texts, or vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from bertfeat.ann.description import BuildSettings
from bertfeat.ann.exact import checked_queries, sample_positions
from bertfeat.durable.files import os_errors
from bertfeat.errors import UserError
from bertfeat.levels import WORDS
from bertfeat.records import Float32Array
from bertfeat.search.origin import TunedBy
from bertfeat.search.query_files import QueryFile
from bertfeat.search.query_vectors import QueryEncoder, gives_words, parse_marked
from bertfeat.storage import as_path
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store

TuneQueries = str | Path | Sequence[str] | npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class GivenQueries:
    """Queries that are checked; `vectors` encodes them and returns float32 (n_queries, dim), in random order."""

    about: TunedBy
    vectors: Callable[[], Float32Array]


@os_errors(UserError)
def find_queries(
    queries: TuneQueries | None,
    store: Store,
    spec: FeatureSpec,
    prompt: str | None,
    settings: BuildSettings,
    text_column: str | None,
) -> GivenQueries | None:
    """Return the queries of a file, texts or an array; random ones if there are more than `n_queries`."""
    if text_column is not None and not isinstance(queries, str | Path):
        what = "none are given" if queries is None else "these are not a file"
        raise UserError(f"`text_column` {text_column!r} is of `tune_queries`, and {what}; leave it out")
    if queries is None:
        return None
    listed: Iterable[tuple[str, str]] = ()
    if isinstance(queries, np.ndarray):
        if queries.ndim != 2 or queries.dtype.kind != "f" or queries.shape[1] != spec.dim:
            raise UserError(
                f"`tune_queries` is {queries.dtype} of shape {queries.shape}; give floats (n_queries, {spec.dim})"
            )
        name, place, n_queries = "an array", "`tune_queries`", len(queries)
    else:
        spec.require_known_model()
        name, place, n_queries, listed = _read_texts(queries, text_column)
    if n_queries < 2:
        raise UserError(f"{place}: too few queries ({n_queries}); give 2 or more, one half of them to tune by")
    chosen = sample_positions(n_queries, settings.n_queries, settings.seed)
    # A file may alternate, for example between two languages; both halves get some of each.
    order = np.random.default_rng(settings.seed).permutation(len(chosen))
    if isinstance(queries, np.ndarray):
        vectors = checked_queries(queries[chosen], spec.dim)
        return GivenQueries(TunedBy(name, _digest(vectors.tobytes()), len(vectors)), lambda: vectors[order])
    wanted = set(chosen.tolist())
    texts, names = zip(*(pair for number, pair in enumerate(listed) if number in wanted), strict=True)
    if spec.level in WORDS:
        for text, query in zip(texts, names, strict=True):
            parse_marked(text, query)

    def encode() -> Float32Array:
        words = gives_words(store)
        encoder = QueryEncoder(spec=spec, given_words=words, name=f"store {store.path.name}", prompt=prompt)
        return checked_queries(encoder.encode(texts, names).vectors, spec.dim)[order]

    lengths = ",".join(str(len(text)) for text in texts)
    content = f"{lengths};{''.join(texts)}".encode("utf-8", "surrogatepass")
    return GivenQueries(TunedBy(name, _digest(content), len(texts)), encode)


def _read_texts(
    queries: str | Path | Sequence[str], text_column: str | None
) -> tuple[str, str, int, Iterable[tuple[str, str]]]:
    """Return the name of what holds texts, its place in messages, their number, and each with its name."""
    if isinstance(queries, str | Path):
        file = QueryFile(queries, text_column="text" if text_column is None else text_column)
        named = ((query.text, query.name) for batch in file.batches() for query in batch)
        return as_path(queries).name, str(queries), file.n_queries, named
    if not all(isinstance(text, str) for text in queries):
        raise UserError("`tune_queries` holds something else than texts; pass a list of texts, an array, or a file")
    return "texts", "`tune_queries`", len(queries), ((text, f"query {n}") for n, text in enumerate(queries))


def _digest(content: bytes) -> str:
    return xxhash.xxh3_128(content).hexdigest()
