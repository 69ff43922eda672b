"""Text for a terminal: on one line, with its width in columns."""

from __future__ import annotations

import unicodedata

_CUT = "…"
# Joiners change the shape of the letters around them, and are needed; other format characters can hide or reverse text.
_JOINERS = "\u200c\u200d"
_UNPRINTABLE = "\ufffd"


def printable(text: str) -> str:
    r"""Return a text as one line that cannot control a terminal.

    Whitespace becomes a space, control characters become U+FFFD. Characters that are invisible or change the direction
    of writing are left out. A combining mark without a base gets one.

    Examples:
        >>> printable("a\tb\nc\u202ed")
        'a b cd'
    """
    shown = "".join(map(_shown, text))
    return "\u25cc" + shown if shown and unicodedata.category(shown[0]).startswith("M") else shown


def display_width(text: str) -> int:
    """Return the columns of a printable text in a terminal: 2 for wide characters, 0 for combining marks."""
    return sum(map(_width, text))


def padded(text: str, width: int, right: bool = False) -> str:
    """Return a printable text padded with spaces to `width` columns; `right` puts them before it."""
    spaces = " " * (width - display_width(text))
    return spaces + text if right else text + spaces


def first_columns(text: str, width: int, *, is_whole: bool = True) -> str:
    """Return the beginning of a printable text that fits `width` columns, with `…` if more follows.

    Examples:
        >>> first_columns("river", 5), first_columns("rivers", 5)
        ('river', 'rive…')
    """
    if is_whole and display_width(text) <= width:
        return text
    return text[: _n_fitting(text, width - 1)] + _CUT if width else ""


def last_columns(text: str, width: int, *, is_whole: bool = True) -> str:
    """Return the end of a printable text that fits `width` columns, after `…` if more comes before.

    Examples:
        >>> last_columns("rivers", 5)
        '…vers'
    """
    if is_whole and display_width(text) <= width:
        return text
    at = len(text) - _n_fitting(text[::-1], width - 1)
    # Marks whose base was cut off are cut off too.
    while at < len(text) and _width(text[at]) == 0:
        at += 1
    return _CUT + text[at:] if width else ""


def _n_fitting(text: str, width: int) -> int:
    """Return the number of characters that fit some columns."""
    for n, char in enumerate(text):
        width -= _width(char)
        if width < 0:
            return n
    return len(text)


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
