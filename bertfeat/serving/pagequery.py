"""Parameters of a search in a URL: read, bounded, and written back into links."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from bertfeat.errors import UserError, did_you_mean
from bertfeat.serving.facets import Facet

MAX_QUERY, MAX_WHERE, MAX_HITS, MAX_COLUMNS = 2000, 500, 100, 20
_DEFAULT_HITS = 10
_FACET = "f."
WORDS = {"": "all words", "same": "only the same word", "other": "only other words"}
_NAMES = ("q", "like", "k", "where", "words", "columns")
# Texts and names in quotes, and of the rest only what a comparison needs.
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_COMPARISON = re.compile(r"[\w\s.,<>=!()-]*")
_BEFORE_BRACKET = re.compile(r"(\w+)\s*\(")
_OPERATORS = {"and", "or", "not", "in", "between", "like", "ilike"}


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A search.

    Attributes:
        q: The text, at word and token level with a word in brackets.
        like: The row of the level whose neighbours are asked for; None if there is a text.
        k: The number of hits.
        where: An SQL condition on columns.
        words: `same` or `other`: only occurrences of the word that is searched for, or none of them.
        columns: Further columns of hits.
        filters: Values of facets.
    """

    q: str = ""
    like: int | None = None
    k: int = _DEFAULT_HITS
    where: str = ""
    words: str = ""
    columns: tuple[str, ...] = ()
    filters: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, pairs: Iterable[tuple[str, str]], facets: Mapping[str, Facet]) -> PageQuery:
        """Read the parameters of a URL; empty ones count as not given.

        Raises:
            UserError: A parameter is unknown, given twice, too long, or has a value that cannot be used.
        """
        given: dict[str, str] = {}
        known = [*_NAMES, *(_FACET + name for name in facets)]
        for name, value in pairs:
            if name not in known:
                hint = did_you_mean(name, known) or f"parameters are {', '.join(known)}"
                raise UserError(f"no parameter {name!r:.60}; {hint}")
            if name in given:
                raise UserError(f"parameter {name} is given twice; write it once")
            given[name] = value.strip()
            limit = MAX_QUERY if name == "q" else MAX_WHERE
            if len(given[name]) > limit:
                raise UserError(f"{name} has {len(given[name]):,} characters; write {limit:,} or fewer")
        given = {name: value for name, value in given.items() if value}
        return cls(
            q=given.get("q", ""),
            # The form of a page of neighbours has both when a text is written into its box.
            like=_number("like", given["like"], 0, 2**62) if "like" in given and "q" not in given else None,
            k=_number("k", given.get("k", str(_DEFAULT_HITS)), 1, MAX_HITS),
            where=given.get("where", ""),
            words=_choice(given.get("words", "")),
            columns=_columns(given.get("columns", "")),
            filters={name.removeprefix(_FACET): value for name, value in given.items() if name.startswith(_FACET)},
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing is searched for."""
        return not self.q and self.like is None

    def condition(self, facets: Mapping[str, Facet]) -> str | None:
        """Return the SQL condition of `where` and all filters; None without any.

        Raises:
            UserError: `where` has more than comparisons, or a filter has a value that its column cannot hold.
        """
        parts = [facets[name].condition(value) for name, value in self.filters.items()]
        if self.where:
            check_comparison(self.where)
            # With parentheses around it, a condition that is wrong by itself would name them.
            parts.append(f"({self.where})" if parts else self.where)
        return " AND ".join(parts) or None

    def like_row(self, row: int) -> str:
        """Return the link to what is most similar to a row, with the same filters."""
        kept = {_FACET + name: value for name, value in self.filters.items()}
        kept |= {"where": self.where, "words": self.words, "columns": ",".join(self.columns)}
        kept |= {"k": str(self.k) if self.k != _DEFAULT_HITS else ""}
        return "/?" + urlencode({"like": row, **{name: value for name, value in kept.items() if value}})


def check_comparison(where: str) -> None:
    """Refuse a condition that does more than compare columns with values.

    Functions and operators that make longer texts could take any memory and time.

    Raises:
        UserError: The condition calls a function, or has another operator.

    Examples:
        >>> check_comparison("label IN ('a', 'b') AND n > 3")
    """
    rest = _QUOTED.sub("''", where)
    calls = [name for name in _BEFORE_BRACKET.findall(rest) if name.lower() not in _OPERATORS]
    plain = _COMPARISON.fullmatch(rest.replace("''", "")) and "--" not in rest and "\\" not in where
    if calls or not plain:
        what = f"calls {calls[0]}" if calls else "has more than comparisons"
        raise UserError(f"where {where!r:.60}: {what}; compare columns with values, as in label = 'x' AND n > 3")


def _number(name: str, value: str, lowest: int, highest: int) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 20 and lowest <= int(value) <= highest):
        what = f"a whole number from {lowest} to {highest}" if name == "k" else "the number of a row"
        raise UserError(f"{name} {value!r:.60} is not {what}")
    return int(value)


def _choice(value: str) -> str:
    if value not in WORDS:
        raise UserError(f"words {value!r:.60} is not same or other")
    return value


def _columns(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if len(names) > MAX_COLUMNS:
        raise UserError(f"columns has {len(names)} names; write {MAX_COLUMNS} or fewer")
    return names
