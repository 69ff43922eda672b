"""Where a feature comes from: what a probe or an index keeps of its store, compares, and extracts new text with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from bertfeat.config import Combine, ExtractConfig, Level
from bertfeat.errors import UserError
from bertfeat.records import LevelTable, ModelInfo
from bertfeat.store.decoding import decode
from bertfeat.store.reader import Store

# What a vector means depends on these: two features that differ in one of them cannot stand in for each other.
_IDENTITY = {
    "weights_sha256": "model weights",
    "tokenizer_sha256": "tokenizer",
    "level": "level",
    "layers": "layers",
    "combine": "combine",
    "pooling": "pooling",
    "include_special_tokens": "include-special-tokens",
    "document_context": "document-context",
}


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """One feature of one level, and the settings that it was extracted with.

    `layers` are absolute and ascending; `pooling` is what makes a row of tokens: `word_pooling` at word level,
    `pooling` at sentence level, None at token level. Fields that do not touch the level hold None. `is_added_up` marks
    a sum or mean that is not stored: layers, each rounded to the stored type, are added up when they are read.
    """

    level: Level
    feature: str
    layers: tuple[int, ...]
    combine: Combine
    dim: int
    model: str
    revision: str | None
    family: str
    weights_sha256: str
    tokenizer_sha256: str
    n_layers: int
    pooling: str | None
    include_special_tokens: bool | None
    document_context: bool
    max_length: int
    stride: int
    on_overlong: str
    store_dtype: str
    compute_dtype: str
    is_added_up: bool = False

    @classmethod
    def of(cls, store: Store, level: str, feature: str) -> Self:
        """Describe a feature of a store, stored or made from what is stored.

        Raises:
            UserError: The store has no such level or feature.
        """
        found = store.feature(level, feature)
        metadata = store.metadata
        where = store.schema(level).level
        is_stored = found.name in {column.name for column in store.features(where)}
        pools = {Level.TOKEN: None, Level.WORD: metadata["word_pooling"], Level.SENTENCE: metadata["pooling"]}
        return cls(
            level=where,
            feature=found.name,
            layers=found.layers,
            combine=Combine(found.combine),
            dim=found.dim,
            pooling=pools[where],
            include_special_tokens=metadata["include_special_tokens"] if where is Level.SENTENCE else None,
            is_added_up=not is_stored and found.combine in (Combine.SUM, Combine.MEAN),
            **{name: metadata[name] for name in _COPIED},
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        Raises:
            UserError: A field is missing, unknown, or of another type.
        """
        try:
            return decode(cls, dict(values))
        except ValueError as error:
            raise UserError(f"description of a feature: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**dataclasses.asdict(self), "level": str(self.level), "layers": list(self.layers)}

    def vectors_of(self, table: LevelTable) -> npt.NDArray[Any]:
        """Return this feature of rows in memory, (n_rows, dim) of the stored type, as a store of them gives it."""
        columns = list(table.vectors.values())
        if not self.is_added_up:
            return columns[0]
        total: npt.NDArray[Any] = np.asarray(np.sum(columns, axis=0, dtype=np.float32))
        return (total / len(columns) if self.combine == Combine.MEAN else total).astype(columns[0].dtype)

    def under_name_of(self, other: FeatureSpec) -> FeatureSpec:
        """Return this feature with its model called as another feature's: the digests say which model it is."""
        return dataclasses.replace(self, model=other.model, revision=other.revision)

    def differences(self, other: FeatureSpec) -> dict[str, tuple[Any, Any]]:
        """Return what makes the two features different things, by name, with both values; empty if nothing does.

        Lengths and types may differ: they change how exactly a vector is known, not what it is.
        """
        found = {}
        for name, label in _IDENTITY.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                found[label] = (mine, theirs)
        if "model weights" in found and self.model != other.model:
            # A name says more than a digest.
            found = {"model": (self.model, other.model), **found}
        return found

    def require_same(self, other: FeatureSpec, *, mine: str, theirs: str) -> None:
        """Refuse another feature than this one.

        Args:
            other: The feature at hand.
            mine: What this one belongs to, for the message: `probe ner-probe`.
            theirs: What the other belongs to: `store features`.

        Raises:
            UserError: They differ; the message names each field with both values.
        """
        if found := self.differences(other):
            _refuse(mine, theirs, found)

    def find_in(self, store: Store, *, mine: str) -> FeatureSpec:
        """Return this feature as a store describes it, refusing a store that has another one.

        Args:
            store: The store at hand.
            mine: What this feature belongs to, for the message: `probe ner-probe`.

        Raises:
            UserError: The store has not the level, cannot make the feature, or made it otherwise; the message names
                each setting that differs with both values.
        """
        theirs = f"store {store.path.name}"
        if self.level not in store.levels:
            raise UserError(
                f"{mine} works at level {self.level}, {theirs} holds {', '.join(store.levels)}; "
                f"extract with --level {self.level}"
            )
        try:
            other = self.of(store, self.level, self.feature)
        except UserError:
            columns = store.features(self.level)
            # A feature that is there in place of the one that is not: its other settings are the store's.
            other = dataclasses.replace(
                self.of(store, self.level, columns[0].name),
                feature=", ".join(column.name for column in columns),
                layers=tuple(sorted({layer for column in columns for layer in column.layers})),
                combine=self.combine,
            )
            _refuse(mine, theirs, {**self.differences(other), "feature": (self.feature, other.feature)})
        self.require_same(other, mine=mine, theirs=theirs)
        return other

    def require_model(self, info: ModelInfo, *, mine: str) -> None:
        """Refuse another model than the one that made this feature.

        Raises:
            UserError: Its weights or its tokenizer differ; the message names both digests.
        """
        other = dataclasses.replace(
            self, model=info.name, weights_sha256=info.weights_sha256, tokenizer_sha256=info.tokenizer_sha256
        )
        self.require_same(other, mine=mine, theirs=f"model {info.name}")

    def extract_config(self, **settings: Any) -> ExtractConfig:
        """Return the settings that extract this feature, and no other column, from new text.

        Args:
            **settings: Further settings, of the corpus above all (`text_column`, `format`, ...).
        """
        asked: dict[str, Any] = {
            "model": self.model,
            "revision": self.revision,
            "levels": (self.level,),
            "layers": ",".join(map(str, self.layers)),
            # Rounded layer by layer as before, so that the sum is the same to the last bit.
            "combine": (Combine.NONE if self.is_added_up else self.combine,),
            "max_length": self.max_length,
            "stride": self.stride,
            "on_overlong": self.on_overlong,
            "document_context": self.document_context,
            "store_dtype": self.store_dtype,
            "compute_dtype": self.compute_dtype,
        }
        if self.level is Level.WORD:
            asked["word_pooling"] = self.pooling
        if self.level is Level.SENTENCE:
            asked |= {"pooling": self.pooling, "include_special_tokens": self.include_special_tokens}
        return ExtractConfig(**{**asked, **settings})


_COPIED = (
    "model",
    "revision",
    "family",
    "weights_sha256",
    "tokenizer_sha256",
    "n_layers",
    "document_context",
    "max_length",
    "stride",
    "on_overlong",
    "store_dtype",
    "compute_dtype",
)


def _refuse(mine: str, theirs: str, found: Mapping[str, tuple[Any, Any]]) -> NoReturn:
    fields = "; ".join(f"{name}: {_short(a)} and {_short(b)}" for name, (a, b) in found.items())
    raise UserError(f"{mine} and {theirs} hold different features ({fields}); extract with the settings of {mine}")


def _short(value: object) -> str:
    """Show a digest by its beginning, and anything else as it is."""
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return text[:12] + "…" if len(text) == 64 else text
