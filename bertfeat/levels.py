"""Levels: one entry each, with the columns before the vectors and the keys that identify a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertfeat.choices import ChunkContext, Level
from bertfeat.records import Column

# A string column if the ids of the corpus are strings.
DOC_ID = Column("doc_id", "int64", nullable=False)
_SPAN = (Column("char_start", "int32"), Column("char_end", "int32"))
_SEGMENT = Column("segment", "int8")
_TEXT_PAIR = Column("text_pair", "string")
# Written only if documents may have a second text.
PAIR_COLUMNS = (_SEGMENT, _TEXT_PAIR)
# Written only if rows are of two spans.
SECOND_SPAN = (Column("char_start_2", "int32"), Column("char_end_2", "int32"), Column("text_2", "string"))
# The vector column of the model's own sentence embedding.
EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelEntry:
    """The facts of one level: its columns in order, before those of the corpus, and those that identify a row.

    `surface` is the column with the word or token; empty if a row is a whole text. `pooling` is the setting for how
    tokens become a row; None if a row is one token. `row_bytes` is about the size of a row on disk, without texts.
    """

    columns: tuple[Column, ...]
    keys: tuple[str, ...]
    surface: str
    pooling: str | None
    row_bytes: int

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that name a row for a reader: its keys, and its word, token or span."""
        own = self.surface or ("text" if len(self.keys) > 1 else None)
        return self.keys if own is None else (*self.keys, own)

    @property
    def shown(self) -> tuple[str, ...]:
        """The default columns of a search hit."""
        own = ("char_start", "char_end", "text")
        return tuple(dict.fromkeys([*self.names, *(c.name for c in self.columns if c.name in own)]))


LEVELS: dict[Level, LevelEntry] = {
    Level.TOKEN: LevelEntry(
        columns=(
            DOC_ID,
            Column("token_index", "int32", nullable=False),
            Column("token", "string", nullable=False),
            Column("token_id", "int32", nullable=False),
            Column("word_index", "int32"),
            *_SPAN,
            Column("is_special", "bool", nullable=False),
            _SEGMENT,
        ),
        keys=("doc_id", "token_index"),
        surface="token",
        pooling=None,
        row_bytes=40,
    ),
    Level.WORD: LevelEntry(
        columns=(
            DOC_ID,
            Column("word_index", "int32", nullable=False),
            Column("word", "string", nullable=False),
            *_SPAN,
            Column("n_tokens", "int32", nullable=False),
            _SEGMENT,
        ),
        keys=("doc_id", "word_index"),
        surface="word",
        pooling="word_pooling",
        row_bytes=40,
    ),
    Level.SPAN: LevelEntry(
        columns=(
            DOC_ID,
            Column("span_index", "int32", nullable=False),
            *_SPAN,
            Column("text", "string", nullable=False),
            *SECOND_SPAN,
            Column("n_tokens", "int32", nullable=False),
        ),
        keys=("doc_id", "span_index"),
        surface="",
        pooling="span_pooling",
        row_bytes=48,
    ),
    Level.SENTENCE: LevelEntry(
        columns=(
            DOC_ID,
            Column("text", "string", nullable=False),
            _TEXT_PAIR,
            Column("n_tokens", "int32", nullable=False),
            Column("n_windows", "int32", nullable=False),
            Column("truncated", "bool", nullable=False),
        ),
        keys=("doc_id",),
        surface="",
        pooling="pooling",
        row_bytes=24,
    ),
}
# The levels whose rows are words or tokens.
WORDS = tuple(level for level, entry in LEVELS.items() if entry.surface)
# The levels whose rows have a text of their own.
TEXTS = tuple(level for level in LEVELS if level not in WORDS)


def pooling_of(level: Level, settings: Mapping[str, Any]) -> str | None:
    """Return how settings say that the tokens of a row are pooled; None if a row is one token."""
    is_alone = level is Level.SPAN and settings.get("chunk_context") == ChunkContext.ALONE
    name = LEVELS[Level.SENTENCE if is_alone else level].pooling
    return None if name is None else settings.get(name)
