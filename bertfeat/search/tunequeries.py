"""Queries to tune an index by, which come from elsewhere than its vectors: texts, or vectors of a store or a .npy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from bertfeat.ann.buildsettings import BuildSettings
from bertfeat.ann.description import QUERIES
from bertfeat.ann.indexfiles import read_arrays
from bertfeat.ann.indexfolder import write_queries
from bertfeat.ann.indextraining import prepared_rows
from bertfeat.ann.vectorparts import checked_queries, sample_positions
from bertfeat.choices import Level, StoreDtype
from bertfeat.corpus.vectorfiles import NpyVectors, vector_file
from bertfeat.durable.files import os_errors
from bertfeat.errors import UserError
from bertfeat.progress import Progress
from bertfeat.records import Float32Array, IntArray
from bertfeat.search.origin import TunedBy
from bertfeat.search.queryfiles import QueryFile
from bertfeat.search.queryvectors import QueryEncoder, gives_words
from bertfeat.search.storevectors import StoreParts
from bertfeat.search.wordqueries import parse_marked
from bertfeat.storage import as_path
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store, open_store
from bertfeat.vectors.nearest import Metric

TuneQueries = str | Path | Store | npt.NDArray[Any]

_MANIFESTS = "manifests"


@dataclass(frozen=True, slots=True)
class GivenQueries:
    """Queries that were found and checked as far as that is quick.

    Attributes:
        about: Their name, digest and number.
        vectors: Encodes or reads them: float32 (n_queries, dim), raw, in random order. Raises a UserError if one cannot
            be used.
    """

    about: TunedBy
    vectors: Callable[[], Float32Array]

    def kept(self, folder: Path, progress: Progress) -> Float32Array:
        """Return the vectors from the folder of a build, where the first run writes them."""
        if (there := read_arrays(folder / QUERIES)) is not None:
            return there["vectors"]
        progress.stage("encoding queries")
        vectors = self.vectors()
        write_queries(folder, vectors)
        return vectors


@dataclass(frozen=True, slots=True)
class QueryFinder:
    """Finder of the queries for the index of a store's feature (`spec`), which are put behind `prompt`."""

    store: Store
    spec: FeatureSpec
    prompt: str | None
    settings: BuildSettings
    text_column: str | None = None

    @os_errors(UserError)
    def find(self, queries: TuneQueries) -> GivenQueries:
        """Return the queries of a file, a store or an array; random ones if there are more than `n_queries`.

        Raises:
            UserError: The queries are missing, too few, of another width or feature, or the vectors of the index
                itself; or a text marks no word where words are searched for.
        """
        if isinstance(queries, np.ndarray):
            return self._array(queries)
        if not isinstance(queries, str | Path | Store):
            raise UserError(f"`tune_queries` is a {type(queries).__name__}; give a file, a store, or an array")
        place = queries.path if isinstance(queries, Store) else as_path(queries)
        is_store = place.is_dir() if isinstance(place, Path) else (place / _MANIFESTS).exists()
        if self.text_column is not None and (is_store or place.name.endswith(".npy")):
            raise UserError(f"`text_column` {self.text_column!r}: {place} has vectors, not texts; leave it out")
        if is_store:
            return self._store(queries if isinstance(queries, Store) else open_store(place))
        if place.name.endswith(".npy"):
            return self._npy(place.name, str(queries))
        return self._texts(place.name, str(queries))

    def _texts(self, name: str, path: str) -> GivenQueries:
        self.spec.require_known_model()
        file = QueryFile(path, text_column="text" if self.text_column is None else self.text_column)
        wanted = set(self._chosen(file.n_queries, path).tolist())
        rows = (query for batch in file.batches() for query in batch)
        found = [query for number, query in enumerate(rows) if number in wanted]
        texts, names = [query.text for query in found], [query.name for query in found]
        if self.spec.level is not Level.SENTENCE:
            for text, place in zip(texts, names, strict=True):
                parse_marked(text, place)

        def encode() -> Float32Array:
            encoder = QueryEncoder(
                self.spec,
                given_words=gives_words(self.store),
                name=f"store {self.store.path.name}",
                prompt=self.prompt,
            )
            return checked_queries(encoder.encode(texts, names).vectors, self.spec.dim)

        lengths = ",".join(str(len(text)) for text in texts)
        return self._given(name, f"{lengths};{''.join(texts)}".encode("utf-8", "surrogatepass"), len(texts), encode)

    def _store(self, store: Store) -> GivenQueries:
        if store.manifest.plan_hash == self.store.manifest.plan_hash:
            raise UserError(
                f"{store.path}: holds the vectors of the index itself; give queries that are not among them"
            )
        asked = self.spec if self.prompt is None else replace(self.spec, prompt=self.prompt)
        spec = asked.find_in(store, mine=f"an index of store {self.store.path.name}")
        source = StoreParts(store, spec.level, spec.feature)
        chosen = self._chosen(source.n_vectors, store.path)
        key = f"{store.manifest.plan_hash} {source.n_vectors}".encode()
        return self._given(store.path.name, key, len(chosen), lambda: prepared_rows(source, chosen, None, Metric.IP))

    def _npy(self, name: str, path: str) -> GivenQueries:
        file = NpyVectors(vector_file(path), StoreDtype.FLOAT32)
        if len(file.features) > 1:
            raise UserError(f"{path}: has {len(file.features)} vectors in each row; save one layer")
        self._check_width(file.features[0].dim, path)
        file.check()
        blocks = [file.read(row, 1) for row in self._chosen(file.n_rows, path).tolist()]
        if any(valid is not None for _, valid in blocks):
            raise UserError(f"{path}: a row holds NaN, which nothing compares with; leave such rows out")
        return self._array(np.concatenate([array for vectors, _ in blocks for array in vectors.values()]), name)

    def _array(self, array: npt.NDArray[Any], name: str = "an array") -> GivenQueries:
        if array.ndim != 2 or array.dtype.kind != "f":
            raise UserError(f"`tune_queries` is {array.dtype} of shape {array.shape}; give floats (n_queries, dim)")
        self._check_width(array.shape[1], "`tune_queries`")
        vectors = checked_queries(array[self._chosen(len(array), "`tune_queries`")], self.spec.dim)
        return self._given(name, vectors.tobytes(), len(vectors), lambda: vectors)

    def _check_width(self, dim: int, what: str) -> None:
        if dim != self.spec.dim:
            raise UserError(f"{what}: has vectors of {dim} values, and {self.spec.feature} has {self.spec.dim}")

    def _chosen(self, n_queries: int, what: object) -> IntArray:
        if n_queries < 2:
            raise UserError(f"{what}: too few queries ({n_queries}); give 2 or more, one half of them to tune by")
        return sample_positions(n_queries, self.settings.n_queries, self.settings.seed)

    def _given(self, name: str, content: bytes, n_queries: int, vectors: Callable[[], Float32Array]) -> GivenQueries:
        def mixed() -> Float32Array:
            found = vectors()
            # A file may alternate, for example between two languages; both halves get some of each.
            return found[np.random.default_rng(self.settings.seed).permutation(n_queries)]

        return GivenQueries(TunedBy(name, xxhash.xxh3_128(content).hexdigest(), n_queries), mixed)
