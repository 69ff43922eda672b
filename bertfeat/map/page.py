"""Page of a map: points with their texts in one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertfeat.display import printable
from bertfeat.records import Float32Array

# A browser's numbers are float64: beyond this they skip whole numbers.
_MAX_EXACT = 2**53


def map_page(
    coordinates: Float32Array,
    texts: Sequence[str],
    columns: Mapping[str, Sequence[object]],
    *,
    title: str,
    note: str = "",
    color: str | None = None,
) -> bytes:
    """Return an HTML page of points (n, 2), with texts and columns as text; `color` is a column's name."""
    data = {
        "x": _floats(coordinates[:, 0]),
        "y": _floats(coordinates[:, 1]),
        "text": list(texts),
        "columns": [{"name": name, "values": [_plain(value) for value in column]} for name, column in columns.items()],
        "color": color,
        "note": note,
    }
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # No HTML parser takes these escapes for markup.
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    parts = {"TITLE": html.escape(printable(title)), "DATA": text}
    template = Path(__file__).with_name("map.html").read_text("utf-8")
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], template).encode()


def _floats(values: Float32Array) -> str:
    """Return numbers as base64 of little-endian float32."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _plain(value: object) -> object:
    """Return a value as JSON and a browser hold it: what they cannot hold, NaN among it, becomes text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    is_exact = isinstance(value, str) or (isinstance(value, int) and abs(value) <= _MAX_EXACT)
    return value if value is None or is_exact else str(value)
