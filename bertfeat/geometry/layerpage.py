"""The page of a comparison of layers: one HTML file that loads nothing, for narrow and wide, light and dark screens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bertfeat.display import html_table, printable
from bertfeat.geometry.layerfigures import LINES, MATRICES, LayerFigure
from bertfeat.reports.layerplots import Panel

_WIDTH, _HEIGHT, _LEFT, _BELOW, _ABOVE = 320, 170, 58, 22, 10
_MAX_NAMED = 14
# Names of colours are in capitals: in small letters they would look like flags to the check of messages.
_STYLE = """
:root { color-scheme: light dark; --INK: #1c1c1c; --PAPER: #fff; --FAINT: #d9d9d9; --ONE: #0072b2; --TWO: #c14f00 }
@media (prefers-color-scheme: dark) {
  :root { --INK: #e8e8e8; --PAPER: #16181c; --FAINT: #41454d; --ONE: #6cb8ee; --TWO: #ff9a57 }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--INK);
  background: var(--PAPER); overflow-wrap: anywhere }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin: 0 }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: 1.5rem }
section { min-width: 0 } section p { margin: .2rem 0 .5rem; font-size: .9rem }
.wide { grid-column: 1 / -1; max-width: 40rem }
svg { width: 100%; height: auto; display: block } text { font: 11px system-ui, sans-serif; fill: var(--INK) }
.grid { stroke: var(--FAINT) } .store { stroke: var(--ONE); fill: var(--ONE) }
.other { stroke: var(--TWO); fill: var(--TWO) }
polyline.other { stroke-dasharray: 5 3 } polyline { fill: none !important; stroke-width: 2 } .cell { fill: var(--ONE) }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem }
th, td { border-bottom: 1px solid var(--FAINT); padding: .2rem .5rem; white-space: nowrap; text-align: left }
"""


def page(content: Mapping[str, Any], panels: Mapping[str, Panel]) -> str:
    """Return the page as HTML; all texts of the stores are escaped.

    Args:
        content: What layers.json holds.
        panels: The panels of the figures, by their names.
    """
    body = [f"<h1>{escape(_title(content))}</h1>", f"<p>{escape(_counts(content))}</p>"]
    if content["other"]:
        body.append(
            '<p><span style="color:var(--ONE)">━ store</span> <span style="color:var(--TWO)">╍ other</span></p>'
        )
    shown = [figure for figure in (*LINES, *MATRICES) if figure.name in panels]
    sections = [_section(figure, panels[figure.name]) for figure in shown]
    body.append("<main>" + "".join(sections) + _moved(content["moved"]) + _table(content["rows"]) + "</main>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(_title(content))}</title><style>{_STYLE}</style></head>\n<body>{''.join(body)}</body></html>\n"
    )


def _title(content: Mapping[str, Any]) -> str:
    other = f" and {content['other_model']}" if content["other"] else ""
    return printable(f"Layers of {content['model']}{other}")


def _counts(content: Mapping[str, Any]) -> str:
    stores = f"{content['store']} (store) and {content['other']} (other)" if content["other"] else content["store"]
    types = (
        f" Self-similarity: {content['n_types']:,} word types of {content['min_count']} rows or more."
        if content["min_count"]
        else ""
    )
    return printable(
        f"{stores}, level {content['level']}: {content['n_rows']:,} rows of {content['n_documents']:,} documents."
        f"{types} Neighbours ({content['n_neighbours']}), intrinsic dimension and RSA: a sample of "
        f"{content['n_sample']:,} rows, seed {content['seed']}."
    )


def _section(figure: LayerFigure, panel: Panel) -> str:
    source = f" ({escape(figure.source)})" if figure.source else ""
    drawn = _lines(panel) if panel.matrix is None else _cells(panel.labels, panel.matrix)
    wide = ' class="wide"' if panel.matrix is not None and len(panel.labels) > _MAX_NAMED else ""
    return f"<section{wide}><h2>{escape(figure.title)}</h2><p>{escape(figure.meaning)}{source}</p>{drawn}</section>"


def _svg(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    label = escape(title, quote=True)
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _lines(panel: Panel) -> str:
    """Return lines against the layers as SVG; each point names its layer and value."""
    values = [value for line in panel.lines.values() for _, value in line]
    low, high = min(0.0, *values), max(0.0, *values) or 1.0
    width, height = _WIDTH - _LEFT - 8, _HEIGHT - _BELOW - _ABOVE
    step = width / max(1, len(panel.labels) - 1)

    def at(place: int, value: float) -> tuple[float, float]:
        return round(_LEFT + place * step, 1), round(_ABOVE + height * (high - value) / (high - low), 1)

    parts = []
    for mark in (low, (low + high) / 2, high):
        y = at(0, mark)[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{y + 4}" text-anchor="end">{mark:.3g}</text>')
    for place in range(0, len(panel.labels), -(-len(panel.labels) // _MAX_NAMED)):
        x = at(place, 0)[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(panel.labels[place])}</text>')
    for side, line in panel.lines.items():
        points = [at(*point) for point in line]
        parts.append(f'<polyline class="{side}" points="{" ".join(f"{x},{y}" for x, y in points)}"/>')
        for (x, y), (place, value) in zip(points, line, strict=True):
            name = escape(f"{side}, {panel.labels[place]}: {value:.4g}")
            parts.append(f'<circle class="{side}" cx="{x}" cy="{y}" r="3"><title>{name}</title></circle>')
    return _svg(panel.title, _WIDTH, _HEIGHT, parts)


def _cells(labels: Sequence[str], matrix: Sequence[Sequence[float | None]]) -> str:
    """Return a matrix as SVG: the darker a cell, the nearer to 1; each cell names its layers and value."""
    left = 12 + 6 * max(map(len, labels))
    size = (_WIDTH - left) / len(labels)
    named = -(-len(labels) // (2 * _MAX_NAMED))
    parts = []
    for i, line in enumerate(matrix):
        y = i * size
        if i % named == 0:
            parts.append(
                f'<text x="{left - 5}" y="{y + size / 2 + 4:.1f}" text-anchor="end">{escape(labels[i])}</text>'
            )
        for j, value in enumerate(line):
            known = "-" if value is None else f"{value:.3f}"
            name = escape(f"{labels[i]}, {labels[j]}: {known}")
            parts.append(
                f'<rect class="cell" x="{left + j * size:.1f}" y="{y:.1f}" width="{size:.1f}" height="{size:.1f}" '
                f'fill-opacity="{min(1.0, max(0.0, value or 0)):.3f}"><title>{name}</title></rect>'
            )
    return _svg("matrix of all pairs", _WIDTH, len(labels) * size, parts)


def _moved(moved: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the words that moved most in the highest layer that has some, as a section."""
    names = [name for name, words in moved.items() if words]
    if not names:
        return ""
    rows = [(word["word"], word["n_rows"], word["shift"]) for word in moved[names[-1]]]
    meaning = (
        "One less the correlation of a word's cosines with all other words, in the one and in the other store: 0 means "
        "that the word kept its place among the words, 1 that no relation is left (after Hamilton et al. 2016)."
    )
    table = html_table(f"Layer {names[-1]}; layers.json has all layers.", ("word", "rows", "shift"), rows)
    return f'<section><h2>The words that moved most</h2><p>{meaning}</p><div class="scroll">{table}</div></section>'


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [name for name in rows[0] if any(row[name] is not None for row in rows) and name != "top3_dimensions"]
    table = html_table("The same as numbers.", names, [[row[name] for name in names] for row in rows])
    return f'<section style="grid-column: 1 / -1"><h2>Table</h2><div class="scroll">{table}</div></section>'
