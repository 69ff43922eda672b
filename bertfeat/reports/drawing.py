"""Shared parts of all plots: style, colours, new figures and their files.

Figures are made with matplotlib's objects, never pyplot, and in its default style whatever the user's settings are. The
same figure gives the same SVG, byte for byte.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfeat.display import first_columns, printable
from bertfeat.errors import UserError
from bertfeat.reports.tables import write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colors, which people with any color vision can distinguish, without yellow, too pale for lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY = "#555555"
_STYLE = {
    "svg.hashsalt": "bertfeat",
    # A label with two dollar signs is not a formula.
    "text.parse_math": False,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
}
_DPI = 160
# The first font comes with matplotlib; the others, if installed, have scripts that it lacks.
_FONTS = ("DejaVu Sans", "Noto Sans", "Noto Sans CJK JP", "Arial Unicode MS", "Microsoft YaHei", "Malgun Gothic")


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in matplotlib's default style and ours, and restore the user's settings.

    A character that no installed font has becomes a box.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.font_manager import fontManager
    except ImportError:
        raise UserError("plots need matplotlib, which is not installed; pip install 'bertfeat[probes]'") from None
    installed = set(fontManager.get_font_names())
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        matplotlib.rcParams["font.family"] = [font for font in _FONTS if font in installed]
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        yield


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """Return an empty figure that makes room for its labels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def save(figure: Figure, out_stem: str | Path) -> tuple[Path, Path]:
    """Write a figure to `out_stem`.png and `out_stem`.svg, each whole or not at all, and return both paths."""
    return save_as(figure, out_stem, "png"), save_as(figure, out_stem, "svg")


def save_as(figure: Figure, out_stem: str | Path, kind: str) -> Path:
    """Write a figure to `out_stem`.png or .svg, whole or not at all, and return the path."""
    return write_report(f"{out_stem}.{kind}", as_image(figure, kind))


def as_image(figure: Figure, kind: str) -> bytes:
    """Return a figure as the bytes of a png or an svg."""
    options: dict[str, Any] = {"dpi": _DPI} if kind == "png" else {"metadata": {"Date": None}}
    data = io.BytesIO()
    figure.savefig(data, format=kind, **options)
    return data.getvalue()


def one_line(label: object) -> str:
    """Return a label as text of one line, cut to 60 columns."""
    return first_columns(printable(str(label)), 60)
