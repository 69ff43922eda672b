"""Every command and every Python block of the README runs, from top to bottom, in one folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertfeat.encoder.families import families
from tests.support.command_line import bertfeat
from tests.support.places import ROOT, TESTS

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
# Of each text under examples/data: enough to show everything, and quick.
N_LINES = {"peps.txt": 24, "wnut17_dev.conll": 300}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the root of the repository, with the heads of its texts."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "examples" / "data").mkdir(parents=True)
    for name, n_lines in N_LINES.items():
        lines = (ROOT / "examples" / "data" / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / "examples" / "data" / name).write_text("".join(lines[:n_lines]), encoding="utf-8")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def commands(block: str) -> list[str]:
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def run_command(command: str, folder: Path) -> None:
    words = shlex.split(command)
    if words[0] == "bertfeat":
        result = bertfeat(*words[1:])
        assert result.code == 0, f"{command}: {result.err}"
        assert result.err == ""
        return
    # What make would install and run is run by the checks themselves; here its targets only have to be there.
    line = f"{command} --dry-run" if words[0] == "make" else command
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # The suite itself may run under make, whose settings are none of this one's.
    environment = {**os.environ, "PATH": path, "MAKEFLAGS": "", "MAKELEVEL": ""}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
    assert done.stderr == b""


def test_every_block_runs_from_top_to_bottom(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    for language, block in BLOCKS:
        if language == "python":
            # Each block runs alone: it imports and opens what it uses.
            exec(compile(block, "README.md", "exec"), {})
        else:
            for command in commands(block):
                run_command(command, place)
    made = sorted(path.parent.name for path in place.glob("*/manifest.json"))
    assert made == ["entities", "features", "in-context", "piped", "reviews", "train"]


def test_the_blocks_are_found() -> None:
    assert {language for language, _ in BLOCKS} == {"bash", "python"}
    assert README.count("\n```bash\n") + README.count("\n```python\n") == len(BLOCKS)
    run = [command.split()[1] for language, block in BLOCKS if language == "bash" for command in commands(block)]
    assert {"extract", "inspect", "verify", "models", "demo", "test"} <= set(run)


def test_every_family_is_named() -> None:
    packed, rest = README.split("*In batches of equal lengths*")
    packed = packed.split("*Packed*")[1]
    rest = rest.split("## Safety")[0]
    for family in families():
        named = packed if family.path == "packed" else rest
        assert re.search(rf"\b{re.escape(family.title)}\b", named.replace("\n", " ")), family.title


def test_every_file_that_it_links_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"`(--[a-z-]+)", README))))
def test_every_flag_it_names_is_one(flag: str) -> None:
    commands = ("extract", "inspect", "verify", "probe fit", "probe score", "probe predict", "probe sweep")
    commands += ("index build", "index eval", "search")
    assert any(flag in bertfeat(*command.split(), "--help").out for command in commands)


def test_every_test_that_the_readme_names_is_there() -> None:
    named = 0
    for cell in re.findall(r"^\|[^|]*\| ([^|]*test_[^|]*) \|$", README, re.MULTILINE):
        file = ""
        for name, test in re.findall(r"`([a-z]+/test_\w+\.py)?(?:::(test_\w+))?`", cell):
            file = name or file
            text = (TESTS / file).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in text, f"{file}::{test}"
            named += 1
    assert named > 25
