"""Promises in docs/guarantees.md, with the tests whose marks name them: `python docs/promisetable.py` writes them."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guarantees.md"
PROMISES = tomllib.loads((ROOT / "docs" / "promises.toml").read_text(encoding="utf-8"))
_START = "<!-- promises: written by `python docs/promisetable.py` -->\n"
_END = "<!-- end of promises -->"


def marked_tests() -> dict[str, list[str]]:
    """Return the tests by the names in their marks, or in the marks of their class or file."""
    found = defaultdict[str, list[str]](list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name, tree = path.relative_to(ROOT / "tests").as_posix(), ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                where, marks = f"{name}::{node.name}", node.decorator_list
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                where, marks = name, [node.value]
            else:
                continue
            for call in (call for mark in marks for call in ast.walk(mark) if isinstance(call, ast.Call)):
                if ast.unparse(call.func) == "pytest.mark.promise":
                    for promise in call.args:
                        found[ast.literal_eval(promise)].append(where)
    return found


def with_promises(page: str) -> str:
    """Return the page with the promises and their tests as they are now."""
    tests, lines = marked_tests(), list[str]()
    for question, promises in PROMISES.items():
        lines += [f"## {question}", "", *(f"- {promise}" for promise in promises.values()), ""]
        lines += ['<details markdown="1"><summary>Tests</summary>', ""]
        lines += [f"- {name}: {', '.join(f'`{test}`' for test in tests[name])}" for name in promises]
        lines += ["", "</details>", ""]
    before, rest = page.split(_START)
    return "\n".join([before + _START, *lines, _END + rest.split(_END)[1]])


if __name__ == "__main__":
    PAGE.write_text(with_promises(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
