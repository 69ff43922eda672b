"""Parser of queries that mark a word: `He sat on the [bank] of the river`."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from bertfeat.errors import UserError
from bertfeat.records import Int32Array

# A backslash with the sign that it makes ordinary, or a bracket.
_SIGN = re.compile(r"\\([\[\]\\])|([\[\]])")


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A text without its brackets, and the characters `start` to `end - 1` that were between them."""

    text: str
    start: int
    end: int

    @property
    def marked(self) -> str:
        """The text between the brackets."""
        return self.text[self.start : self.end]

    @property
    def bracketed(self) -> str:
        """The text with its brackets."""
        return f"{self.text[: self.start]}[{self.marked}]{self.text[self.end :]}"

    def collapsed(self) -> MarkedText:
        """Return the same with single spaces between words and none around, as in a corpus of words."""
        start, end = (len(re.sub(r"\s+", " ", self.text[:at].lstrip())) for at in (self.start, self.end))
        return MarkedText(" ".join(self.text.split()), start, end)


def parse_marked(text: str, name: str = "query") -> MarkedText:
    r"""Read a text in which square brackets mark one word; a text of one word needs none.

    A backslash before a bracket or a backslash makes it an ordinary character. `name` is for messages.

    Examples:
        >>> parse_marked("on the [bank] of the river")
        MarkedText(text='on the bank of the river', start=7, end=11)
        >>> parse_marked(r"see \[1\], [bank]").text
        'see [1], bank'
    """
    plain, kinds, at = "", "", 0
    places = []
    for sign in _SIGN.finditer(text):
        plain += text[at : sign.start()] + (sign[1] or "")
        if sign[2]:
            kinds += sign[2]
            places.append(len(plain))
        at = sign.end()
    plain += text[at:]
    if kinds == "[]":
        return MarkedText(plain, *places)
    if kinds:
        what = "mark one [word], and write \\[ or \\] for a bracket of the text"
        raise UserError(f"{name} {text!r:.60}: the brackets do not mark one word; {what}")
    if len(plain.split()) != 1:
        what = "put brackets around one, as in 'the [bank] of the river'"
        raise UserError(f"{name} {text!r:.60}: no word is marked; {what}")
    return MarkedText(plain, 0, len(plain))


def covered_row(query: MarkedText, starts: Int32Array, ends: Int32Array, *, name: str, what: str) -> int:
    """Return the number of the first word that the brackets cover, in part or whole.

    `starts` and `ends`, int32 (n_words,), are the first character of each word, and the one after its last. `name` and
    `what` (`word` or `token`) are for messages.
    """
    covered = np.flatnonzero((query.start < query.end) & (starts < query.end) & (query.start < ends))
    if not len(covered) or len(query.marked.split()) > 1:
        count = "several words" if len(covered) else f"no {what}"
        raise UserError(f"{name} {query.bracketed!r:.60}: the brackets cover {count}; put them around one")
    return int(covered[0])
