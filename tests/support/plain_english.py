"""Guard for plain English: a word list over docstrings, comments, texts and Markdown; `make check` runs it.

Each phrase has a plainer one beside it. Any finding fails; technical uses are on the list ALLOWED.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.places import ROOT

FOLDERS = ("bertfeat", "tests", "pipelines", "examples", "benchmarks", "docs")
_UNITS = (
    "layer|token|document|row|vector|shard|word|device|machine|worker|query|line|sentence|part|second|text|epoch|batch|"
    "class|column|feature|file|label|minute|process|run|seed|span|step|store|thread|window"
)
# pattern -> what to write
PHRASES = {
    r"(?:is|are|was|were|be) no\b": "is not a, must be",
    r"(?-i:is|are) (?-i:none)\b": "name what it is not, or the choices",
    r"anew": "again; recreate",
    r"by lot": "at random",
    r"blanks?": "space, whitespace",
    r"broken? off": "interrupted",
    r"(?:go|goes|going|went|gone) on": "resume, continue",
    r"hears? of": "receives, reports",
    r"nobody|no one": "name who does not",
    r"(?:of|under|with) (?:another|a different) plan": "made with other settings",
    r"from nothing": "from random weights",
    r"ha(?:s|ve|d) (?:no|a) meaning": "has no effect, cannot be used with",
    r"(?-i:Tell) (?:whether|which)": "Return whether",
    r"what (?:is|are|was|were) \w+ (?:is|are|was|were|runs?)": "a noun",
    rf"(?:one|once|[kMG]B|vectors?|bytes|rows?|times?|numbers?|column) an? (?:{_UNITS})": "one per ...",
    r"see to it": "fix the cause",
    r"so many": "this many, that many",
    r"stands?|stood": "is, lies, appears",
    r"told": "reported",
    r"vouch(?:es|ed)?": "check, guarantee",
    r"whatever (?:befalls|has befallen)|befall\w*": "happens to",
}
# Technical uses, and phrases that are plain.
ALLOWED = r"there (?:is|are|was|were) no\b|(?:is|are) no longer\b|blank lines?|stands? for|stands? up to|none of\b"
_FOUND = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in PHRASES).replace(" ", r"\s+"), re.IGNORECASE)
_ALLOWED = re.compile(ALLOWED, re.IGNORECASE)
# A docstring of a module opens with a noun phrase; an entry of Raises names its subject.
_HEADLESS = re.compile(r"(?:What|Which|How|Where|When|Whether)\b")
_PRONOUN = re.compile(r"^\s+\w+(?:Error|Failed|Mismatch): (?:It|They|One|This|That)\b", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#[^!].*")


class Finding(NamedTuple):
    """A phrase to reword: where it is, and what it is."""

    path: str
    line: int
    phrase: str


def findings_in(path: str, text: str) -> list[Finding]:
    """Return the phrases of one file, in order, each once a line."""
    pieces = _python(text) if path.endswith(".py") else [(1, text, False)]
    found = set()
    for first, piece, is_module in pieces:
        for pattern in (_FOUND, _PRONOUN):
            for match in pattern.finditer(_ALLOWED.sub(lambda hit: "_" * len(hit[0]), piece)):
                line = first + piece.count("\n", 0, match.start() + len(match[0]) - len(match[0].lstrip()))
                found.add(Finding(path, line, " ".join(match[0].split())))
        if is_module and (opening := _HEADLESS.match(piece)):
            found.add(Finding(path, first, f"{opening[0]} ... (a module is a noun phrase)"))
    return sorted(found)


def _python(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the strings and comments of a module with their first lines, and whether one is the module's docstring."""
    tree = ast.parse(text)
    first = tree.body[0] if tree.body else None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value, isinstance(first, ast.Expr) and first.value is node
    for number, line in enumerate(text.splitlines(), start=1):
        if "#" in line and (comment := _COMMENT.search(line)):
            yield number, comment[0], False


def findings() -> list[Finding]:
    """Return the phrases of the whole tree."""
    files = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))]
    found = []
    for path in sorted(files):
        if path.suffix in (".py", ".md") and path != Path(__file__):
            found += findings_in(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    return found


def main() -> int:
    """Print every phrase with a plainer one; return the exit code."""
    found = findings()
    for path, line, phrase in found:
        print(f"{path}:{line}: {phrase!r}{_advice(phrase)}")
    print(f"plain English: {len(found)} phrases to reword")
    return 1 if found else 0


def _advice(phrase: str) -> str:
    return next((f"; write {plain}" for odd, plain in PHRASES.items() if re.fullmatch(odd, phrase, re.I)), "")


if __name__ == "__main__":
    sys.exit(main())
