"""Where labels stand in a plot, so that they cover neither one another nor, where it can be helped, what they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class _Side(NamedTuple):
    """A place of a label: its offset from the point, in 1/72 inch, and the side of the text that lies there."""

    offset: tuple[float, float]
    horizontal: str
    vertical: str


_SIDES = (
    _Side((6, 0), "left", "center"),
    _Side((-6, 0), "right", "center"),
    _Side((0, 6), "center", "bottom"),
    _Side((0, -6), "center", "top"),
)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return ascending heights moved apart so that `gap` lies between neighbours, within 0 to 1 where they fit.

    Heights that are too close move together, to both sides of their mean.
    """
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _bottom(groups[-1], gap) - _top(groups[-2], gap) < gap:
            last = groups.pop()
            groups[-1].extend(last)
    placed = [_bottom(group, gap) + gap * i for group in groups for i in range(len(group))]
    steps = gap * np.arange(len(placed))
    below_one = np.minimum(placed, 1 - steps[::-1])
    return [float(height) for height in np.maximum(below_one, steps)]


def label_points(figure: Figure, axes: Axes, places: npt.NDArray[np.float64], labels: Sequence[str]) -> None:
    """Write labels beside their points (n, 2) in the axes, each where it covers fewest points and no other label.

    One that finds no such place is left out, and so is an empty one.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    # The layout must stand before texts can be measured.
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    pixels = axes.transData.transform(places)
    # Points show through faintly behind a label.
    patch = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
    taken: list[Any] = []
    for (x, y), label in zip(places, labels, strict=True):
        if not label:
            continue
        text = axes.annotate(label, (x, y), (0, 0), textcoords="offset points", fontsize=8, zorder=4, bbox=patch)
        free: list[tuple[int, int, _Side, Any]] = []
        for side in _SIDES:
            _put(text, side)
            box = text.get_window_extent(renderer)
            if _is_within(box, axes.bbox) and not any(box.overlaps(other) for other in taken):
                free.append((_n_covered(box, pixels), len(free), side, box))
        if not free:
            text.remove()
            continue
        _, _, best, box = min(free, key=lambda place: place[:2])
        _put(text, best)
        taken.append(box)


def _bottom(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def _top(group: Sequence[float], gap: float) -> float:
    return _bottom(group, gap) + gap * (len(group) - 1)


def _put(text: Any, side: _Side) -> None:
    text.set_position(side.offset)
    text.set_horizontalalignment(side.horizontal)
    text.set_verticalalignment(side.vertical)


def _is_within(box: Any, frame: Any) -> bool:
    return bool(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1)


def _n_covered(box: Any, pixels: npt.NDArray[np.float64]) -> int:
    x, y = pixels[:, 0], pixels[:, 1]
    return int(((box.x0 <= x) & (x <= box.x1) & (box.y0 <= y) & (y <= box.y1)).sum())
