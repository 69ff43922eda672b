"""Text for a terminal and a notebook: lines of facts, the cells of tables, and texts cut to a width in columns."""

from __future__ import annotations

import html
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_CUT = "…"
# Values that are shown on the line of their label are at most this long.
_INLINE = 100
# Names of mappings whose values all have one unit.
_UNITS = ("n_bytes", "seconds")
_SIZES = ("bytes", "max_memory")
# Joiners change the shape of the letters around them, and are needed; other format characters can hide or reverse text.
_JOINERS = "\u200c\u200d"
_UNPRINTABLE = "\ufffd"
# Cells that are aligned at the right: numbers, and texts that begin with one, such as "0.91 ± 0.01".
_NUMERIC = re.compile(r"[-+±]?\d")


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
    """Return the beginning of a printable text that fits `width` columns, with `…` if more follows."""
    if is_whole and display_width(text) <= width:
        return text
    return text[: _n_fitting(text, width - 1)] + _CUT if width else ""


def last_columns(text: str, width: int, *, is_whole: bool = True) -> str:
    """Return the end of a printable text that fits `width` columns, after `…` if more comes before."""
    if is_whole and display_width(text) <= width:
        return text
    at = len(text) - _n_fitting(text[::-1], width - 1)
    # Marks whose base was cut off are cut off too.
    while at < len(text) and _width(text[at]) == 0:
        at += 1
    return _CUT + text[at:] if width else ""


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: `1 shard`, `1,200 rows`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def human_bytes(n_bytes: float) -> str:
    """Return bytes with a decimal unit: `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} TB"


def human_time(seconds: float) -> str:
    """Return a duration in its two largest units: `1 h 2 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit_s, unit, rest_s, rest in ((3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit_s:
            return f"{whole // unit_s} {unit} {whole % unit_s // rest_s} {rest}"
    return f"{whole} s"


def facts(values: Mapping[str, Any], names: Iterable[str] | None = None, *, indent: str = "") -> str:
    """Return a line for each value, or for those named: its label and what it is; empty values are left out.

    The name of a value says its unit: `n_bytes`, `seconds`, `build_s`. What is too long for a line follows below.

    Examples:
        >>> print(facts({"store": "s", "n_bytes": 2048, "prompt": None, "rows": {"token": 1200, "word": 7}}))
        store  s
        bytes  2.0 kB
        rows   token 1,200, word 7
    """
    chosen = _filled({name: values.get(name) for name in names} if names else values)
    labels = {name: _label(str(name), chosen) for name in chosen}
    width = max(map(display_width, labels.values()), default=0)
    lines = [f"{indent}{padded(labels[name], width)}  {_fact(str(name), chosen[name], indent)}" for name in chosen]
    # The line of a label whose value is below has no more than the label.
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())


def _label(name: str, among: Mapping[str, Any]) -> str:
    bare = name.removeprefix("n_")
    return printable(name if bare in among else bare).replace("_", " ")


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value not in ("", [], (), {})}


def _fact(name: str, value: Any, indent: str) -> str:
    """Return the text of a value: on the line of its label, or as lines below it."""
    if isinstance(value, Mapping):
        filled = _filled(value)
        is_flat = not any(isinstance(one, Mapping) for one in filled.values())
        unit = name if name in _UNITS else ""
        text = ", ".join(f"{printable(str(key))} {_fact(unit or str(key), one, '')}" for key, one in filled.items())
        return text if is_flat and len(text) <= _INLINE else f"\n{facts(value, indent=indent + '  ')}"
    if isinstance(value, list | tuple):
        if any(isinstance(one, Mapping) for one in value):
            return _fact(name, {str(number): one for number, one in enumerate(value, start=1)}, indent)
        return ", ".join(_fact(name, one, indent) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return printable(str(value))
    if name.endswith(_SIZES):
        return human_bytes(value)
    if name == "seconds" or (name.endswith("_s") and not name.endswith("per_s")):
        return human_time(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def model_text(values: Mapping[str, Any]) -> str:
    """Return the name of a model with its revision, where it has one: `owner/model at 1f2e`."""
    revision = f" at {values['revision']}" if values.get("revision") else ""
    return f"{values['model']}{revision}"


def plain_rows(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> list[list[Any]]:
    """Return the rows of a table as Python values, NumPy's among them."""
    plain = [[cell.item() if hasattr(cell, "item") else cell for cell in row] for row in rows]
    for row in plain:
        if len(row) != len(headers):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(headers)} columns: {row!r}")
    return plain


def table_cells(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> tuple[list[list[str]], list[bool]]:
    """Return the cells of header and rows as text (fractions with four digits), and which columns are aligned right."""
    lines = [[_cell(cell) for cell in row] for row in (headers, *plain_rows(headers, rows))]
    is_right = []
    for column in zip(*lines[1:], strict=True):
        filled = [cell for cell in column if cell != "-"]
        is_right.append(bool(filled) and all(_NUMERIC.match(cell) for cell in filled))
    return lines, is_right or [False] * len(headers)


def html_table(title: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table for a notebook, with cells as on a terminal; all texts are escaped."""
    (header, *lines), is_right = table_cells(headers, rows)
    sides = [f'<td style="text-align:{"right" if right else "left"}">' for right in is_right]
    written = ["".join(f"<th>{html.escape(cell)}</th>" for cell in header)]
    written += [
        "".join(f"{side}{html.escape(cell)}</td>" for side, cell in zip(sides, line, strict=True)) for line in lines
    ]
    table = "".join(f"<tr>{line}</tr>" for line in written)
    return f"<p>{html.escape(printable(title))}</p><table>{table}</table>"


def _cell(cell: object) -> str:
    if cell is None:
        return "-"
    return printable(f"{cell:.4f}" if isinstance(cell, float) else str(cell))


def _n_fitting(text: str, width: int) -> int:
    """Return the number of characters that fit some columns."""
    return sum(columns <= width for columns in itertools.accumulate(map(_width, text)))


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
