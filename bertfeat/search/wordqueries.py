"""Parser of queries that mark a word: `He sat on the [bank] of the river`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bertfeat.errors import UserError
from bertfeat.records import Int32Array

_ESCAPED = "[]\\"
_WORD = re.compile(r"\S+")


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
        places = [(found.start(), found.end()) for found in _WORD.finditer(self.text)]
        words = [self.text[start:end] for start, end in places]

        def moved(at: int) -> int:
            new = 0
            for start, end in places:
                if at <= end:
                    return new + max(0, at - start)
                new += end - start + 1
            return new

        return MarkedText(" ".join(words), moved(self.start), moved(self.end))


def parse_marked(text: str, name: str = "query") -> MarkedText:
    r"""Read a text in which square brackets mark one word; a text of one word needs none.

    A backslash before a bracket or a backslash makes it an ordinary character. `name` is for messages.

    Raises:
        UserError: A text of several words marks none, or more than one; or brackets do not match.

    Examples:
        >>> parse_marked("on the [bank] of the river")
        MarkedText(text='on the bank of the river', start=7, end=11)
        >>> parse_marked(r"see \[1\], [bank]").text
        'see [1], bank'
    """
    plain, brackets = _split(text)
    if not brackets:
        if not plain.split():
            raise UserError(f"{name} {_shown(text)}: no word in it; write one, or a sentence with a [word] in brackets")
        if len(plain.split()) == 1:
            return MarkedText(plain, 0, len(plain))
        raise UserError(
            f"{name} {_shown(text)}: no word is marked; put brackets around one, as in 'the [bank] of the river'"
        )
    kinds = "".join(kind for kind, _ in brackets)
    if kinds == "[]":
        return MarkedText(plain, brackets[0][1], brackets[1][1])
    if kinds.startswith("[][") and kinds.count("[") == kinds.count("]"):
        raise UserError(f"{name} {_shown(text)}: {kinds.count('[')} words are marked; mark one")
    raise UserError(
        f"{name} {_shown(text)}: brackets do not match; mark one [word], and write \\[ or \\] for a bracket of the text"
    )


def covered_row(
    marked: MarkedText,
    starts: Sequence[int] | Int32Array,
    ends: Sequence[int] | Int32Array,
    *,
    name: str = "query",
    what: str = "word",
) -> int:
    """Return the number of the first word that the brackets cover, in part or whole.

    Args:
        marked: The query.
        starts: The first character of each word of its text.
        ends: The character after the last one of each.
        name: The name of the query in messages.
        what: What the words are, for messages: `word` or `token`.

    Raises:
        UserError: The brackets cover no word, or several.
    """
    if len(marked.marked.split()) > 1:
        raise UserError(f"{name} {_shown(marked.bracketed)}: the brackets cover several words; put them around one")
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if marked.start < marked.end and start < marked.end and marked.start < end:
            return number
    raise UserError(f"{name} {_shown(marked.bracketed)}: the brackets cover no {what}; put them around one")


def _split(text: str) -> tuple[str, list[tuple[str, int]]]:
    """Return the text without brackets and escapes, and each bracket with its place in that text."""
    plain: list[str] = []
    brackets: list[tuple[str, int]] = []
    at = 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text) and text[at + 1] in _ESCAPED:
            at += 1
            plain.append(text[at])
        elif text[at] in "[]":
            brackets.append((text[at], len(plain)))
        else:
            plain.append(text[at])
        at += 1
    return "".join(plain), brackets


def _shown(text: str) -> str:
    """Show the beginning of a query."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
