"""Provenance of a feature: what a probe or an index records of its store, compares, and uses to extract new text."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from bertfeat.choices import ChunkContext, Combine, Level
from bertfeat.config import ExtractConfig
from bertfeat.durable.differences import Fields, shown
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS, pooling_of
from bertfeat.records import LevelTable, ModelInfo
from bertfeat.store.manifest import IMPORTED
from bertfeat.store.plan_file import SPANS_DIGEST

if TYPE_CHECKING:
    from bertfeat.store.reader import Store

# The meaning of a vector depends on these: features that differ in one of them are not interchangeable.
_IDENTITY = {
    "weights_sha256": "model weights",
    "tokenizer_sha256": "tokenizer",
    "config_sha256": "config.json of the model",
    "level": "level",
    "layers": "layers",
    "combine": "combine",
    "pooling": "pooling",
    "span_pair": "span-pair",
    "include_special_tokens": "include-special-tokens",
    "document_context": "document-context",
    "prompt": "prompt",
    "unknown_words": "unknown words",
    "sentence_sha256": "sentence embedding of the model",
}
# The same for imported features, whose model has no digests.
_IDENTITY_OF_IMPORTED = {"model": "model", "dim": "width", **_IDENTITY}


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """One feature of one level, and the settings of its extraction.

    `layers` are absolute and ascending; `pooling` makes one row of several tokens: `word_pooling` at word level,
    `pooling` at sentence level, None at token level. Fields that do not concern the level are None. `is_added_up` marks
    a sum or mean that is not stored: layers, each rounded to the stored type, are added when they are read. `prompt`
    was put before each text; `sentence_sha256` is the digest of the model's own sentence embedding, if this is it.
    `unknown_words` says whether words that static vectors lack have no vector or zeros. `config_sha256` is the digest
    of what decides vectors in config.json, None for imported vectors. `spans` and `chunk` are the rule that found the
    spans, None for those of a file.
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
    prompt: str = ""
    sentence_sha256: str | None = None
    unknown_words: str = "null"
    config_sha256: str | None = None
    span_pair: str = "none"
    is_alone: bool = False
    spans: str | None = None
    chunk: str | None = None

    @classmethod
    def of(cls, store: Store, level: str, feature: str | int) -> Self:
        """Describe a feature of a store, stored or made from stored layers."""
        found = store.feature(level, feature)
        metadata = store.metadata
        where = store.schema(level).level
        is_stored = found.name in {column.name for column in store.features(where)}
        is_alone = where is Level.SPAN and metadata.get("chunk_context") == ChunkContext.ALONE
        of_texts = where is Level.SENTENCE or is_alone
        return cls(
            level=where,
            feature=found.name,
            layers=found.layers,
            combine=Combine(found.combine),
            dim=found.dim,
            pooling=pooling_of(where, metadata),
            include_special_tokens=metadata["include_special_tokens"] if of_texts else None,
            is_added_up=not is_stored and found.combine in (Combine.SUM, Combine.MEAN),
            prompt=metadata.get("prompt", ""),
            unknown_words=metadata.get("unknown_words", "null") if where is Level.WORD else "null",
            sentence_sha256=metadata.get("sentence_sha256") if of_texts else None,
            span_pair=metadata.get("span_pair", "none") if where is Level.SPAN else "none",
            is_alone=is_alone,
            spans=None if where is not Level.SPAN or SPANS_DIGEST in metadata else metadata.get("spans"),
            chunk=metadata.get("chunk") if where is Level.SPAN else None,
            config_sha256=metadata.get("config_sha256"),
            **{name: metadata[name] for name in _COPIED},
        )

    def vectors_in(self, table: LevelTable) -> npt.NDArray[Any]:
        """Return this feature of rows in memory, (n_rows, dim) of the stored type, as a store would return it.

        The table has only the vector columns that the feature is made of.
        """
        from bertfeat.store.vectors import add_layers

        columns = list(table.vectors.values())
        return add_layers(columns, self.combine, np.empty_like(columns[0])) if self.is_added_up else columns[0]

    def under_name_of(self, other: FeatureSpec) -> FeatureSpec:
        """Return this feature with another feature's name of the model: the digests identify the model."""
        return dataclasses.replace(self, model=other.model, revision=other.revision)

    def differences(self, other: FeatureSpec) -> dict[str, tuple[Any, Any]]:
        """Return the settings that make the two features different, by name, with both values.

        Lengths and types may differ: they change the precision of a vector, not its meaning.
        """
        found = {}
        names = _IDENTITY_OF_IMPORTED if IMPORTED in (self.family, other.family) else _IDENTITY
        for name, label in names.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                found[label] = (mine, theirs)
        if "pooling" in found:
            # Only one of the two is the model's own sentence embedding.
            found.pop(_IDENTITY["sentence_sha256"], None)
        if "model weights" in found and self.model != other.model:
            # A name is easier to read than a digest.
            found = {"model": (self.model, other.model), **found}
        return found

    def require_same(self, other: FeatureSpec, *, mine: str, theirs: str) -> None:
        """Refuse a different feature; `mine` and `theirs` name the owners: `probe ner`, `store features`."""
        if found := self.differences(other):
            _refuse(mine, theirs, found)

    def find_in(self, store: Store, *, mine: str) -> FeatureSpec:
        """Return this feature as a store describes it, or refuse; `mine` names the owner in the message."""
        theirs = f"store {store.path.name}"
        if self.level not in store.levels:
            raise UserError(
                f"{mine} works at level {self.level}, {theirs} holds {', '.join(store.levels)}; "
                f"extract with `levels='{self.level}'`"
            )
        try:
            other = self.of(store, self.level, self.feature)
        except UserError:
            columns = store.features(self.level)
            # The missing feature is compared with all features that exist; all other settings are the store's.
            other = dataclasses.replace(
                self.of(store, self.level, columns[0].name),
                feature=", ".join(column.name for column in columns),
                layers=tuple(sorted({layer for column in columns for layer in column.layers})),
                combine=self.combine,
            )
            _refuse(mine, theirs, {**self.differences(other), "feature": (self.feature, other.feature)})
        self.require_same(other, mine=mine, theirs=theirs)
        return other

    def require_model(self, info: ModelInfo, config_sha256: str, sentence_sha256: str | None, *, mine: str) -> None:
        """Refuse a model that did not make this feature.

        `config_sha256` is the digest of the model's config.json, `sentence_sha256` that of its own sentence embedding;
        None unless this feature is one.
        """
        other = dataclasses.replace(
            self,
            model=info.name,
            weights_sha256=info.weights_sha256,
            tokenizer_sha256=info.tokenizer_sha256,
            config_sha256=config_sha256,
            sentence_sha256=sentence_sha256,
        )
        self.require_same(other, mine=mine, theirs=f"model {info.name}")

    def require_known_model(self) -> None:
        """Refuse to encode new texts as an imported feature, whose model is not known."""
        if self.family == IMPORTED:
            raise UserError(
                f"feature {self.feature!r} was imported ({self.model}), so no model is known that encodes new texts; "
                "import vectors of these texts too and pass their store, or search by vectors"
            )

    @property
    def level_of_texts(self) -> Level:
        """The level at which a text is encoded as this feature: a chunk alone is a whole text."""
        return Level.SENTENCE if self.is_alone else self.level

    def extract_config(self, **settings: Any) -> ExtractConfig:
        """Return the settings that extract this feature, and no other column, from new text; `settings` add to them."""
        self.require_known_model()
        if self.span_pair != "none":
            raise UserError(
                f"feature {self.feature!r} is of two spans, which no text alone gives; extract new texts with "
                "their spans, and pass the store"
            )
        asked: dict[str, Any] = {
            **{name: getattr(self, name) for name in _SETTINGS},
            "prompt": self.prompt,
            "unknown_words": self.unknown_words,
            "levels": (self.level_of_texts,),
            "layers": ",".join(map(str, self.layers)),
            # Each layer is rounded as before, so that the sum is bit-identical.
            "combine": (Combine.NONE if self.is_added_up else self.combine,),
        }
        if setting := LEVELS[self.level_of_texts].pooling:
            asked[setting] = self.pooling
        if self.level is Level.SPAN and not self.is_alone:
            # Whoever encodes the texts gives the spans.
            asked["chunk"] = "paragraphs"
        if self.include_special_tokens is not None:
            asked["include_special_tokens"] = self.include_special_tokens
        return ExtractConfig.recorded(asked, settings)

    def row_settings(self, *, mine: str) -> dict[str, Any]:
        """Return what `extract_config` needs beside to find the rows of new texts; `mine` names the owner."""
        if self.level is not Level.SPAN:
            return {}
        if self.spans is None and self.chunk is None:
            raise UserError(
                f"{mine} learned from a file of spans, and no rule finds those of new texts; extract the texts with a "
                "file of their spans, and pass the store"
            )
        context = ChunkContext.ALONE if self.is_alone else ChunkContext.DOCUMENT
        return {"levels": (self.level,), "spans": self.spans, "chunk": self.chunk, "chunk_context": context}


# Settings of the extraction that a store's metadata hold under the same name, and facts of the model.
_SETTINGS = (
    "model",
    "revision",
    "document_context",
    "max_length",
    "stride",
    "on_overlong",
    "store_dtype",
    "compute_dtype",
)
_COPIED = (*_SETTINGS, "family", "weights_sha256", "tokenizer_sha256", "n_layers")


def _refuse(mine: str, theirs: str, found: Fields) -> NoReturn:
    sides = [
        f"{owner} has {', '.join(f'{name} {shown(pair[side])}' for name, pair in found.items())}"
        for side, owner in enumerate((mine, theirs))
    ]
    text = f"{mine} and {theirs} hold different features: {'; '.join(sides)}"
    raise UserError(f"{text}; extract with the settings of {mine}, which bertfeat inspect shows")
