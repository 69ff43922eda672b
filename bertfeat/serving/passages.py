"""Passages: the part of a text that has most words of a query, with these words marked."""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

from bertfeat.display import printable

_WIDTH = 480
_BEFORE = 80
_MIN_WORD = 3
_MAX_MATCHES = 200
# Characters of a text that are looked at; a document may have millions.
_MAX_SEEN = 200_000
_WORD = re.compile(r"\w+")


class Piece(NamedTuple):
    """A stretch of a text on one line, and whether it is marked."""

    text: str
    is_marked: bool = False


def passage(text: str, query: str) -> list[Piece]:
    """Return the passage of a text that has most distinct words of a query; its beginning if it has none.

    Examples:
        >>> passage("He sat on the bank.", "Which bank?")
        [Piece(text='He sat on the ', is_marked=False), Piece(text='bank', is_marked=True), \
Piece(text='.', is_marked=False)]
    """
    wanted = {word.casefold() for word in _WORD.findall(query) if len(word) >= _MIN_WORD}
    seen = _WORD.finditer(text, 0, _MAX_SEEN if wanted else 0)
    matches = list(itertools.islice((found for found in seen if found[0].casefold() in wanted), _MAX_MATCHES))
    start = _start(text, matches)
    end = len(text) if len(text) - start <= _WIDTH else _space_before(text, start + _WIDTH)
    pieces, at = [Piece("…" if start else "")], start
    for match in matches:
        if at <= match.start() and match.end() <= end:
            pieces += [Piece(text[at : match.start()]), Piece(match[0], True)]
            at = match.end()
    pieces += [Piece(text[at:end]), Piece("…" if end < len(text) else "")]
    return [Piece(printable(piece.text), piece.is_marked) for piece in pieces if piece.text]


def _start(text: str, matches: list[re.Match[str]]) -> int:
    """Return where the best passage begins: in the first place where most words follow."""
    if len(text) <= _WIDTH or not matches:
        return 0

    def n_words(first: int) -> int:
        limit = matches[first].start() + _WIDTH - _BEFORE
        near = itertools.takewhile(lambda match: match.end() <= limit, matches[first:])
        return len({match[0].casefold() for match in near})

    # The first of equals.
    best = max(range(len(matches)), key=n_words)
    at = matches[best].start() - _BEFORE
    return _space_before(text, at) if at > 0 else 0


def _space_before(text: str, at: int) -> int:
    """Return the place after the last space before `at`, or `at` itself inside a very long word."""
    return text.rfind(" ", max(0, at - 40), at) + 1 or at
