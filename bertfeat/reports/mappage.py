"""Page of a map: points with their texts in one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.util import find_spec

import numpy as np

from bertfeat.display import printable
from bertfeat.errors import UserError
from bertfeat.records import Float32Array

#: The most points of a page: more make the file and its start too slow.
MAX_POINTS = 200_000
# Its WebGL backend, and its interface for JavaScript.
_COMPONENTS = ["bokeh", "bokeh-gl", "bokeh-api"]


def check_page() -> None:
    """Check that the drawing library is installed.

    Raises:
        UserError: Bokeh is not installed.
    """
    if find_spec("bokeh") is None:
        raise UserError("the page of a map needs Bokeh, which is not installed; pip install 'bertfeat[map]'")


def map_page(
    coordinates: Float32Array,
    texts: Sequence[str | None],
    columns: Mapping[str, Sequence[object]],
    *,
    title: str,
    note: str = "",
    color: str | None = None,
) -> bytes:
    """Return an HTML page of points: pan, zoom, hover with text, colour by a column, and a search box.

    Texts and values are shown as text, never as markup.

    Args:
        coordinates: float32 (n, 2).
        texts: The text of each point.
        columns: Values of each point: texts, numbers, booleans or None.
        title: The title.
        note: A sentence on how the points were made.
        color: The column that gives the colours at first; None for one colour.

    Raises:
        UserError: Bokeh is not installed.
    """
    check_page()
    from bokeh.resources import Resources

    data = {
        "x": _floats(coordinates[:, 0]),
        "y": _floats(coordinates[:, 1]),
        "text": list(texts),
        "columns": [{"name": name, "values": [_plain(value) for value in column]} for name, column in columns.items()],
        "colour": color,
        "note": note,
    }
    scripts = Resources(mode="inline", components=_COMPONENTS).js_raw
    parts = {
        "TITLE": html.escape(printable(title)),
        "DATA": _script_json(data),
        "SCRIPTS": "\n".join(f"<script>\n{script}\n</script>" for script in scripts),
    }
    template = (resources.files("bertfeat.reports") / "map.html").read_text("utf-8")
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], template).encode()


def _floats(values: Float32Array) -> str:
    """Return numbers as base64 of little-endian float32."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _plain(value: object) -> object:
    """Return a value as JSON holds it: a finite number, a boolean, None, or else text."""
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _script_json(data: object) -> str:
    """Return JSON that no HTML parser takes for markup."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
