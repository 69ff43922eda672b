"""Parameters of a search in a URL: read, bounded, turned into a condition, and written back into links."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import polars as pl

from bertfeat.choices import Level
from bertfeat.errors import UserError, did_you_mean
from bertfeat.levels import LEVELS
from bertfeat.store.reader import Store, row_columns

MAX_QUERY, MAX_VALUE, MAX_HITS = 2000, 200, 100
WORDS = {"": "all words", "same": "only the same word", "other": "only other words"}
_DEFAULT_HITS = 10
_FACET = "f."
_NAMES = ("q", "like", "k", "words")
# A column with more values gets a box to write into.
_MAX_CHOICES = 50
# Every number of a column; NaN and infinity are not compared.
_MOST = {True: 2**63 - 1, False: 1.7976931348623157e308}


@dataclass(frozen=True, slots=True)
class Facet:
    """A column of texts, numbers or booleans that hits can be filtered by; `choices` are its texts, if they are few."""

    name: str
    dtype: pl.DataType
    choices: tuple[str, ...]

    @property
    def is_number(self) -> bool:
        """Whether the column takes ranges."""
        return self.dtype.is_numeric()

    def condition(self, value: str) -> str:
        """Return the SQL condition that a row has a value, or a number in a range such as `3..9` or `3..`.

        Raises:
            UserError: The column cannot hold the value.
        """
        column = '"' + self.name.replace('"', '""') + '"'
        if self.is_number:
            most = _MOST[self.dtype.is_integer()]
            first, dots, last = value.partition("..")
            low = self._number(first) if first.strip() or not dots else -most
            high = self._number(last) if last.strip() else most if dots else low
            return f"{column} BETWEEN {low!r} AND {high!r}"
        if self.dtype == pl.Boolean and value not in ("true", "false"):
            raise UserError(f"filter {self.name}: {value!r:.60} is not true or false")
        literal = value if self.dtype == pl.Boolean else "'" + value.replace("'", "''") + "'"
        return f"{column} = {literal}"

    def _number(self, text: str) -> int | float:
        try:
            number = int(text) if self.dtype.is_integer() else float(text)
            if self.dtype == pl.Float32:
                # The one of the column that is nearest to 0.1 is another number than 0.1.
                number = float(pl.Series([number], dtype=pl.Float32)[0])
        except ValueError:
            number = math.nan
        if not abs(number) <= _MOST[self.dtype.is_integer()]:
            raise UserError(f"filter {self.name}: {text!r:.60} is not a number of the column; write 3, 3..9 or 3..")
        return number


def find_facets(store: Store, level: Level) -> dict[str, Facet]:
    """Return the facets of a level by name: its columns, and those of its documents, that came from the corpus."""
    made = {column.name for known in (level, Level.SENTENCE) for column in LEVELS[known].columns}
    own, others = row_columns(store, level)
    facets = {}
    for place, names in ((level, own), (Level.SENTENCE, others)):
        for name in (name for name in names if name not in made):
            values = store.polars(place, [name])[name]
            if values.dtype in (pl.String, pl.Boolean) or values.dtype.is_numeric():
                facets[name] = Facet(name, values.dtype, _choices(values))
    return facets


def _choices(values: pl.Series) -> tuple[str, ...]:
    if values.dtype == pl.Boolean:
        return ("false", "true")
    distinct = values.drop_nulls().unique()
    if values.dtype.is_numeric() or len(distinct) > _MAX_CHOICES:
        return ()
    texts: list[str] = distinct.sort().to_list()
    # An empty choice is that of no filter, and a form changes the ends of lines.
    is_short = all(0 < len(text) <= MAX_VALUE and not {"\n", "\r"} & set(text) for text in texts)
    return tuple(texts) if is_short else ()


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A search for the text `q`, or for what is most similar to the row `like`; `filters` are values of facets."""

    q: str = ""
    like: int | None = None
    k: int = _DEFAULT_HITS
    words: str = ""
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
                hint = did_you_mean(name[:MAX_VALUE], known) or f"parameters are {', '.join(known)}"
                raise UserError(f"no parameter {name!r:.60}; {hint}")
            if name in given:
                raise UserError(f"parameter {name} is given twice; write it once")
            given[name] = value.strip() if name == "q" else value
            limit = MAX_QUERY if name == "q" else MAX_VALUE
            if len(given[name]) > limit:
                raise UserError(f"{name} has {len(given[name]):,} characters; write {limit:,} or fewer")
        given = {name: value for name, value in given.items() if value}
        if given.get("words", "") not in WORDS:
            raise UserError(f"words {given['words']!r:.60} is not same or other")
        return cls(
            q=given.get("q", ""),
            # The form of a page of neighbours has both when a text is written into its box.
            like=_number("like", given["like"], 0, 2**62) if "like" in given and "q" not in given else None,
            k=_number("k", given.get("k", str(_DEFAULT_HITS)), 1, MAX_HITS),
            words=given.get("words", ""),
            filters={name.removeprefix(_FACET): value for name, value in given.items() if name.startswith(_FACET)},
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing is searched for."""
        return not self.q and self.like is None

    def condition(self, facets: Mapping[str, Facet]) -> str | None:
        """Return the SQL condition of all filters, None without any; raise a UserError if a value cannot be used."""
        return " AND ".join(facets[name].condition(value) for name, value in self.filters.items()) or None

    def like_row(self, row: int) -> str:
        """Return the link to what is most similar to a row, with the same filters."""
        kept = {_FACET + name: value for name, value in self.filters.items()} | {"words": self.words}
        kept |= {"k": str(self.k) if self.k != _DEFAULT_HITS else ""}
        return "/?" + urlencode({"like": row, **{name: value for name, value in kept.items() if value}})


def _number(name: str, value: str, lowest: int, highest: int) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 20 and lowest <= int(value) <= highest):
        what = f"a whole number from {lowest} to {highest}" if name == "k" else "the number of a row"
        raise UserError(f"{name} {value!r:.60} is not {what}")
    return int(value)
