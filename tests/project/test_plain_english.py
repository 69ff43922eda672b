"""The guard for plain English finds what it looks for, and lets technical uses pass."""

from __future__ import annotations

import pytest

from tests.support import plain_english
from tests.support.plain_english import Finding, findings_in, main

ODD = '"""What is done."""\n\n# A size that is no\n# number.\nanew = f"{1} bytes a vector; see to it"\n'
RAISES = '"""Reader of files.\n\nRaises:\n    UserError: It is empty.\n    OSError: The file is gone.\n"""\n'


def phrases(path: str, text: str) -> list[tuple[int, str]]:
    return [(line, phrase) for _, line, phrase in findings_in(path, text)]


def test_phrases_are_found_with_their_lines() -> None:
    assert phrases("a.py", ODD) == [
        (1, "What ... (a module is a noun phrase)"),
        (3, "is no"),
        (5, "bytes a vector"),
        (5, "see to it"),
    ]
    assert phrases("a.py", RAISES) == [(4, "UserError: It")]
    assert phrases("a.md", "# What\n\nIt goes\non, one a\nlayer.\n") == [(3, "goes on"), (4, "one a layer")]
    said = "What is late is of another plan. It has no meaning: 3 MB a run, from nothing."
    found = ["What is late is", "of another plan", "has no meaning", "MB a run", "from nothing"]
    assert sorted(phrases("a.md", said)) == sorted((1, phrase) for phrase in found)


@pytest.mark.parametrize(
    "text",
    ["There is no such file.", "It is no longer there.", "Blank lines end a sentence.", "[CLS] stands for a class."],
)
def test_plain_and_technical_uses_pass(text: str) -> None:
    assert phrases("a.md", text) == []
    assert phrases("a.py", f"told = blank = 1  # {text}\n") == []


def test_any_phrase_fails_and_the_plainer_one_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plain_english, "findings", lambda: [Finding("b.py", 3, "anew")])
    assert main() == 1
    assert "b.py:3: 'anew'; write again; recreate" in capsys.readouterr().out


def test_the_tree_has_none() -> None:
    assert plain_english.findings() == []
