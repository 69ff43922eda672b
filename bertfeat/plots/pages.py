"""HTML pages from templates: one file that loads nothing from elsewhere, with texts escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfeat.display import printable


def render_page(template: Path, values: Mapping[str, Any]) -> str:
    """Return the page that a template of jinja2 makes of values; texts are escaped, and made printable."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    pages = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    html: str = pages.get_template(template.name).render(values)
    return html
