"""The walk-throughs, whose blocks run and print what the pages show, and the glossary."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import pipeline_runs
from tests.support.command_line import good
from tests.support.places import ROOT
from tests.support.shown_output import check_shown

PAGES = ROOT / "docs" / "start"
BLOCKS = re.compile(r"^```(bash|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_shell(block: str) -> str:
    out = ""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        if line.startswith("bertfeat "):
            out += good(*words[1:]).out
        elif line.startswith("python -m bertfeat.pipelines."):
            out += pipeline_runs.run(words[2].rpartition(".")[2], *words[3:]).out
        else:
            out += subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
    return out


def run_python(block: str) -> tuple[str, dict[str, Any]]:
    out: io.StringIO = io.StringIO()
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(out):
        exec(compile(block, "page", "exec"), names)
    return out.getvalue(), names


def run_page(name: str, folder: Path) -> dict[str, Any]:
    """Run the blocks of a page from top to bottom, compare the output shown, and return the names that they leave."""
    page = (PAGES / name).read_text(encoding="utf-8")
    shutil.copytree(ROOT / "examples" / "data", folder / "examples" / "data")
    printed, names, shown = "", {}, ""
    for language, block in BLOCKS.findall(page):
        if language == "bash":
            printed = run_shell(block)
        elif language == "python":
            printed, left = run_python(block)
            names |= left
        elif not block.startswith("python -m "):  # a command that takes minutes
            check_shown(block, printed)
            shown += block
    prose = BLOCKS.sub("", page)
    assert [n for n in re.findall(r"(?:[Aa]bout|the) (0\.\d\d)(?! to either)", prose) if n not in shown] == []
    return names


@pytest.mark.long
def test_a_sentence_classifier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_page("classifier.md", tmp_path)
    scores = {row.feature: row.score for row in names["sweep"].rows}
    middle = [scores[f"layer_{layer:02d}"] for layer in (3, 4, 5)]
    assert min(middle) > scores["layer_06"] > 0.7
    assert scores["concat_last4"] > max(scores.values()) - 0.02
    assert names["interval"].low < names["score"].value < names["interval"].high
    assert names["score"].value > 0.75
    assert (tmp_path / "review-predictions.parquet").exists()


def test_the_layers_of_one_word(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_page("bank.md", tmp_path)
    assert names["rows"].tolist() == sorted(names["rows"])
    assert len(names["rows"]) == 8
    # A word behind "bank" moves it in BERT, trained or not, and no bit of it in GPT-2.
    assert names["moved"]["minilm"][1:].min() > 0.1
    assert names["moved"]["./bert-random"][1:].min() > 0.01
    assert names["moved"]["./gpt2-random"].max() == 0


@pytest.mark.parametrize("name", ["classifier.md", "bank.md"])
def test_every_python_block_is_followed_by_its_output_if_it_prints(name):
    blocks = BLOCKS.findall((PAGES / name).read_text(encoding="utf-8"))
    for (language, block), (following, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        is_output = following == "text" and not shown.startswith("python -m ")
        assert (language == "python" and "print(" in block) == is_output


def test_the_glossary_is_in_alphabetical_order_and_has_the_levels_and_settings():
    page = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    words = [line.split(" | ")[0].removeprefix("| ").lower() for line in page.splitlines() if line.startswith("| ")][1:]
    assert words == sorted(set(words))
    assert {"document", "feature", "head", "layer", "level", "pack", "part", "probe", "receipt", "shard"} <= set(words)
