"""HTML pages from templates: one file that loads nothing from elsewhere, with texts escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfeat.display import printable

# What the pages look like, on paper and in the dark; each adds its own.
_STYLE = """\
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --faint: #d9d9d9 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181c; --faint: #41454d }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); overflow-wrap: anywhere }"""


def render_page(template: Path, values: Mapping[str, Any]) -> str:
    """Return the page that a template of jinja2 makes of values and `style`; texts are escaped, and made printable."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    pages = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    html: str = pages.get_template(template.name).render(values, style=Markup(_STYLE))
    return html
