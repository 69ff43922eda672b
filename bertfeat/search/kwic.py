"""Keyword in context: a hit with the text left and right of it, in columns of a terminal."""

from __future__ import annotations

from dataclasses import dataclass

from bertfeat.display import display_width, first_columns, last_columns, printable

_MAX_HIT_COLUMNS = 80


@dataclass(frozen=True, slots=True)
class Context:
    """A hit with the text left and right of it, all of it printable."""

    left: str
    word: str
    right: str

    def marked(self) -> str:
        """Return one line of text with the hit in brackets."""
        return f"{self.left}[{self.word}]{self.right}"

    def aligned(self, width: int) -> str:
        """Return one line in which the hit starts in column `width + 1`, unless the left context is wider."""
        return " " * max(0, width - display_width(self.left)) + self.marked()


def context_of(text: str, start: int, end: int, width: int = 40) -> Context:
    """Cut a hit, characters `start` to `end - 1`, and its context out of a text.

    On either side there are `width` columns of context; where text is cut off, the last of them is `…`.

    Examples:
        >>> context_of("He sat on the bank of the river", 14, 18, width=8).marked()
        '…on the [bank] of the…'
    """
    # Most characters take a column, combining marks none: this is enough for all but texts of marks.
    reach = 8 * width + 64
    left = printable(text[max(0, start - reach) : start])
    right = printable(text[end : end + reach])
    return Context(
        last_columns(left, width, is_whole=start <= reach),
        first_columns(printable(text[start:end]), _MAX_HIT_COLUMNS),
        first_columns(right, width, is_whole=len(text) - end <= reach),
    )
