"""Plots of measures of layers, lines against the layers and matrices of all pairs of layers, and their page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertfeat.display import html_table
from bertfeat.plots.charts import COLORS, MARKERS, as_image, new_figure, one_line, style
from bertfeat.plots.pages import render_page
from bertfeat.plots.tables import write_report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
_MAX_NAMED = 16


@dataclass(frozen=True, slots=True)
class Panel:
    """A measure of layers: lines of (number among `labels`, value) per store, or a matrix of pairs of layers."""

    title: str
    labels: Sequence[str]
    lines: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    matrix: Sequence[Sequence[float | None]] | None = None

    @property
    def is_wide(self) -> bool:
        """Whether it is a matrix of many layers."""
        return self.matrix is not None and len(self.labels) > _MAX_NAMED


def draw_panel(panel: Panel) -> Axes:
    """Draw one panel in a new figure, and return its axes."""
    with style():
        axes = new_figure(6.2, 4.6).add_subplot()
        _draw(axes, panel, panel.title)
    return axes


def plot_panels(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels side by side, and write them as PNG."""
    n_lines = -(-len(panels) // _COLUMNS)
    with style():
        figure = new_figure(4.6 * _COLUMNS, 3.6 * n_lines)
        for i, panel in enumerate(panels):
            _draw(figure.add_subplot(n_lines, _COLUMNS, i + 1), panel, panel.title)
        write_report(path, as_image(figure, "png"))


def layer_page(
    content: Mapping[str, Any],
    panels: Mapping[str, Panel],
    table: tuple[Sequence[str], Sequence[Sequence[object]]],
) -> str:
    """Return a comparison, the `content` of layers.json, as an HTML file that loads nothing, with texts escaped."""
    # The words of the highest layer that has some.
    moved = [(name, words) for name, words in content["moved"].items() if words][-1:]
    values = {
        "figures": [(name, panel, _svg(panel)) for name, panel in panels.items()],
        "moved": [
            (name, html_table("", list(words[0]), [list(one.values()) for one in words])) for name, words in moved
        ],
        "table": html_table("", *table),
    }
    return render_page(Path(__file__).with_name("layers.html"), {**content, **values})


def _svg(panel: Panel) -> str:
    """Return a plot for the page as the base64 of SVG, in which characters are shapes."""
    with style():
        figure = new_figure(6.2, 5.2) if panel.is_wide else new_figure(3.3, 2.5)
        _draw(figure.add_subplot(), panel)
        return base64.b64encode(as_image(figure, "svg")).decode()


def _draw(axes: Axes, panel: Panel, title: str = "") -> None:
    axes.set_title(title, loc="left", fontsize=10)
    shown = range(0, len(panel.labels), -(-len(panel.labels) // _MAX_NAMED))
    names = [one_line(panel.labels[i]) for i in shown]
    # Long names and many of them would cover each other.
    axes.set_xticks(shown, names, rotation=90 if max(map(len, names)) > 2 else 0, fontsize=8)
    if panel.matrix is not None:
        image = axes.imshow(np.array(panel.matrix, float), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set_yticks(shown, names, fontsize=8)
        axes.figure.colorbar(image, ax=axes, shrink=0.8).outline.set_visible(False)
        return
    axes.grid(axis="y")
    axes.set_xlim(-0.5, len(panel.labels) - 0.5)
    axes.set_xlabel("layer (0: embeddings)")
    for i, (name, points) in enumerate(panel.lines.items()):
        look = {"color": COLORS[i], "marker": MARKERS[i], "markersize": 5, "linewidth": 1.8}
        axes.plot(*zip(*points, strict=True), label=name, **look)
    if len(panel.lines) > 1:
        axes.legend(frameon=False)
