"""Pictures of the documentation, drawn when the site is built (a hook of mkdocs)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from docs.gallery import run_gallery

HERE = Path(__file__).parent
PICTURES = HERE / "pictures"
BLUE, GREY, LIGHT = "#3b6fb6", "#777777", "#dce6f4"


def on_startup(**_: Any) -> None:
    """Draw the plots of docs/gallery.md, once for each start of mkdocs: that takes about a minute of processor time."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run_gallery(Path(folder))
        for picture in Path(folder).glob("*.svg"):
            shutil.copy(picture, PICTURES)


def on_pre_build(config: Any) -> None:  # noqa: ARG001
    """Draw the windows and copy the chart of speed before mkdocs looks for the files."""
    mpl.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "bertfeat", "font.size": 10})
    PICTURES.mkdir(exist_ok=True)
    draw_windows().savefig(PICTURES / "windows.svg", bbox_inches="tight", metadata={"Date": None})
    shutil.copy(HERE.parent / "benchmarks" / "figures" / "speed.png", PICTURES)


def draw_windows() -> Figure:
    """Draw the windows of a document of 26 tokens: which tokens each window holds, and which are kept from it."""
    figure = Figure((9, 2.2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    windows = [(0, 12), (8, 20), (16, 26)]
    kept = [(0, 10), (10, 18), (18, 26)]
    for row, ((start, end), (first, last)) in enumerate(zip(windows, kept, strict=True)):
        for token in range(start, end):
            color = BLUE if first <= token < last else LIGHT
            axes.add_patch(Rectangle((token, -row), 0.9, 0.7, color=color, linewidth=0))
        axes.text(-0.4, 0.35 - row, f"window {row + 1}", ha="right", va="center")
    axes.text(26.4, 0.35, "dark: the token is kept from this window", va="center", color=GREY)
    axes.text(26.4, -0.65, "light: context only", va="center", color=GREY)
    axes.set_xlim(-4.5, 43)
    axes.set_ylim(-2.3, 1)
    return figure
