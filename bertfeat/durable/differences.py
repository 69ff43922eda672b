"""Fields in which two records differ, in one wording for all comparisons of stored and requested settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_MAX_NAMED = 8
_MAX_CHARS = 80
_DIGEST = re.compile(r"[0-9a-f]{32,}")


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()
Fields = Mapping[str, tuple[object, object]]


def differing(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """Return the fields in which two records differ, sorted, with both values.

    Examples:
        >>> differing({"layers": [1], "seed": 0}, {"layers": [2], "seed": 0, "k": 3})
        {'k': ((absent), 3), 'layers': ([1], [2])}
    """
    pairs = {name: (old.get(name, ABSENT), new.get(name, ABSENT)) for name in sorted({*old, *new})}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def named(fields: Fields, form: str = "{} was {}, now {}") -> str:
    """Return differing fields as text, each in the words of `form`: its name, and both values."""
    return listed_texts([form.format(name, shown(old), shown(new)) for name, (old, new) in fields.items()])


def listed_texts(texts: Sequence[str]) -> str:
    """Return the first few texts as one, and how many more there are."""
    more = len(texts) - _MAX_NAMED
    return "; ".join(texts[:_MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")


def shown(value: object) -> str:
    """Return a value as messages show it: of a digest the beginning, of another long value both ends."""
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return f"{value[:12]}…"
    # A StrEnum member is shown as its text.
    text = repr(str(value) if isinstance(value, str) else list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS // 2]}…{text[-_MAX_CHARS // 2 :]}"
