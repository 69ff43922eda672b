"""Messages of the package: they name settings as Python does, and the command line puts flags in their place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertfeat
from bertfeat.cli.failures import with_flags
from bertfeat.config import flag
from tests.support.command_line import flags

PACKAGE = Path(str(bertfeat.__file__)).parent
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# The one function that makes flags.
ALLOWED = {"config.py: --"}


def texts() -> Iterator[tuple[str, str]]:
    """Yield (file, text) of each string outside the command line that is not a docstring; fields show as `x`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith("cli/"):
            continue
        tree = ast.parse(path.read_text())
        ignored = {id(node.body[0].value) for node in ast.walk(tree) if is_documented(node)}  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                ignored |= {id(part) for part in node.values}
                parts = [str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values]
                yield name, "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in ignored:
                yield name, node.value


def is_documented(node: ast.AST) -> bool:
    return isinstance(node, DOCUMENTED) and bool(node.body) and isinstance(node.body[0], ast.Expr)


def test_messages_outside_the_command_line_name_no_flags() -> None:
    # The usage line of another program may have some.
    found = [f"{name}: {text}" for name, text in texts() if re.search(r"(?<![\w-])--[a-z]", text)]
    assert [text for text in found if text not in ALLOWED] == []


def test_settings_that_messages_name_are_flags() -> None:
    named = {setting for _, text in texts() for setting in re.findall(r"(?<!\S)`([a-z]\w*)(?:=[^`]*)?`", text)}
    assert {"text_column", "overwrite", "pooling", "inputs"} <= named
    assert {name for name in named if flag(name) not in flags()} - {"x"} == set()


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no column 'a'; pass `text_column`", "no column 'a'; pass --text-column"),
        ("`levels` 'x' must be one of token", "--level 'x' must be one of token"),
        ("pass `bad_rows='quarantine'`, or", "pass --bad-rows quarantine, or"),
        ("pass `no_header=True`", "pass --no-header"),
        ("pass `delimiter=';'`", "pass --delimiter ';'"),
        ("(or `workers=1`)", "(or --workers 1)"),
        (
            "run `bertfeat models` or `jq -c .` on '`text_column`'",
            "run `bertfeat models` or `jq -c .` on '`text_column`'",
        ),
    ],
)
def test_the_command_line_shows_flags(message: str, shown: str) -> None:
    assert with_flags(message) == shown
