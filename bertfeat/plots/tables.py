"""Tables as aligned text, as Markdown and as CSV, and the files of reports, published whole."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from bertfeat.display import display_width, padded, plain_rows, table_cells
from bertfeat.durable.output_check import check_file, check_folder_above
from bertfeat.durable.publication import publish_bytes

_MARKDOWN_SPECIAL = re.compile(r"([\\|*`<\[\]])")


def text_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as lines of plain text, numbers aligned at the right.

    Args:
        headers: The names of the columns.
        rows: The cells; fractions are shown with four digits, None as -.

    Raises:
        ValueError: A row does not have one cell per header.

    Examples:
        >>> print(text_table(["feature", "F1"], [["layer_12", 0.912345], ["concat_last4", None]]))
        feature           F1
        ------------  ------
        layer_12      0.9123
        concat_last4       -
    """
    lines, is_right = table_cells(headers, rows)
    widths = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("  ".join(map(padded, line, widths, is_right)).rstrip() for line in lines)


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Return a table in GitHub's Markdown, with cells as in `text_table`, escaped.

    Examples:
        >>> print(markdown_table(["label", "rows"], [["a|b", 3]]))
        | label | rows |
        |---|---:|
        | a\|b | 3 |
    """
    lines, is_right = table_cells(headers, rows)
    lines = [[_MARKDOWN_SPECIAL.sub(r"\\\1", cell) for cell in line] for line in lines]
    rule = "|" + "|".join("---:" if right else "---" for right in is_right) + "|"
    written = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([written[0], rule, *written[1:]])


def write_csv(path: str | Path, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Write a table as CSV, UTF-8 with Unix line ends; fractions in full, None as an empty cell.

    Raises:
        ValueError: A row does not have one cell per header.
        UserError: There is no such folder.
        RunError: The system refused a write; an older file is unchanged.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headers, *plain_rows(headers, rows)])
    return write_report(path, text.getvalue().encode("utf-8"))


def write_report(path: str | Path, data: bytes) -> Path:
    """Publish a file and return its path; an older file is replaced. A UserError says that there is no such folder."""
    target = Path(path)
    check_folder_above(target)
    check_file(target, overwrite=True, instead="another name")
    publish_bytes(target, data)
    return target
