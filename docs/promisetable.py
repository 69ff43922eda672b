"""Promises in docs/guarantees.md, with the files of their tests: `python docs/promisetable.py` writes them."""

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
    """Return the files of tests by the names in the marks of their tests, classes or the file itself."""
    found = defaultdict[str, list[str]](list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name, tree = path.relative_to(ROOT / "tests").as_posix(), ast.parse(path.read_text(encoding="utf-8"))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) == "pytest.mark.promise":
                for promise in map(ast.literal_eval, call.args):
                    if name not in found[promise]:
                        found[promise].append(name)
    return found


def with_promises(page: str) -> str:
    """Return the page with the promises and their tests as they are now."""
    tests, lines = marked_tests(), list[str]()
    for question, promises in PROMISES.items():
        lines += [f"## {question}", "", *(f"- {promise}" for promise in promises.values()), ""]
        files = [f"{name}: {', '.join(tests[name])}" for name in promises]
        lines += [f"<details><summary>Tests</summary>{'; '.join(files)}.</details>", ""]
    before, rest = page.split(_START)
    return "\n".join([before + _START, *lines, _END + rest.split(_END)[1]])


if __name__ == "__main__":
    PAGE.write_text(with_promises(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
