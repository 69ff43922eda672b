"""Plots of measures of layers: lines against the layers, and matrices of all pairs of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bertfeat.reports.drawing import COLOURS, MARKERS, new_figure, one_line, save_as, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
_MAX_NAMED = 16


@dataclass(frozen=True, slots=True)
class Panel:
    """One measure of layers.

    Attributes:
        title: Its title.
        meaning: The sentence that explains it.
        labels: The layers.
        lines: For each store, points (number of the layer, value).
        matrix: Values of pairs of layers (n_labels, n_labels), None where undefined; drawn in place of lines.
    """

    title: str
    meaning: str
    labels: Sequence[str]
    lines: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    matrix: Sequence[Sequence[float | None]] | None = None


def draw_panel(panel: Panel) -> Axes:
    """Draw one panel in a new figure, and return its axes.

    Raises:
        UserError: matplotlib is not installed.
    """
    with style():
        axes = new_figure(6.2, 4.6).add_subplot()
        _draw(axes, panel)
    return axes


def plot_panels(panels: Sequence[Panel], out_stem: str | Path) -> Path:
    """Draw panels side by side; write `out_stem`.png and return the path.

    Raises:
        UserError: matplotlib is not installed, or there is no such folder.
    """
    n_lines = -(-len(panels) // _COLUMNS)
    with style():
        figure = new_figure(4.6 * _COLUMNS, 3.6 * n_lines)
        for i, panel in enumerate(panels):
            _draw(figure.add_subplot(n_lines, _COLUMNS, i + 1), panel)
        return save_as(figure, out_stem, "png")


def _draw(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", fontsize=10)
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
        look = {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 5, "linewidth": 1.8}
        axes.plot(*zip(*points, strict=True), label=name, **look)
    if len(panel.lines) > 1:
        axes.legend(frameon=False)
