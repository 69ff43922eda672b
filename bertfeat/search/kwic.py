"""Keyword in context: a hit with what stands left and right of it, in columns that a terminal shows as they are."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

_CUT = "…"
# Joiners change how the letters around them look, and are needed; every other format character can hide or turn text.
_JOINERS = "\u200c\u200d"
_UNPRINTABLE = "\ufffd"
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
        _last_columns(left, width, is_whole=start <= reach),
        _first_columns(printable(text[start:end]), _MAX_HIT_COLUMNS, is_whole=True),
        _first_columns(right, width, is_whole=len(text) - end <= reach),
    )


def printable(text: str) -> str:
    r"""Return a text as one line that does nothing to a terminal.

    Line ends, tabs and other blanks become a blank, control characters become U+FFFD; characters that turn the
    direction of writing or are invisible are left out; a combining mark without a base gets one.

    Example:
        >>> printable("a\tb\nc\u202ed")
        'a b cd'
    """
    shown = "".join(map(_shown, text))
    return "\u25cc" + shown if shown and unicodedata.category(shown[0]).startswith("M") else shown


def display_width(text: str) -> int:
    """Return the columns that a printable text takes in a terminal: 2 for wide characters, 0 for combining marks."""
    return sum(map(_width, text))


def _shown(char: str) -> str:
    if char.isspace():
        return " "
    category = unicodedata.category(char)
    if category == "Cf":
        return char if char in _JOINERS else ""
    return _UNPRINTABLE if category in ("Cc", "Cs") else char


def _width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _first_columns(text: str, width: int, *, is_whole: bool) -> str:
    if is_whole and display_width(text) <= width:
        return text
    room = width - 1
    at = 0
    while at < len(text) and _width(text[at]) <= room:
        room -= _width(text[at])
        at += 1
    return text[:at] + _CUT if width else ""


def _last_columns(text: str, width: int, *, is_whole: bool) -> str:
    if is_whole and display_width(text) <= width:
        return text
    room = width - 1
    at = len(text)
    while at > 0 and _width(text[at - 1]) <= room:
        room -= _width(text[at - 1])
        at -= 1
    # Marks whose base fell off go with it.
    while at < len(text) and _width(text[at]) == 0:
        at += 1
    return _CUT + text[at:] if width else ""
