"""Table of notes in docs/models.md, written from the table in the code: `python docs/modeltable.py`."""

from __future__ import annotations

from pathlib import Path

from bertfeat.encoder.families import FAMILIES

PAGE = Path(__file__).parent / "models.md"
_START = "<!-- families: written by `python docs/modeltable.py` -->\n"
_END = "<!-- end of families -->\n"


def with_table(page: str) -> str:
    """Return the text of the page with today's notes in it."""
    before, rest = page.split(_START)
    after = rest.split(_END)[1]
    return f"{before}{_START}{_table()}{_END}{after}"


def _table() -> str:
    rows = ["", "| model type | note |", "|---|---|"]
    for family in sorted(FAMILIES, key=lambda family: family.model_type):
        note = f"not run: {family.refusal}" if family.refusal else family.note
        rows += [f"| `{family.model_type}` | {note} |"] if note else []
    return "\n".join([*rows, "", ""])


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
