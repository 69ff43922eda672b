"""Levels: one entry each, with the columns that come before the vectors and what identifies a row."""

from __future__ import annotations

from dataclasses import dataclass

from bertfeat.config import Level
from bertfeat.records import Column

# Where the corpus has string ids, this column has their type.
DOC_ID = Column("doc_id", "int64", nullable=False)
_SPAN = (Column("char_start", "int32"), Column("char_end", "int32"))
_SEGMENT = Column("segment", "int8")
_TEXT_PAIR = Column("text_pair", "string")
# Written only where documents may have a second text.
PAIR_COLUMNS = (_SEGMENT, _TEXT_PAIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelEntry:
    """The facts of one level.

    Attributes:
        columns: The columns that bertfeat writes, in order; those of the corpus follow.
        keys: The columns that identify a row.
        surface: The column that shows the word or token; empty where a row is a whole text.
        pooling: The setting that says how tokens become a row; None where a row is one token.
        row_bytes: About what the columns of a row take on disk, without texts.
    """

    columns: tuple[Column, ...]
    keys: tuple[str, ...]
    surface: str
    pooling: str | None
    row_bytes: int

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that name a row to people: its keys and its surface."""
        return (*self.keys, self.surface) if self.surface else self.keys

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns of a search hit, unless others are asked for."""
        return (*self.names, *(c.name for c in self.columns if c.name in ("char_start", "char_end", "text")))


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
