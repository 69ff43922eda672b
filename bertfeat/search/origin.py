"""Origin of an index: the store and feature that `index.json` names; libraries that read stores load in functions."""

from __future__ import annotations

import os
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from bertfeat.ann.description import IndexDescription
from bertfeat.errors import BertfeatWarning, UserError
from bertfeat.storage import as_path
from bertfeat.store.provenance import FeatureSpec

if TYPE_CHECKING:
    from bertfeat.store.reader import Store


@dataclass(frozen=True, slots=True)
class TunedBy:
    """Queries that an index was tuned by: the name of their file, `texts` or `an array`, their digest and number."""

    name: str
    digest: str
    n_queries: int


@dataclass(frozen=True, slots=True)
class TokenOrigin:
    """The tokens that an index reranks by: their feature, the kind of their codes, and their number."""

    spec: FeatureSpec
    codes: str
    n_tokens: int = 0

    @property
    def named(self) -> str:
        """The level and the feature, as `rerank` of `build_index` names them."""
        return f"{self.spec.level}:{self.spec.feature}"


@dataclass(frozen=True, slots=True)
class Origin:
    """The store that an index was built from."""

    spec: FeatureSpec
    store: str  # its absolute path, or its URL, when the index was built
    relative: str  # to the folder of the index, so that both can be moved together; empty for a URL
    plan_hash: str
    n_rows: int  # of the level, including those without a vector
    rows_digest: str  # of the rows in the index
    given_words: bool  # the corpus consists of words
    query_prompt: str | None = None  # put before each query; None for that of the store's rows
    tuned_by: TunedBy | None = None  # None if it was tuned by its own vectors
    rerank: TokenOrigin | None = None  # None if hits are ordered by the index alone

    @classmethod
    def of(cls, store: Store, spec: FeatureSpec, index: Path, **fields: Any) -> Self:
        """Return the origin of an index, with further `fields`; a copied store without a plan is a StoreError."""
        from bertfeat.search.query_vectors import gives_words

        path = store.path.resolve() if isinstance(store.path, Path) else store.path
        return cls(
            spec=spec,
            store=str(path),
            relative=os.path.relpath(path, index.resolve()) if isinstance(path, Path) else "",
            plan_hash=store.manifest.plan_hash,
            n_rows=store.n_rows(spec.level),
            given_words=gives_words(store),
            **fields,
        )

    @classmethod
    def at(cls, description: IndexDescription) -> Self:
        """Return the origin of an index."""
        return msgspec.convert(description.source, cls)

    def find_store(self, index: Path) -> Store:
        """Open the store at its old place, relative to the folder of the index or absolute; see `check_store`."""
        from bertfeat.store.reader import open_store

        places = [as_path(self.store)]
        if self.relative:
            places = list(dict.fromkeys([Path(os.path.normpath(index.resolve() / self.relative)), *places]))
        for place in places:
            if place.exists():
                return self.check_store(open_store(place), index)
        raise UserError(f"{index}: its store is not at {self.store} any more; pass `store` with its new place")

    def check_store(self, store: Store, index: Path) -> Store:
        """Return the rows of a store that an index was built from, or raise a UserError; warn of appended ones."""
        there = store.state(self.plan_hash)
        spec = self.spec.find_in(store, mine=f"index {index}").under_name_of(self.spec)
        if there is None or (spec, there.n_rows(spec.level)) != (self.spec, self.n_rows):
            raise UserError(
                f"{store.path}: is not the store that {index} was built from, or was made again since; if its first "
                f"rows are the same, run {self.update_command(store, index)}, else build the index again"
            )
        if n_new := store.n_rows(spec.level) - self.n_rows:
            rows = f"{n_new:,} of {store.n_rows(spec.level):,} {spec.level} rows"
            text = f"{store.path}: {rows} are not in {index} yet; run {self.update_command(store, index)}"
            warnings.warn(BertfeatWarning(text), stacklevel=2)
        return there

    @staticmethod
    def update_command(store: Store, index: Path) -> str:
        """Return the command that adds new rows of a store to an index."""
        place = str(store.path)
        if isinstance(store.path, Path):
            place = min(place, os.path.relpath(place), key=len)
        return f"bertfeat index update {shlex.quote(str(index))} {shlex.quote(place)}"
