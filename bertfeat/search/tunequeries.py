"""Queries to tune an index by, which come from elsewhere than its vectors: texts, or vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from bertfeat.ann.description import QUERIES, BuildSettings
from bertfeat.ann.exact import checked_queries, sample_positions
from bertfeat.ann.indexfolder import read_queries, write_arrays
from bertfeat.choices import Level
from bertfeat.durable.files import os_errors
from bertfeat.errors import UserError
from bertfeat.progress import Progress
from bertfeat.records import Float32Array, IntArray
from bertfeat.search.origin import TunedBy
from bertfeat.search.queryfiles import QueryFile
from bertfeat.search.queryvectors import QueryEncoder, gives_words
from bertfeat.search.wordqueries import parse_marked
from bertfeat.storage import as_path
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store

TuneQueries = str | Path | Sequence[str] | npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class GivenQueries:
    """Queries that were found and checked as far as that is quick: `vectors` encodes them, float32 (n_queries, dim)."""

    about: TunedBy
    vectors: Callable[[], Float32Array]
    settings: BuildSettings

    def kept(self, folder: Path, progress: Progress) -> Float32Array:
        """Return the vectors, in random order, from the folder of a build, where the first run writes them."""
        if (there := read_queries(folder)) is not None:
            return there
        progress.stage("encoding queries")
        vectors = self.vectors()
        # A file may alternate, for example between two languages; both halves get some of each.
        vectors = vectors[np.random.default_rng(self.settings.seed).permutation(len(vectors))]
        write_arrays(folder / QUERIES, {"vectors": vectors})
        return vectors


@os_errors(UserError)
def find_queries(
    queries: TuneQueries,
    store: Store,
    spec: FeatureSpec,
    prompt: str | None,
    settings: BuildSettings,
    text_column: str | None = None,
) -> GivenQueries:
    """Return the queries of a file, texts or an array; random ones if there are more than `n_queries`.

    They are for an index of the feature `spec` of a store, and texts are put behind `prompt`.

    Raises:
        UserError: The queries are missing, too few or of another width; or a text marks no word where words are
            searched for.
    """
    if text_column is not None and not isinstance(queries, str | Path):
        raise UserError(f"`text_column` {text_column!r} is of a file, and `tune_queries` names no file; leave it out")
    if isinstance(queries, np.ndarray):
        if queries.ndim != 2 or queries.dtype.kind != "f" or queries.shape[1] != spec.dim:
            raise UserError(
                f"`tune_queries` is {queries.dtype} of shape {queries.shape}; give floats (n_queries, {spec.dim})"
            )
        vectors = checked_queries(queries[_chosen(len(queries), "`tune_queries`", settings)], spec.dim)
        return GivenQueries(TunedBy("an array", _digest(vectors.tobytes()), len(vectors)), lambda: vectors, settings)
    spec.require_known_model()
    if isinstance(queries, str | Path):
        name = as_path(queries).name
        file = QueryFile(str(queries), text_column="text" if text_column is None else text_column)
        wanted = set(_chosen(file.n_queries, queries, settings).tolist())
        rows = (query for batch in file.batches() for query in batch)
        named = [(query.text, query.name) for number, query in enumerate(rows) if number in wanted]
    else:
        if not all(isinstance(text, str) for text in queries):
            raise UserError("`tune_queries` holds something else than texts; pass a list of texts, an array, or a file")
        name = "texts"
        named = [(queries[i], f"query {i}") for i in _chosen(len(queries), "`tune_queries`", settings).tolist()]
    texts, names = [text for text, _ in named], [place for _, place in named]
    if spec.level is not Level.SENTENCE:
        for text, place in named:
            parse_marked(text, place)

    def encode() -> Float32Array:
        words = gives_words(store)
        encoder = QueryEncoder(spec, given_words=words, name=f"store {store.path.name}", prompt=prompt)
        return checked_queries(encoder.encode(texts, names).vectors, spec.dim)

    lengths = ",".join(str(len(text)) for text in texts)
    content = f"{lengths};{''.join(texts)}".encode("utf-8", "surrogatepass")
    return GivenQueries(TunedBy(name, _digest(content), len(texts)), encode, settings)


def _chosen(n_queries: int, what: object, settings: BuildSettings) -> IntArray:
    if n_queries < 2:
        raise UserError(f"{what}: too few queries ({n_queries}); give 2 or more, one half of them to tune by")
    return sample_positions(n_queries, settings.n_queries, settings.seed)


def _digest(content: bytes) -> str:
    return xxhash.xxh3_128(content).hexdigest()
