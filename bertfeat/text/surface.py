"""Surface: the characters of the original text that each token stands for.

The offsets of the tokenizers library include the space before a word, give a character to a prefix that has none, and
leave out characters that the normalizer removed or merged. The offsets made here are exactly the token's characters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from bertfeat.ragged import starts_of
from bertfeat.records import BoolArray, Int32Array, IntArray

# The last space of Unicode is U+3000; the last entry stands for all characters after it.
_IS_SPACE = np.array([chr(code).isspace() for code in range(0x3002)])
# The characters for a space in the pieces of SentencePiece and byte-level tokenizers.
SPACE_PIECES = "▁Ġ"


def find_surface(
    texts: list[str],
    text: IntArray,
    start: Int32Array,
    end: Int32Array,
    *,
    is_prefix: BoolArray,
    merges: Callable[[str], bool],
) -> BoolArray:
    """Correct the offsets of tokens, and find the tokens that are whitespace only.

    Args:
        texts: The texts.
        text: int64 (n_tokens,), the number of each token's text.
        start: int32 (n_tokens,), each token's first character in its text, corrected in place.
        end: int32 (n_tokens,), the character after its last one, corrected in place.
        is_prefix: bool (n_tokens,), whether the token's piece is only the character for a space.
        merges: Tells whether the normalizer joins two characters.

    Returns:
        bool (n_tokens,), whether a token is whitespace only. It keeps its whitespace; without characters it is empty.
    """
    joined = "".join(texts)
    if not joined:
        return np.ones(len(start), dtype=np.bool_)
    text_starts = starts_of(np.array([len(t) for t in texts], dtype=np.int64))[:-1]
    origin = text_starts[text]
    codes, is_blank = _codes(joined), find_spaces(joined)
    first, last = start + origin, end + origin
    # Tokenizers put the character for a space before a text or word that does not start with one: it is empty.
    at = np.flatnonzero(is_prefix & (first < last))
    is_written = np.isin(codes[first[at]], [ord(piece) for piece in SPACE_PIECES])
    at = at[~is_blank[first[at]] & ~is_written]
    last[at] = first[at]
    blank_tokens = _trim(is_blank, first, last)
    size = len(codes) + 1
    n_covering = np.cumsum(np.bincount(first, minlength=size) - np.bincount(last, minlength=size))
    loose = np.flatnonzero((n_covering[:-1] == 0) & ~is_blank)
    if len(loose):
        _add_loose(joined, loose, text_starts, first, last, merges)
    start[:], end[:] = first - origin, last - origin
    return blank_tokens


def find_spaces(text: str) -> BoolArray:
    """Return bool (n_characters,), whether a character is whitespace."""
    is_space: BoolArray = _IS_SPACE[np.minimum(_codes(text), len(_IS_SPACE) - 1)]
    return is_space


def _codes(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def _trim(is_blank: BoolArray, first: IntArray, last: IntArray) -> BoolArray:
    """Remove whitespace at both ends of each token, in place; return which tokens are whitespace only."""
    has_none: BoolArray = first == last
    in_text = np.minimum(first, len(is_blank) - 1)
    touched = np.flatnonzero(~has_none & (is_blank[in_text] | is_blank[last - 1]))
    if not len(touched):
        return has_none
    position = np.arange(len(is_blank))
    next_ink = np.minimum.accumulate(np.where(is_blank, len(is_blank), position)[::-1])[::-1]
    last_ink = np.maximum.accumulate(np.where(is_blank, -1, position))
    new_first, new_last = next_ink[first[touched]], last_ink[last[touched] - 1] + 1
    has_ink = new_first < new_last
    first[touched[has_ink]], last[touched[has_ink]] = new_first[has_ink], new_last[has_ink]
    has_none[touched[~has_ink]] = True
    return has_none


def _add_loose(
    text: str, loose: IntArray, text_starts: IntArray, first: IntArray, last: IntArray, merges: Callable[[str], bool]
) -> None:
    """Add characters `loose`, which the normalizer removed or merged with another, to the tokens beside them.

    These are combining marks after a token (the accent of a decomposed letter), and the rest of a merge (the other
    quote of `''`, which ALBERT reads as `"`). Control characters and the like belong to no token.
    """
    is_text_start, is_start = (np.zeros(len(text) + 1, dtype=np.bool_) for _ in range(2))
    is_text_start[text_starts] = True
    is_start[first[first < last]] = True
    new_start, new_end = np.arange(len(text) + 1), np.arange(len(text) + 1)
    for at in loose[::-1].tolist():
        if is_start[at + 1] and not is_text_start[at + 1] and merges(text[at : at + 2]):
            new_start[at + 1] = at
        elif not is_text_start[at] and _is_mark(text[at]):
            new_end[at] = new_end[at + 1]
    is_empty = first == last
    first[:] = new_start[first]
    last[:] = np.where(is_empty, first, new_end[last])


@lru_cache(maxsize=4096)
def _is_mark(char: str) -> bool:
    """Return whether a character joins the previous one: a mark, a form of one (U+FF9E), or a Hangul vowel or final."""
    return "\u1160" <= char <= "\u11ff" or unicodedata.category(unicodedata.normalize("NFKD", char)[0]).startswith("M")
