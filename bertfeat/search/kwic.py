"""Keyword in context: a hit with what stands left and right of it, in columns that a terminal shows as they are."""

from __future__ import annotations

from dataclasses import dataclass

from bertfeat.display import display_width, first_columns, last_columns, printable

_MAX_HIT_COLUMNS = 80


@dataclass(frozen=True, slots=True)
class Context:
    """A hit between what stands left and right of it, all of it printable."""

    left: str
    word: str
    right: str

    def marked(self) -> str:
        """Return one line of text with the hit in brackets."""
        return f"{self.left}[{self.word}]{self.right}"

    def aligned(self, width: int) -> str:
        """Return one line in which the hit starts in column `width + 1`, if the contexts are no wider than that."""
        return " " * max(0, width - display_width(self.left)) + self.marked()


def context_of(text: str, start: int, end: int, width: int = 40) -> Context:
    """Cut a hit and its surroundings out of a text.

    Args:
        text: The document.
        start: The first character of the hit.
        end: The character after its last.
        width: Columns of context on either side; what is cut off is shown by `…`, which counts.

    Example:
        >>> context_of("He sat on the bank of the river", 14, 18, width=8).marked()
        '…on the [bank] of the…'
    """
    # A character takes a column, but marks take none: twice the width is far enough but for texts of marks alone.
    reach = 8 * width + 64
    left = printable(text[max(0, start - reach) : start])
    right = printable(text[end : end + reach])
    return Context(
        last_columns(left, width, is_whole=start <= reach),
        first_columns(printable(text[start:end]), _MAX_HIT_COLUMNS),
        first_columns(right, width, is_whole=len(text) - end <= reach),
    )
