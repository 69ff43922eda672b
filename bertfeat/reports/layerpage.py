"""Page of a comparison of layers: one HTML file that loads nothing, for narrow and wide, light and dark screens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bertfeat.display import html_table, printable
from bertfeat.reports.layerplots import Panel

# Lines are drawn in a box of this size, with this room for numbers at the left and for layers below.
_WIDTH, _HEIGHT, _LEFT, _BELOW, _EDGE = 320, 170, 68, 22, 10
_MAX_NAMED = 14
_LINE = 15


def layer_page(
    content: Mapping[str, Any], panels: Sequence[Panel], table: tuple[Sequence[str], Sequence[Sequence[object]]]
) -> str:
    """Return the page as HTML; all texts of the stores are escaped.

    Args:
        content: What layers.json holds.
        panels: The figures.
        table: The header and the cells of the table below them.
    """
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    # The words of the highest layer that has some.
    moved = [(name, words) for name, words in content["moved"].items() if words][-1:]
    html: str = pages.get_template("layers.html").render(
        content,
        drawings=[(panel, _drawing(panel)) for panel in panels],
        moved=[
            (name, html_table("", list(words[0]), [list(word.values()) for word in words])) for name, words in moved
        ],
        table=html_table("", *table),
    )
    return html


def _drawing(panel: Panel) -> dict[str, Any]:
    """Return the places of what a panel shows, in units of its drawing."""
    n, matrix = len(panel.labels), panel.matrix
    if matrix is not None:
        left = 12 + 8 * max(map(len, panel.labels))
        size = (_WIDTH - left) / n
        return {
            "left": left,
            "size": size,
            "names": range(0, n, math.ceil(_LINE / size)),
            "wide": n > _MAX_NAMED,
        }
    values = [value for line in panel.lines.values() for _, value in line]
    low, high = min(0.0, *values), max(0.0, *values) or 1.0
    width, height = (_WIDTH - _LEFT - _EDGE) / max(1, n - 1), _HEIGHT - _BELOW - _EDGE

    def at(place: int, value: float) -> tuple[float, float]:
        return round(_LEFT + place * width, 1), round(_EDGE + height * (high - value) / (high - low), 1)

    return {
        "wide": False,
        "left": _LEFT,
        "right": _WIDTH - _EDGE,
        "marks": [
            (at(0, mark)[1], f"{mark:.2g}" if abs(mark) < 1 else f"{mark:.3g}")
            for mark in (low, (low + high) / 2, high)
        ],
        "names": [(at(place, 0)[0], panel.labels[place]) for place in range(0, n, -(-n // _MAX_NAMED))],
        "lines": {
            side: [(*at(place, value), panel.labels[place], value) for place, value in line]
            for side, line in panel.lines.items()
        },
    }
