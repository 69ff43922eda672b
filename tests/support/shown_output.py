"""Output shown in pages and notebooks, compared with what the code beside it prints now."""

from __future__ import annotations

import re
from xml.etree import ElementTree

_NUMBER = re.compile(r"-?\d+\.\d+")


def check_shown(shown: str, printed: str, tolerance: float = 0.03) -> None:
    """Check that two outputs have the same words, and decimal numbers that differ by no more than rounding elsewhere.

    Raises:
        AssertionError: The outputs differ.
    """
    assert _NUMBER.sub("#", shown).split() == _NUMBER.sub("#", printed).split(), printed
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=True)
    assert all(abs(float(old) - float(new)) <= tolerance for old, new in pairs), printed


def html_cells(text: str) -> list[str]:
    """Return the title and the cells of tables in HTML, which must be well-formed."""
    return [part for element in ElementTree.fromstring(f"<div>{text}</div>").iter() if (part := element.text)]
