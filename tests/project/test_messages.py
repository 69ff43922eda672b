"""Messages of the package: they name settings as Python does, and the command line puts flags in their place."""

from __future__ import annotations

import pytest

from bertfeat.cli.failures import with_flags


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no column 'a'; pass `text_column`", "no column 'a'; pass --text-column"),
        ("`levels` 'x' must be one of token", "--level 'x' must be one of token"),
        ("pass `bad_rows='quarantine'`, or", "pass --bad-rows quarantine, or"),
        ("pass `no_header=True`", "pass --no-header"),
        ("pass `delimiter=';'`", "pass --delimiter ';'"),
        ("(or `workers=1`)", "(or --workers 1)"),
        ("run `bertfeat models` on '`text_column`'", "run `bertfeat models` on '`text_column`'"),
    ],
)
def test_the_command_line_shows_flags(message: str, shown: str) -> None:
    assert with_flags(message) == shown
