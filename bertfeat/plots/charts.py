"""Plots as PNG and SVG, by matplotlib's objects in its default style: the same figure gives the same bytes."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertfeat.display import first_columns, printable
from bertfeat.errors import UserError, require
from bertfeat.plots.tables import write_report
from bertfeat.records import Float64Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, which people with any color vision can distinguish, without yellow, too pale for lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_GRAY = "#555555"
_STYLE = {
    "svg.hashsalt": "bertfeat",
    # A label with two dollar signs is not a formula.
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _GRAY,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
}
_DPI = 160
# The first font comes with matplotlib; the others, if installed, have scripts that it lacks.
_FONTS = ("DejaVu Sans", "Noto Sans", "Noto Sans CJK JP", "Arial Unicode MS", "Microsoft YaHei", "Malgun Gothic")
# Confusion matrices show numbers up to the first number of labels, and name at most the second number of labels.
_MAX_NUMBERED, _MAX_NAMED = 20, 160
# Height of a line in a legend.
_LABEL_INCHES = 0.22


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in matplotlib's default style and ours; a character that no installed font has becomes a box."""
    require("matplotlib", what="plots need")
    import matplotlib.style
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    fonts = {"font.family": [font for font in _FONTS if font in installed]}
    with matplotlib.style.context(_STYLE | fonts, after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        yield


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """Return an empty figure that makes room for its labels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def save(axes: Axes, out_stem: str | Path) -> tuple[Path, Path]:
    """Write the figure of axes to `out_stem`.png and `out_stem`.svg, each whole or not at all; return both paths."""
    with style():
        png, svg = as_image(axes.figure, "png"), as_image(axes.figure, "svg")
    return write_report(f"{out_stem}.png", png), write_report(f"{out_stem}.svg", svg)


def as_image(figure: Figure, kind: str) -> bytes:
    """Return a figure as the bytes of a png or an svg; call it in `style`."""
    options: dict[str, Any] = {"dpi": _DPI} if kind == "png" else {"metadata": {"Date": None}}
    data = io.BytesIO()
    figure.savefig(data, format=kind, **options)
    return data.getvalue()


def one_line(label: object) -> str:
    """Return a label as text of one line, cut to 60 columns."""
    return first_columns(printable(str(label)), 60)


@dataclass(frozen=True, slots=True)
class ScoreBar:
    """A score, and the ends of its error bar where it has one."""

    score: float
    low: float | None = None
    high: float | None = None


def draw_layer_scores(
    lines: Mapping[str, Mapping[int, ScoreBar]],
    combinations: Mapping[str, ScoreBar],
    *,
    metric: str,
    bars: str = "",
    title: str = "",
    is_curve: bool = False,
) -> Axes:
    """Draw scores by layer or, in a learning curve, by number of documents: named lines, and dashed combinations.

    `metric` names the score ("entity F1"); `bars` says what the error bars are ("standard deviation over 5 seeds").
    """
    n_lines = len(lines) - ("" in lines)
    n_named = n_lines + len(combinations)
    with style():
        axes = new_figure(7.2 if n_named else 6.2, max(4.2, 1.6 + _LABEL_INCHES * n_named)).add_subplot()
        axes.grid(axis="y")
        look: dict[str, Any] = {"markersize": 5, "linewidth": 1.8, "zorder": 3}
        for i, (name, line) in enumerate(lines.items()):
            look |= {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)], "label": one_line(name)}
            axes.plot(sorted(line), [line[number].score for number in sorted(line)], **look)
            for number, bar in line.items():
                _draw_bar(axes, number, bar, look["color"])
        numbers = sorted({number for line in lines.values() for number in line})
        if is_curve:
            axes.set_xscale("log")
            axes.minorticks_off()
        ticks = numbers[:: 2 if len(numbers) > 16 else 1]
        axes.set_xticks(ticks, [f"{number:,}" for number in ticks])
        _draw_combinations(axes, numbers, combinations, min(max(1, n_lines), 4))
        what = "documents to learn from" if is_curve else "layer (0: embeddings)"
        axes.set(xlabel=what if numbers else "", ylabel=metric)
        axes.set_title(title, loc="left")
        if n_named:
            axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
        if bars:
            axes.figure.supxlabel(f"bars: {bars}", x=0.99, ha="right", fontsize=8, color=_GRAY)
        return axes


def draw_confusion(labels: Sequence[object], matrix: npt.ArrayLike) -> Axes:
    """Draw a confusion matrix, shaded by the share of each true label's rows.

    Args:
        labels: The names (n_labels,).
        matrix: Counts (n_labels, n_labels): true labels in rows, predicted ones in columns.

    Raises:
        UserError: Labels and matrix do not match, or matplotlib is not installed.
    """
    counts, n_labels = np.asarray(matrix), len(labels)
    if not n_labels or counts.shape != (n_labels, n_labels):
        raise UserError(f"a confusion matrix of shape {counts.shape} does not match {n_labels} labels")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(20.0, max(3.4, 0.42 * n_labels if n_labels <= _MAX_NUMBERED else 0.16 * n_labels))
    with style():
        axes = new_figure(side + 2.2, side + 1.4).add_subplot()
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        _name_ticks(axes, [one_line(label) for label in labels])
        if n_labels <= _MAX_NUMBERED:
            for row, column in zip(*np.nonzero(counts), strict=True):
                color = "white" if shares[row, column] > 0.55 else "#222222"
                axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=8, color=color)
        axes.set(xlabel="predicted", ylabel="true")
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02, label="share of the true label's rows")
        bar.outline.set_visible(False)
        return axes


def plot_points(
    points: npt.ArrayLike,
    groups: Sequence[object],
    labels: Sequence[str] | None,
    out_stem: str | Path,
    *,
    title: str = "",
    axis_names: tuple[str, str] = ("", ""),
) -> tuple[Path, Path]:
    """Draw points in the plane, each group with a color and marker of its own; write `out_stem`.png and .svg.

    Args:
        points: float (n, 2).
        groups: The group of each point, (n,), such as the sense of a word.
        labels: A short text beside each point, (n,), or ""; a text that would cover another one is left out.
        out_stem: Path of the files without their endings.
        title: A title.
        axis_names: The names of the axes.

    Raises:
        UserError: There are no points, one is not finite, there are too many groups, matplotlib is not installed, or
            there is no such folder.
    """
    places = np.asarray(points, dtype=np.float64)
    names = [one_line(group) for group in groups]
    if places.ndim != 2 or places.shape[1] != 2 or not len(places) or not np.isfinite(places).all():
        raise UserError(f"points of shape {places.shape}: pass one or more as (n, 2), all of them finite")
    n_groups, max_groups = len(set(names)), len(COLORS) * len(MARKERS)
    if n_groups > max_groups:
        raise UserError(f"{n_groups} groups are more than the {max_groups} that colors and markers can show")
    with style():
        axes = new_figure(7.2, 5.0).add_subplot()
        axes.grid()
        # 7 colors and 8 markers have no common divisor: they make 56 different pairs.
        look: dict[str, Any] = {"s": 34, "edgecolors": "white", "linewidths": 0.6, "zorder": 2}
        for i, name in enumerate(sorted(set(names))):
            chosen = places[np.array(names) == name]
            look |= {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)]}
            axes.scatter(*chosen.T, label=f"{name} ({len(chosen)})", **look)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, ncols=math.ceil(n_groups / 20))
        axes.set(xlabel=axis_names[0], ylabel=axis_names[1])
        axes.set_title(title, loc="left")
        axes.margins(0.08)
        if labels is not None:
            _label_points(axes, places, [one_line(label) for label in labels])
        return save(axes, out_stem)


def plot_lines(
    lines: Mapping[str, Sequence[tuple[float, float]]], out_stem: str | Path, *, axis_names: tuple[str, str]
) -> tuple[Path, Path]:
    """Draw named lines through points (x, y), such as losses against steps; write `out_stem`.png and .svg.

    Raises:
        UserError: There are no points, one is not finite, matplotlib is not installed, or there is no such folder.
    """
    points = [point for line in lines.values() for point in line]
    if not points or not np.isfinite(points).all():
        raise UserError("a plot of lines needs points, all of them finite")
    with style():
        axes = new_figure(6.2, 4.2).add_subplot()
        axes.grid(axis="y")
        for i, (name, line) in enumerate(lines.items()):
            look = {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)]}
            axes.plot(*zip(*line, strict=True), label=one_line(name), markersize=5, linewidth=1.8, **look)
        axes.set(xlabel=axis_names[0], ylabel=axis_names[1])
        axes.legend(frameon=False)
        return save(axes, out_stem)


def _draw_bar(axes: Axes, x: float, bar: ScoreBar, color: str) -> None:
    if bar.low is not None and bar.high is not None:
        # Both ends of an interval may be on one side of the score, which errorbar refuses.
        ends = [bar.low, bar.high]
        axes.plot([x, x], ends, color=color, marker="_", markersize=7, linewidth=1.2, solid_capstyle="butt", zorder=2)


def _draw_combinations(axes: Axes, numbers: list[int], combinations: Mapping[str, ScoreBar], n_lines: int) -> None:
    """Draw a dashed line for each combination, with its bar behind the last layer; the legend lists the best first.

    The first `n_lines` colors are those of other lines.
    """
    if not combinations:
        return
    first, last = (numbers[0], numbers[-1]) if numbers else (0, 1)
    step = max(0.3, (last - first) / 36)
    axes.set_xlim(first - 0.5, last + step * (len(combinations) + 1.5))
    for i, (name, bar) in enumerate(sorted(combinations.items(), key=lambda item: -item[1].score)):
        x, color = last + step * (i + 1.25), COLORS[n_lines + i % (len(COLORS) - n_lines)]
        axes.axhline(bar.score, color=color, linestyle="--", linewidth=1.2, zorder=1)
        label = f"{one_line(name)}  {bar.score:.3f}"
        marker = MARKERS[n_lines + i % (len(MARKERS) - n_lines)]
        axes.plot([x], [bar.score], color=color, linestyle="--", marker=marker, markersize=5, label=label)
        _draw_bar(axes, x, bar, color)


def _name_ticks(axes: Axes, names: list[str]) -> None:
    step = math.ceil(len(names) / _MAX_NAMED)
    shown = range(0, len(names), step)
    is_small = len(names) <= _MAX_NUMBERED
    size, rotation = 9 if is_small else 7, 0 if is_small and max(map(len, names)) <= 5 else 90
    axes.set_xticks(shown, [names[i] for i in shown], rotation=rotation, fontsize=size)
    axes.set_yticks(shown, [names[i] for i in shown], fontsize=size)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _label_points(axes: Axes, places: Float64Array, labels: Sequence[str]) -> None:
    """Write labels beside their points (n, 2), towards the middle; a label that would cover another is left out."""
    # The size of texts is known only after the layout.
    axes.figure.draw_without_rendering()
    middle = sum(axes.get_xlim()) / 2
    # Points remain faintly visible behind a label.
    patch = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
    style = {"textcoords": "offset points", "va": "center", "fontsize": 8, "zorder": 4, "bbox": patch}
    taken: list[Any] = []
    for (x, y), label in zip(places, labels, strict=True):
        if label:
            offset, side = (-6, "right") if x > middle else (6, "left")
            text = axes.annotate(label, (x, y), (offset, 0), ha=side, **style)
            box = text.get_window_extent()
            if any(box.overlaps(other) for other in taken):
                text.remove()
            else:
                taken.append(box)
