"""The guard for plain English finds what it looks for, and lets technical uses pass."""

from __future__ import annotations

import subprocess
from pathlib import Path

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


@pytest.mark.parametrize(
    "text",
    ["There is no such file.", "It is no longer there.", "Blank lines end a sentence.", "[CLS] stands for a class."],
)
def test_plain_and_technical_uses_pass(text: str) -> None:
    assert phrases("a.md", text) == []
    assert phrases("a.py", f"told = blank = 1  # {text}\n") == []


@pytest.mark.parametrize(("ceiling", "code", "said"), [(1, 0, "set CEILING"), (0, 1, "1 more than the 0 before")])
def test_the_count_only_goes_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ceiling: int, code: int, said: str
) -> None:
    found = [] if ceiling else [Finding("b.py", 3, "anew")]
    monkeypatch.setattr(plain_english, "findings", lambda: found)
    monkeypatch.setattr(plain_english, "new_lines", lambda: {("b.py", 3)})
    monkeypatch.setattr(plain_english, "CEILING", ceiling)
    assert main() == code
    printed = capsys.readouterr().out
    assert said in printed
    assert ("b.py:3: 'anew'; write again; recreate" in printed) == (code == 1)


def test_lines_since_the_ceiling_was_set_are_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *author, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    for name, texts in {"guard.py": ["CEILING = 1\n"], "a.py": ["1\n2\n", "1\n2\n3\n", "0\n1\n2\n3\n"]}.items():
        for number, text in enumerate(texts):
            (tmp_path / name).write_text(text)
            if number < 2:
                git("add", ".")
                git("commit", "-qm", name)
    monkeypatch.setattr(plain_english, "ROOT", tmp_path)
    monkeypatch.setattr(plain_english, "__file__", str(tmp_path / "guard.py"))
    assert plain_english.new_lines() == {("a.py", n) for n in (1, 2, 3, 4)}
    git("commit", "-qam", "again")
    (tmp_path / "guard.py").write_text("CEILING = 2\n")
    git("commit", "-qam", "raise")
    (tmp_path / "a.py").write_text("0\n1\n2\n3\n4\n")
    assert plain_english.new_lines() == {("a.py", 5)}
